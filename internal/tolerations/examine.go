package tolerations

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reprieve-dev/reprieve/engine"
)

// Kind says what there is to know of a pod's tolerations.
type Kind string

// The kinds, the gravest first.
const (
	// LeavesAtOnce: nothing tolerates one of the taints of a node that is not ready
	// or unreachable.
	LeavesAtOnce Kind = "LEAVES_AT_ONCE"
	// CannotMatch: a toleration that matches no taint, or names a taint of such a
	// node in a way in which it is never set.
	CannotMatch Kind = "CANNOT_MATCH"
	// Hidden: a toleration whose wait never counts, because an earlier one with
	// another wait matches all that it does.
	Hidden Kind = "HIDDEN"
	// NeverEnds: the pod stays on a node that is not ready or unreachable for ever.
	NeverEnds Kind = "NEVER_ENDS"
)

// Kinds are all kinds in their order.
var Kinds = []Kind{LeavesAtOnce, CannotMatch, Hidden, NeverEnds}

// Finding is one thing to know of a pod's tolerations.
type Finding struct {
	Kind Kind `json:"finding"`
	// Taints are the keys that it concerns, of LeavesAtOnce and NeverEnds.
	Taints []string `json:"taints,omitempty"`
	// Toleration is the one that it concerns, but of LeavesAtOnce.
	Toleration *corev1.Toleration `json:"toleration,omitempty"`
	// HiddenBy is the one that counts instead, of Hidden.
	HiddenBy *corev1.Toleration `json:"hidden_by,omitempty"`
}

// taintKeys are those of the taints of a node that is not ready or unreachable. They
// are set without a value.
var taintKeys = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// unheard stands for a key or a value that no toleration names: no taint can have it.
const unheard = "\x00"

// examiner looks at pods under a policy without default tolerations.
type examiner struct{ policy engine.Policy }

func newExaminer(comparisonOperators bool) *examiner {
	return &examiner{policy: engine.Policy{DisableDefaults: true, ComparisonOperators: comparisonOperators}}
}

// decide takes the engine's decision of a pod on a node with these taints.
func (x *examiner) decide(pod *corev1.Pod, taints ...engine.Taint) engine.Decision {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return engine.Decide(engine.DecideInput{
		Subject: engine.Subject{
			Namespace: pod.Namespace, Tolerations: pod.Spec.Tolerations, Mirror: mirror,
			Terminating: pod.DeletionTimestamp != nil,
			Finished:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		},
		NodeKnown: true, Taints: taints, Policy: &x.policy,
	})
}

// steps are the decision's for each of taintKeys; nil if the pod is none that leaves.
func (x *examiner) steps(pod *corev1.Pod) []engine.Step {
	var taints []engine.Taint
	for _, k := range taintKeys {
		taints = append(taints, engine.Taint{Key: k})
	}
	return x.decide(pod, taints...).Steps
}

// missing are those of taintKeys that nothing tolerates.
func (x *examiner) missing(pod *corev1.Pod) (keys []string) {
	for _, s := range x.steps(pod) {
		if s.Toleration < 0 {
			keys = append(keys, s.Taint.Key)
		}
	}
	return keys
}

// findings are all that there is to know of a pod; subject is false for one that
// never leaves for taints, of which there is nothing.
func (x *examiner) findings(pod *corev1.Pod) (list []Finding, subject bool) {
	steps := x.steps(pod)
	if len(steps) == 0 {
		return nil, false
	}
	if keys := x.missing(pod); len(keys) > 0 {
		list = append(list, Finding{Kind: LeavesAtOnce, Taints: keys})
	}
	hidden := []Finding{}
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if t.Effect != "" && t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if !x.canMatch(pod, t) {
			list = append(list, Finding{Kind: CannotMatch, Toleration: t})
		} else if by := x.hider(pod, i); by != nil && !sameWait(by, t) {
			hidden = append(hidden, Finding{Kind: Hidden, Toleration: t, HiddenBy: by})
		}
	}
	list = append(list, hidden...)
	return append(list, neverEnding(pod, steps)...), true
}

// canMatch reports whether a taint can be there that the toleration matches.
func (x *examiner) canMatch(pod *corev1.Pod, t *corev1.Toleration) bool {
	if slices.Contains(taintKeys, t.Key) {
		alone := *pod
		alone.Spec.Tolerations = []corev1.Toleration{*t}
		return x.decide(&alone, engine.Taint{Key: t.Key}).Steps[0].Toleration == 0
	}
	compares := t.Operator == corev1.TolerationOpGt || t.Operator == corev1.TolerationOpLt
	return !compares || x.policy.ComparisonOperators
}

// hider is the earlier toleration that matches every NoExecute taint that the one
// of this index does; nil if there is none.
func (x *examiner) hider(pod *corev1.Pod, index int) *corev1.Toleration {
	t := &pod.Spec.Tolerations[index]
	probe := engine.Taint{Key: t.Key, Value: unheard}
	switch {
	case t.Key == "":
		probe.Key = unheard
	case slices.Contains(taintKeys, t.Key):
		probe.Value = ""
	case t.Operator == "" || t.Operator == corev1.TolerationOpEqual:
		probe.Value = t.Value
	}
	if first := x.decide(pod, probe).Steps[0].Toleration; first >= 0 && first < index {
		return &pod.Spec.Tolerations[first]
	}
	return nil
}

func sameWait(a, b *corev1.Toleration) bool {
	wa, fa := engine.TolerationWait(a)
	wb, fb := engine.TolerationWait(b)
	return wa == wb && fa == fb
}

// neverEnding are the tolerations that keep a pod on its node for ever. Those of a
// DaemonSet's pods are left out: its controller adds them to each.
func neverEnding(pod *corev1.Pod, steps []engine.Step) (list []Finding) {
	if ofDaemonSet(pod) {
		return nil
	}
	for _, s := range steps {
		if !s.Forever {
			continue
		}
		t := &pod.Spec.Tolerations[s.Toleration]
		if n := len(list); n > 0 && list[n-1].Toleration == t {
			list[n-1].Taints = append(list[n-1].Taints, s.Taint.Key)
			continue
		}
		list = append(list, Finding{Kind: NeverEnds, Taints: []string{s.Taint.Key}, Toleration: t})
	}
	return list
}

func ofDaemonSet(pod *corev1.Pod) bool {
	c := metav1.GetControllerOf(pod)
	return c != nil && c.Kind == "DaemonSet"
}
