package engine

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Keys of the two taints that make one episode (D11) and have default tolerations (D12).
const (
	taintNotReady    = corev1.TaintNodeNotReady
	taintUnreachable = corev1.TaintNodeUnreachable
)

// maxTolerationSeconds is what a time.Duration holds; more is for ever (D5).
const maxTolerationSeconds = int64(1<<63-1) / int64(time.Second)

// discard is where matching may complain: the engine reads its answer, not its log.
var discard = klog.Logger{}

// Verdict is the kind of a [Decision].
type Verdict uint8

// The verdicts.
const (
	// VerdictNever: nothing makes the pod leave.
	VerdictNever Verdict = iota + 1
	// VerdictNotSubject: the pod is none that leaves; see Decision.Exempt.
	VerdictNotSubject
	// VerdictLeave: the pod leaves at Decision.Due.
	VerdictLeave
)

// Exemption says why a pod is not subject to eviction (D2).
type Exemption uint8

// The exemptions.
const (
	ExemptNone Exemption = iota
	ExemptUnscheduled
	ExemptTerminating
	ExemptFinished
	ExemptMirror
	ExemptNamespace
	ExemptNodeUnknown
)

// Step is what one NoExecute taint means for one pod.
type Step struct {
	Taint Taint
	// Ignored: the policy ignores the key, or an operator rejected it here.
	Ignored bool
	// Rejected: an operator rejected the key while the node had it.
	Rejected bool
	// Toleration is the index of the first matching toleration, -1 if none matches.
	Toleration int
	// Hidden are indexes of later tolerations that match too and do not count (D4).
	// Only filled when asked for.
	Hidden []int
	// Default: no toleration matches and the policy's default is used (D12).
	Default bool
	// Start is the later of the taint's start and the binding (D8).
	Start time.Time
	// Forever: the toleration has no end. Otherwise Wait is its length.
	Forever bool
	Wait    time.Duration
	// Due is Start + Wait; zero if Ignored or Forever.
	Due time.Time
}

// Decision is what the rules D1 to D12 say of one pod, with the reasons.
type Decision struct {
	Verdict Verdict
	Exempt  Exemption
	// Due is set for VerdictLeave.
	Due time.Time
	// Step is the index of the step that gives Due, -1 if a request does.
	Step int
	// Request is the index of the request that gives Due, -1 if a taint does.
	Request int
	// Steps has one entry for each NoExecute taint, in the node's order.
	Steps []Step
}

// Subject is the pod's side of a decision.
type Subject struct {
	Namespace                                  string
	Tolerations                                []corev1.Toleration
	BoundAt                                    time.Time
	Unscheduled, Terminating, Finished, Mirror bool
	Requests                                   []Request
}

// DecideInput is all that a decision depends on.
type DecideInput struct {
	Subject   Subject
	NodeKnown bool
	Taints    []Taint
	// Guards are the node's; those rejected count.
	Guards []Guard
	Policy *Policy
	// Detail asks for Step.Hidden.
	Detail bool
	// Steps is room to reuse for Decision.Steps; it may be nil.
	Steps []Step
}

// Decide says whether and when a pod must leave. It is a pure function: no
// clock, no input but its argument. A due instant in the past means now.
func Decide(in DecideInput) Decision {
	d := Decision{Verdict: VerdictNever, Step: -1, Request: -1, Steps: in.Steps[:0]}
	if d.Exempt = exemption(&in); d.Exempt != ExemptNone {
		d.Verdict = VerdictNotSubject
		return d
	}
	for i := range in.Taints {
		step := decideTaint(&in, in.Taints[i])
		d.Steps = append(d.Steps, step)
		if !step.Ignored && !step.Forever && (d.Step < 0 || step.Due.Before(d.Due)) {
			d.Verdict, d.Due, d.Step = VerdictLeave, step.Due, len(d.Steps)-1
		}
	}
	for i := range in.Subject.Requests {
		due := requestDue(&in.Subject.Requests[i])
		if d.Verdict != VerdictLeave || due.Before(d.Due) {
			d.Verdict, d.Due, d.Step, d.Request = VerdictLeave, due, -1, i
		}
	}
	return d
}

func requestDue(r *Request) time.Time {
	if r.NotBefore.After(r.RequestedAt) {
		return r.NotBefore
	}
	return r.RequestedAt
}

func exemption(in *DecideInput) Exemption {
	s := &in.Subject
	switch {
	case s.Unscheduled:
		return ExemptUnscheduled
	case s.Terminating:
		return ExemptTerminating
	case s.Finished:
		return ExemptFinished
	case s.Mirror:
		return ExemptMirror
	case slices.Contains(in.Policy.ExcludedNamespaces, s.Namespace):
		return ExemptNamespace
	case !in.NodeKnown:
		return ExemptNodeUnknown
	}
	return ExemptNone
}

func decideTaint(in *DecideInput, taint Taint) Step {
	step := Step{Taint: taint, Toleration: -1, Start: taint.Start}
	if in.Subject.BoundAt.After(step.Start) {
		step.Start = in.Subject.BoundAt
	}
	if i := guardOf(in.Guards, taint.Key); i >= 0 && in.Guards[i].Mark == GuardRejected {
		step.Rejected = true
	}
	if step.Rejected || slices.Contains(in.Policy.IgnoredTaintKeys, taint.Key) {
		step.Ignored = true
		return step
	}
	step.Toleration, step.Hidden = firstMatch(in, taint)
	switch {
	case step.Toleration >= 0:
		step.Wait, step.Forever = TolerationWait(&in.Subject.Tolerations[step.Toleration])
	case in.Policy.DisableDefaults:
	case taint.Key == taintNotReady:
		step.Default, step.Wait = true, in.Policy.DefaultNotReady
	case taint.Key == taintUnreachable:
		step.Default, step.Wait = true, in.Policy.DefaultUnreachable
	}
	if !step.Forever {
		step.Due = step.Start.Add(step.Wait)
	}
	return step
}

// firstMatch returns the index of the first toleration that matches, as
// Kubernetes does it (D3, D4), and those it hides if in.Detail is set.
func firstMatch(in *DecideInput, taint Taint) (first int, hidden []int) {
	first = -1
	kt := corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: corev1.TaintEffectNoExecute}
	for i := range in.Subject.Tolerations {
		if !in.Subject.Tolerations[i].ToleratesTaint(discard, &kt, in.Policy.ComparisonOperators) {
			continue
		}
		if first < 0 {
			first = i
			if !in.Detail {
				return first, nil
			}
			continue
		}
		hidden = append(hidden, i)
	}
	return first, hidden
}

// TolerationWait reads tolerationSeconds as D5 says: how long a taint is tolerated,
// or that it is for ever.
func TolerationWait(t *corev1.Toleration) (wait time.Duration, forever bool) {
	switch s := t.TolerationSeconds; {
	case s == nil, *s > maxTolerationSeconds:
		return 0, true
	case *s <= 0:
		return 0, false
	default:
		return time.Duration(*s) * time.Second, false
	}
}
