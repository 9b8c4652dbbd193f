package wire

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// The enums below have the same numbers on both sides; TestEnums proves it.

// Eviction translates an eviction for readers.
func Eviction(r *engine.EvictionRecord) *reprievev1.Eviction {
	out := &reprievev1.Eviction{
		Id: engine.EvictionID(r.Cluster, r.Seq), Cluster: r.Cluster, Namespace: r.Namespace, Pod: r.Pod, Uid: r.UID,
		Node: r.Node, NodeUid: r.NodeUID,
		State: reprievev1.EvictionState(r.State), Hold: reprievev1.HoldReason(r.Hold), HoldUntil: Timestamp(r.HoldUntil),
		DueTime: Timestamp(r.Due), BoundTime: Timestamp(r.BoundAt), Cause: Cause(r),
		Attempts: r.Attempts, Stuck: r.Stuck(),
		LastOutcome: reprievev1.Outcome(r.LastOutcome), LastMessage: r.LastMessage,
		OpenTime: Timestamp(r.OpenedAt), FirstSendTime: Timestamp(r.FirstSentAt), LastSendTime: Timestamp(r.LastSentAt),
		ResultTime: Timestamp(r.ResultAt), CloseTime: Timestamp(r.ClosedAt),
		CloseReason: reprievev1.CloseReason(r.CloseReason), CancelCause: reprievev1.CancelCause(r.CancelCause),
		BackOffUntil: Timestamp(r.NotBefore), Revision: strconv.FormatUint(r.Revision, 10),
		FirstDueTime: Timestamp(r.FirstDue),
	}
	if o := r.Observed; o != nil {
		out.ObservedDeletionTime, out.ObservedDisruptionReason = Timestamp(o.DeletedAt), o.Reason
		out.ObservedExplanation = o.Standing.String()
	}
	for _, q := range r.Requests {
		out.Requests = append(out.Requests, &reprievev1.Request{
			RequestId: q.ID, Requester: q.Requester, Reason: q.Reason,
			NotBefore: Timestamp(q.NotBefore), RequestTime: Timestamp(q.RequestedAt),
		})
	}
	if d := r.Delivery; d != nil {
		out.Delivery = &reprievev1.Delivery{ExecutorId: d.ExecutorID, SendTime: Timestamp(d.SentAt), Deadline: Timestamp(d.Deadline)}
	}
	return out
}

// Cause translates what gives an eviction its due instant.
func Cause(r *engine.EvictionRecord) *reprievev1.Cause {
	c := &r.Cause
	switch c.Kind {
	case engine.CauseTaint:
		return &reprievev1.Cause{Cause: &reprievev1.Cause_Taint{Taint: &reprievev1.TaintCause{
			Taint: taint(c.Taint), TaintStart: Timestamp(c.Taint.Start), Start: Timestamp(c.Start),
			Toleration: TolerationProto(c.Toleration), DefaultToleration: c.Default,
			Wait: durationpb.New(r.Due.Sub(c.Start)),
		}}}
	case engine.CauseRequest:
		q := &reprievev1.RequestCause{RequestId: c.RequestID, Requester: c.Requester}
		for i := range r.Requests {
			if r.Requests[i].ID == c.RequestID && r.Requests[i].Requester == c.Requester {
				q.Reason = r.Requests[i].Reason
			}
		}
		return &reprievev1.Cause{Cause: &reprievev1.Cause_Request{Request: q}}
	}
	return nil
}

func taint(t engine.Taint) *reprievev1.Taint {
	return &reprievev1.Taint{Key: t.Key, Value: t.Value, Effect: string(corev1.TaintEffectNoExecute), TimeAdded: Timestamp(t.TimeAdded)}
}

// Order translates an order for an executor.
func Order(o *engine.Order) *reprievev1.Order {
	if o.Node != nil {
		return &reprievev1.Order{
			Token: o.Token, DeadlineIn: durationpb.New(o.DeadlineIn), Attempt: o.Attempt,
			Action: &reprievev1.Order_UpdateNode{UpdateNode: updateNode(o.Node)},
		}
	}
	r := o.Eviction
	pod := &reprievev1.EvictPod{
		Cluster: r.Cluster, Namespace: r.Namespace, Name: r.Pod, Uid: r.UID, Node: r.Node,
		Method: reprievev1.EvictionMethod(o.Method), Cause: Cause(r), DueTime: Timestamp(r.Due),
	}
	if o.Method == engine.MethodEvictThenDelete {
		pod.BudgetWait = durationpb.New(o.BudgetWait)
	}
	return &reprievev1.Order{
		Token: o.Token, DeadlineIn: durationpb.New(o.DeadlineIn), Attempt: o.Attempt, EvictionId: o.EvictionID,
		Action: &reprievev1.Order_EvictPod{EvictPod: pod},
	}
}

