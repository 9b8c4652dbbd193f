package tolerations

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owner is what a pod belongs to: its controller. Of a pod with none it is empty.
type Owner struct {
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
}

func ownerOf(pod *corev1.Pod) Owner {
	if c := metav1.GetControllerOf(pod); c != nil {
		return Owner{Kind: c.Kind, Name: c.Name}
	}
	return Owner{}
}

// compare orders owners.
func (o Owner) compare(b Owner) int {
	return cmp.Or(cmp.Compare(o.Kind, b.Kind), cmp.Compare(o.Name, b.Name))
}

// Pod names one pod.
type Pod struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Group is one finding of one owner's pods in a namespace.
type Group struct {
	Namespace string `json:"namespace"`
	Owner     Owner  `json:"owner"`
	Finding
	Pods []Pod `json:"pods"`
}

// Audit is what was found.
type Audit struct {
	// Groups are by namespace, owner and kind.
	Groups []Group `json:"items"`
	// Looked is how many pods were looked at; Exempt of them are finished, terminating
	// or mirror pods, which do not leave for taints.
	Looked int `json:"pods_looked_at"`
	Exempt int `json:"pods_exempt"`
	// Counts is how many pods each kind was found at.
	Counts map[Kind]int `json:"pods_found"`
}

// RunAudit looks at all pods and keeps the findings of these kinds. Errors are the
// API server's.
func RunAudit(ctx context.Context, src Source, kinds []Kind) (*Audit, error) {
	x := newExaminer(src.ComparisonOperators)
	audit := &Audit{Groups: []Group{}, Counts: map[Kind]int{}}
	for _, k := range kinds {
		audit.Counts[k] = 0
	}
	index := map[string]int{}
	err := src.each(ctx, func(pod *corev1.Pod) {
		list, subject := x.findings(pod)
		audit.Looked++
		if !subject {
			audit.Exempt++
		}
		seen := map[Kind]bool{}
		for _, f := range list {
			if !slices.Contains(kinds, f.Kind) {
				continue
			}
			if !seen[f.Kind] {
				seen[f.Kind] = true
				audit.Counts[f.Kind]++
			}
			audit.add(index, pod, f)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(audit.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), a.Owner.compare(b.Owner),
			cmp.Compare(slices.Index(Kinds, a.Kind), slices.Index(Kinds, b.Kind)))
	})
	return audit, nil
}

// add puts a finding into its group. index has the groups' places.
func (a *Audit) add(index map[string]int, pod *corev1.Pod, f Finding) {
	// Tolerations have pointers, so that the text stands for what they say.
	text, err := json.Marshal(struct {
		Namespace string
		Owner     Owner
		Finding   Finding
	}{pod.Namespace, ownerOf(pod), f})
	if err != nil {
		text = []byte(pod.UID) // Never, for these types; the pod is a group of its own then.
	}
	i, ok := index[string(text)]
	if !ok {
		i = len(a.Groups)
		index[string(text)] = i
		a.Groups = append(a.Groups, Group{Namespace: pod.Namespace, Owner: ownerOf(pod), Finding: f.clone()})
	}
	a.Groups[i].Pods = append(a.Groups[i].Pods, Pod{Name: pod.Name, UID: string(pod.UID)})
}

// clone is a copy that holds no part of a page of pods.
func (f Finding) clone() Finding {
	f.Taints = slices.Clone(f.Taints)
	f.Toleration, f.HiddenBy = f.Toleration.DeepCopy(), f.HiddenBy.DeepCopy()
	return f
}
