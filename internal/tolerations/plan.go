package tolerations

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Waits are the tolerationSeconds to add.
type Waits struct{ NotReady, Unreachable time.Duration }

// Of is the wait of a taint's key.
func (w Waits) Of(key string) time.Duration {
	if key == corev1.TaintNodeUnreachable {
		return w.Unreachable
	}
	return w.NotReady
}

// toleration is the one to add for a taint: what the admission plugin
// DefaultTolerationSeconds adds.
func (w Waits) toleration(key string) corev1.Toleration {
	seconds := int64(w.Of(key) / time.Second)
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}
}

// Plan is what a backfill would do.
type Plan struct {
	source   Source
	examiner *examiner
	pods     []*candidate
	looked   int
}

// candidate is a pod that lacks tolerations, as it was last read.
type candidate struct {
	namespace, name string
	uid             types.UID
	version         string
	owner           Owner
	// lacks are the keys of what is missing; bare says that it has no tolerations at all.
	lacks []string
	bare  bool

	outcome outcome
	err     error
}

// outcome says what became of a candidate.
type outcome int

const (
	// untouched: nothing was tried.
	untouched outcome = iota
	// mended: the tolerations were added.
	mended
	// whole: it had them when it was read again.
	whole
	// gone: it is no longer there, or does not leave for taints any more.
	gone
	// failed: see err.
	failed
)

// MakePlan looks at all pods and keeps those that lack tolerations. It changes
// nothing. Errors are the API server's.
func MakePlan(ctx context.Context, src Source) (*Plan, error) {
	p := &Plan{source: src, examiner: newExaminer(src.ComparisonOperators)}
	err := src.each(ctx, func(pod *corev1.Pod) {
		p.looked++
		c := &candidate{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, owner: ownerOf(pod)}
		if c.read(p.examiner, pod); len(c.lacks) > 0 {
			p.pods = append(p.pods, c)
		}
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// read takes over what matters of the pod as it is now.
func (c *candidate) read(x *examiner, pod *corev1.Pod) {
	c.version, c.bare = pod.ResourceVersion, len(pod.Spec.Tolerations) == 0
	c.lacks = nil
	for _, key := range x.missing(pod) {
		// The keys are shared constants, so that no pod is kept for them.
		c.lacks = append(c.lacks, taintKeys[slices.Index(taintKeys, key)])
	}
}

// patch adds what is missing and nothing else, if the pod is the one that was read
// and has not changed since: a JSON patch leaves fields alone that this program does
// not know.
func (c *candidate) patch(w Waits) ([]byte, error) {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	ops := []op{
		{"test", "/metadata/uid", c.uid},
		{"replace", "/metadata/resourceVersion", c.version},
	}
	if c.bare {
		ops = append(ops, op{"add", "/spec/tolerations", []corev1.Toleration{}})
	}
	for _, key := range c.lacks {
		ops = append(ops, op{"add", "/spec/tolerations/-", w.toleration(key)})
	}
	return json.Marshal(ops)
}

// Pods is how many pods lack tolerations.
func (p *Plan) Pods() int { return len(p.pods) }

// Work is what there is to add to one owner's pods in a namespace, or what became of it.
type Work struct {
	Namespace string `json:"namespace"`
	Owner     Owner  `json:"owner"`
	// Adds are the keys of the tolerations that the pods lack.
	Adds []string `json:"adds"`
	Pods []Pod    `json:"pods"`
	// Mended got them; Whole had them when they were read again; Gone are no longer there.
	Mended int `json:"mended"`
	Whole  int `json:"whole_already"`
	Gone   int `json:"gone"`
	// Failed are those that the API server refused.
	Failed []Failure `json:"failed,omitempty"`
}

// Failure is a pod that could not be mended.
type Failure struct {
	Pod   Pod    `json:"pod"`
	Error string `json:"error"`
}

// Backfill is a plan, or what became of it.
type Backfill struct {
	// DryRun: nothing was tried.
	DryRun bool   `json:"dry_run"`
	Work   []Work `json:"items"`
	// Looked is how many pods were looked at, Lacking how many of them lack tolerations.
	Looked  int `json:"pods_looked_at"`
	Lacking int `json:"pods_lacking"`
	Mended  int `json:"mended"`
	Whole   int `json:"whole_already"`
	Gone    int `json:"gone"`
	Failed  int `json:"failed"`
	// Left is how many were not tried.
	Left int `json:"left"`
}

// Report is the plan as it stands, by namespace and owner.
func (p *Plan) Report(dryRun bool) *Backfill {
	r := &Backfill{DryRun: dryRun, Work: []Work{}, Looked: p.looked, Lacking: len(p.pods)}
	type place struct {
		namespace string
		owner     Owner
		adds      int
	}
	index := map[place]int{}
	for _, c := range p.pods {
		at := place{c.namespace, c.owner, len(c.lacks)}
		if len(c.lacks) == 1 {
			at.adds = -1 - slices.Index(taintKeys, c.lacks[0])
		}
		i, ok := index[at]
		if !ok {
			i = len(r.Work)
			index[at] = i
			r.Work = append(r.Work, Work{Namespace: c.namespace, Owner: c.owner, Adds: slices.Clone(c.lacks)})
		}
		r.count(&r.Work[i], c)
	}
	slices.SortStableFunc(r.Work, func(a, b Work) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), a.Owner.compare(b.Owner), slices.Compare(a.Adds, b.Adds))
	})
	return r
}

func (r *Backfill) count(w *Work, c *candidate) {
	pod := Pod{Name: c.name, UID: string(c.uid)}
	w.Pods = append(w.Pods, pod)
	switch c.outcome {
	case mended:
		r.Mended++
		w.Mended++
	case whole:
		r.Whole++
		w.Whole++
	case gone:
		r.Gone++
		w.Gone++
	case failed:
		r.Failed++
		w.Failed = append(w.Failed, Failure{Pod: pod, Error: c.err.Error()})
	default:
		r.Left++
	}
}
