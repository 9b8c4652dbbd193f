package wire

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// Event translates an event of a feed. An object of a kind that the engine does
// not decide on becomes an event with nothing in it, which it counts.
func Event(e *reprievev1.Event) engine.Event {
	out := engine.Event{Type: engine.EventUpsert}
	if e.GetType() == reprievev1.Event_EVENT_TYPE_DELETE {
		out.Type = engine.EventDelete
	}
	switch o := e.GetObject().(type) {
	case *reprievev1.Event_Node:
		out.Node = Node(o.Node)
	case *reprievev1.Event_Pod:
		out.Pod = Pod(o.Pod)
	case *reprievev1.Event_LeaseRenewals:
		out.Leases = leases(o.LeaseRenewals)
	}
	return out
}

// Node translates a node.
func Node(n *reprievev1.Node) *engine.Node {
	out := &engine.Node{Name: n.GetName(), UID: n.GetUid(), Health: healthNode(n)}
	for _, t := range n.GetTaints() {
		out.Taints = append(out.Taints, engine.ObservedTaint{
			Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect(), TimeAdded: Time(t.GetTimeAdded()),
		})
	}
	return out
}

// Pod translates a pod. Its binding time is D8's: the PodScheduled condition's,
// else the start time, else the creation time.
func Pod(p *reprievev1.Pod) *engine.Pod {
	out := &engine.Pod{
		Namespace: p.GetNamespace(), Name: p.GetName(), UID: p.GetUid(), Node: p.GetNodeName(),
		Tolerations: Tolerations(p.GetTolerations()),
		Terminating: p.GetDeletionTime() != nil,
		Finished:    p.GetPhase() == string(corev1.PodSucceeded) || p.GetPhase() == string(corev1.PodFailed),
		Mirror:      p.GetMirror(), DisruptionReason: p.GetDisruptionReason(),
		Owner: owner(p.GetOwnerReferences()),
	}
	for _, ts := range []*timestamppb.Timestamp{p.GetScheduledTime(), p.GetStartTime(), p.GetCreationTime()} {
		if ts != nil {
			out.BoundAt = Time(ts)
			break
		}
	}
	return out
}

// owner is the UID of the managing controller, else of the first owner.
func owner(refs []*reprievev1.OwnerReference) string {
	for _, r := range refs {
		if r.GetController() {
			return r.GetUid()
		}
	}
	if len(refs) > 0 {
		return refs[0].GetUid()
	}
	return ""
}

// Tolerations translates a pod's tolerations, keeping their order.
func Tolerations(list []*reprievev1.Toleration) []corev1.Toleration {
	if len(list) == 0 {
		return nil
	}
	out := make([]corev1.Toleration, len(list))
	for i, t := range list {
		out[i] = corev1.Toleration{
			Key: t.GetKey(), Operator: corev1.TolerationOperator(t.GetOperator()), Value: t.GetValue(),
			Effect: corev1.TaintEffect(t.GetEffect()), TolerationSeconds: t.TolerationSeconds,
		}
	}
	return out
}

// TolerationProto translates a toleration back; nil stays nil.
func TolerationProto(t *corev1.Toleration) *reprievev1.Toleration {
	if t == nil {
		return nil
	}
	return &reprievev1.Toleration{
		Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect), TolerationSeconds: t.TolerationSeconds,
	}
}

// Time translates an instant; absent is the zero time.
func Time(ts *timestamppb.Timestamp) time.Time {
	if ts == nil {
		return time.Time{}
	}
	return ts.AsTime()
}

// Timestamp translates an instant back; the zero time is absent.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Duration translates a duration; zero is absent.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