// Result translates an executor's answer.
func Result(r *reprievev1.Result) engine.Result {
	out := engine.Result{Token: r.GetToken(), Outcome: engine.Outcome(r.GetOutcome()), Message: r.GetMessage()}
	if r.GetRetryAfter() != nil {
		out.RetryAfter = r.GetRetryAfter().AsDuration()
	}
	return out
}

// Reprieve translates a reprieve.
func Reprieve(r *engine.ReprieveRecord) *reprievev1.Reprieve {
	if r == nil {
		return nil
	}
	return &reprievev1.Reprieve{
		Cluster: r.Cluster, Namespace: r.Namespace, Pod: r.Pod, Uid: r.UID, Reason: r.Reason, Actor: r.Actor,
		CreateTime: Timestamp(r.CreatedAt), EndTime: Timestamp(r.Until),
	}
}

// Pause translates a pause.
func Pause(cluster string, p *engine.Pause) *reprievev1.Pause {
	return &reprievev1.Pause{
		Id: p.ID, Cluster: cluster, Node: p.Node, Namespace: p.Namespace, Reason: p.Reason, Actor: p.Actor,
		CreateTime: Timestamp(p.CreatedAt), EndTime: Timestamp(p.Until),
	}
}

// Decision translates a decision with its steps; now is only for readers' waits.
func Decision(d *engine.Decision) *reprievev1.Decision {
	out := &reprievev1.Decision{Verdict: reprievev1.Decision_Verdict(d.Verdict), DueTime: Timestamp(d.Due)}
	if d.Exempt != engine.ExemptNone {
		out.Exemption = d.Exempt.String()
	}
	if d.Step >= 0 {
		i := uint32(d.Step)
		out.DecidingStep = &i
	}
	for i := range d.Steps {
		out.Steps = append(out.Steps, step(&d.Steps[i]))
	}
	return out
}

func step(s *engine.Step) *reprievev1.DecisionStep {
	out := &reprievev1.DecisionStep{
		Taint: &reprievev1.NodeTaint{Taint: taint(s.Taint), Start: Timestamp(s.Taint.Start)}, Ignored: s.Ignored, Rejected: s.Rejected,
		DefaultToleration: s.Default, Start: Timestamp(s.Start), Forever: s.Forever, DueTime: Timestamp(s.Due),
	}
	if !s.Forever && !s.Ignored {
		out.Wait = durationpb.New(s.Wait)
	}
	if s.Toleration >= 0 {
		i := uint32(s.Toleration)
		out.TolerationIndex = &i
	}
	for _, h := range s.Hidden {
		out.HiddenTolerationIndexes = append(out.HiddenTolerationIndexes, uint32(h))
	}
	return out
}

// NodeView translates a node for readers.
func NodeView(n *engine.NodeStatus) *reprievev1.NodeView {
	out := &reprievev1.NodeView{
		Cluster: n.Cluster, Name: n.Name, Uid: n.UID, Known: n.Known, EpisodeStart: Timestamp(n.EpisodeStart),
		Pods: uint64(n.Pods), OpenEvictions: uint64(n.Open),
	}
	for _, t := range n.Taints {
		out.Taints = append(out.Taints, &reprievev1.NodeTaint{Taint: taint(t), Start: Timestamp(t.Start)})
	}
	out.Health = nodeHealth(n.Health)
	return out
}

// Explanation translates the explanation of a pod.
func Explanation(x *engine.PodExplanation) *reprievev1.ExplainPodResponse {
	out := &reprievev1.ExplainPodResponse{
		Cluster: x.Cluster, Namespace: x.Namespace, Pod: x.Pod, Uid: x.UID, Node: NodeView(&x.NodeStatus),
		BoundTime: Timestamp(x.BoundAt), Decision: Decision(&x.Decision), Now: Timestamp(x.Now),
		Mode: reprievev1.Mode(x.Mode), SyncState: reprievev1.Cluster_SyncState(x.Sync),
		Reprieve: Reprieve(x.Reprieve), Warnings: x.Warnings, WhatWouldChange: x.Change,
	}
	for i := range x.Tolerations {
		out.Tolerations = append(out.Tolerations, TolerationProto(&x.Tolerations[i]))
	}
	for _, h := range x.Holds {
		out.Holds = append(out.Holds, reprievev1.HoldReason(h))
	}
	if x.Eviction != nil {
		out.Eviction = Eviction(x.Eviction)
	}
	return out
}

// Simulated translates one pod's fate under hypothetical taints.
func Simulated(p *engine.SimulatedPod, now time.Time) *reprievev1.SimulatedPod {
	out := &reprievev1.SimulatedPod{Namespace: p.Namespace, Pod: p.Pod, Uid: p.UID, Node: p.Node, Decision: Decision(&p.Decision)}
	if p.Decision.Verdict == engine.VerdictLeave {
		out.DueIn = durationpb.New(max(p.Decision.Due.Sub(now), 0))
	}
	return out
}
