package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// podRef reads a pod argument: NAMESPACE/NAME, or NAME in -n (default "default").
// A uid alone will do too.
func (a *app) podRef(args []string, uid string) (*reprievev1.PodRef, error) {
	ref := &reprievev1.PodRef{Uid: uid}
	if len(args) == 0 {
		if uid == "" {
			return nil, usagef("say which pod: NAMESPACE/NAME, NAME with -n, or --uid")
		}
		return ref, nil
	}
	ns, name, ok := strings.Cut(args[0], "/")
	if !ok {
		ns, name = a.flags.namespace, args[0]
		if ns == "" {
			ns = "default"
		}
	} else if a.flags.namespace != "" && a.flags.namespace != ns {
		return nil, usagef("-n %s and the pod %s name two namespaces", a.flags.namespace, args[0])
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return nil, usagef("%q is no pod; write NAMESPACE/NAME, or NAME with -n", args[0])
	}
	ref.Namespace, ref.Name = ns, name
	return ref, nil
}

func newExplain(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain why a pod leaves or stays, or a node has its taints, and when",
		RunE: func(*cobra.Command, []string) error {
			return usagef("say what: explain pod NAMESPACE/NAME or explain node NAME")
		},
		Args: cobra.NoArgs,
	}
	var uid string
	pod := &cobra.Command{
		Use:   "pod [NAMESPACE/]NAME",
		Short: "Every step of one pod's decision",
		Long: `Prints each NoExecute taint of the pod's node with its start, the toleration that
answers it, the wait and the due instant; the holds that keep the pod back now; what the
pod's owner should know; and what would change the decision.`,
		Example: `  reprieve explain pod web/frontend-7d9c5 --cluster prod
  reprieve explain pod frontend-7d9c5 -n web --cluster prod -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := a.flags.needCluster()
			if err != nil {
				return err
			}
			ref, err := a.podRef(args, uid)
			if err != nil {
				return err
			}
			return a.query(cmd.Context(), func(ctx context.Context, q reprievev1.QueryServiceClient) error {
				x, err := q.ExplainPod(ctx, &reprievev1.ExplainPodRequest{Cluster: cluster, Pod: ref})
				if err != nil {
					return err
				}
				if a.flags.output != outputTable {
					return a.printMessage(x)
				}
				a.printExplanation(x)
				return nil
			})
		},
	}
	pod.Flags().StringVar(&uid, "uid", "", "the pod's UID")
	cmd.AddCommand(pod, newExplainNode(a))
	return cmd
}

func (a *app) printExplanation(x *reprievev1.ExplainPodResponse) {
	now := a.Clock.Now()
	if x.GetNow() != nil {
		now = x.GetNow().AsTime()
	}
	s := newSheet(a.Out)
	s.row("Pod", podWord(x.GetNamespace(), x.GetPod())+" (uid "+x.GetUid()+")")
	s.row("Cluster", x.GetCluster()+", mode "+modeWord(x.GetMode())+", feed "+word(x.GetSyncState(), "SYNC_STATE_"))
	node := orDash(x.GetNode().GetName())
	if x.GetNode() != nil && !x.GetNode().GetKnown() {
		node += " (the feed has not shown it)"
	}
	s.row("Node", node+", bound "+instant(x.GetBoundTime()))
	s.row("Decision", verdictLine(x.GetDecision(), x.GetEviction(), now))
	var steps []string
	for i, st := range x.GetDecision().GetSteps() {
		mark := "-"
		if d := x.GetDecision(); d.DecidingStep != nil && int(d.GetDecidingStep()) == i {
			mark = ">"
		}
		steps = append(steps, mark+" "+stepLine(st, x.GetTolerations(), now))
	}
	s.block("Taints (> decides)", steps...)
	var tols []string
	for i, t := range x.GetTolerations() {
		tols = append(tols, fmt.Sprintf("%d  %s", i, tolerationWord(t)))
	}
	s.block("Tolerations", tols...)
	var requests []string
	for _, r := range x.GetEviction().GetRequests() {
		requests = append(requests, fmt.Sprintf("%s/%s, not before %s: %s", r.GetRequester(), r.GetRequestId(), instant(r.GetNotBefore()), orDash(r.GetReason())))
	}
	s.block("Requests", requests...)
	if e := x.GetEviction(); e != nil {
		s.row("Eviction", e.GetId()+" "+stateWord(e, now)+fmt.Sprintf(", %d failed orders", e.GetAttempts()))
	}
	var holds []string
	for _, h := range x.GetHolds() {
		holds = append(holds, word(h, "HOLD_REASON_"))
	}
	s.row("Holds", orDash(strings.Join(holds, ", ")))
	if r := x.GetReprieve(); r != nil {
		s.row("Reprieve", "ends "+ends(r.GetEndTime(), now)+", by "+orDash(r.GetActor())+": "+r.GetReason())
	}
	s.block("Warnings", x.GetWarnings()...)
	s.block("What would change it", x.GetWhatWouldChange()...)
}

func verdictLine(d *reprievev1.Decision, e *reprievev1.Eviction, now time.Time) string {
	switch d.GetVerdict() {
	case reprievev1.Decision_VERDICT_LEAVE:
		return "leaves " + dueInstant(d.GetDueTime(), now) + ", for " + causeWord(leaveCause(d, e))
	case reprievev1.Decision_VERDICT_NOT_SUBJECT:
		return "stays: " + d.GetExemption()
	default:
		return "stays: nothing makes it leave"
	}
}

// leaveCause is the deciding taint, or else what the open eviction names.
func leaveCause(d *reprievev1.Decision, e *reprievev1.Eviction) *reprievev1.Cause {
	if d.DecidingStep == nil || int(d.GetDecidingStep()) >= len(d.GetSteps()) {
		return e.GetCause()
	}
	st := d.GetSteps()[d.GetDecidingStep()]
	c := &reprievev1.TaintCause{Taint: st.GetTaint().GetTaint(), DefaultToleration: st.GetDefaultToleration(), Wait: st.GetWait()}
	if st.TolerationIndex != nil {
		c.Toleration = &reprievev1.Toleration{}
	}
	return &reprievev1.Cause{Cause: &reprievev1.Cause_Taint{Taint: c}}
}

// stepLine says what one taint means for the pod.
func stepLine(st *reprievev1.DecisionStep, tols []*reprievev1.Toleration, now time.Time) string {
	line := taintWord(st.GetTaint().GetTaint()) + " since " + instant(st.GetTaint().GetStart())
	switch {
	case st.GetRejected():
		return line + ": rejected by an operator"
	case st.GetIgnored():
		return line + ": ignored by the policy"
	case st.GetDefaultToleration():
		line += ": default toleration (" + lasting(st.GetWait()) + ")"
	case st.TolerationIndex != nil:
		line += fmt.Sprintf(": toleration %d", st.GetTolerationIndex())
		if st.GetForever() {
			line += ", for ever"
		} else {
			line += " (" + lasting(st.GetWait()) + ")"
		}
	default:
		line += ": not tolerated"
	}
	if len(st.GetHiddenTolerationIndexes()) > 0 {
		line += fmt.Sprintf(" (hides %v)", st.GetHiddenTolerationIndexes())
	}
	if st.GetForever() {
		return line
	}
	if st.GetStart().AsTime().After(st.GetTaint().GetStart().AsTime()) {
		line += " from the pod's binding"
	}
	return line + ", " + countdown(st.GetDueTime(), now)
}

// tolerationWord writes a toleration in one line.
func tolerationWord(t *reprievev1.Toleration) string {
	key, op := t.GetKey(), t.GetOperator()
	if key == "" {
		key = "any key"
	}
	if op == "" {
		op = "Equal"
	}
	s := key + " " + op
	if op != "Exists" {
		s += fmt.Sprintf(" %q", t.GetValue())
	}
	effect := t.GetEffect()
	if effect == "" {
		effect = "any effect"
	}
	s += ", " + effect
	switch {
	case t.TolerationSeconds == nil:
		s += ", for ever"
	default:
		s += fmt.Sprintf(", for %ds", t.GetTolerationSeconds())
	}
	return s
}
