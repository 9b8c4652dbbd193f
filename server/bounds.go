package server

import (
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// contractValidator checks messages against the rules of the contract. The rules
// are read from it and interpreted, which takes longer than all else that becomes of an
// event. So a batch is looked at by code first: one whose every part is plainly
// within its bounds is let through, any other is left to the rules, which say
// what is wrong with it. TestBoundsKeepTheRules holds the code to the rules. What
// they do not see, a Duration or a Timestamp that is malformed, is looked for after them.
type contractValidator struct{ protovalidate.Validator }

// Validate implements protovalidate.Validator.
func (v contractValidator) Validate(m proto.Message, opts ...protovalidate.ValidationOption) error {
	if r, ok := m.(*reprievev1.FeedRequest); ok && plainBatch(r) {
		return nil
	}
	if err := v.Validator.Validate(m, opts...); err != nil {
		return err
	}
	return wholeTimes(m)
}

// plainBatch reports whether a message is a batch that surely keeps the rules.
func plainBatch(r *reprievev1.FeedRequest) bool {
	b, ok := r.GetMessage().(*reprievev1.FeedRequest_Batch)
	return ok && r.GetSequence() > 0 && len(b.Batch.GetEvents()) <= maxBatchEvents && all(b.Batch.GetEvents(), plainEvent)
}

func plainEvent(e *reprievev1.Event) bool {
	if t := e.GetType(); t != reprievev1.Event_EVENT_TYPE_UPSERT && t != reprievev1.Event_EVENT_TYPE_DELETE {
		return false
	}
	switch o := e.GetObject().(type) {
	case *reprievev1.Event_Pod:
		return plainPod(o.Pod)
	case *reprievev1.Event_Node:
		return plainNode(o.Node)
	}
	return false
}

func plainPod(p *reprievev1.Pod) bool {
	return named(p.GetNamespace(), 63) && named(p.GetName(), 253) && named(p.GetUid(), 128) &&
		len(p.GetNodeName()) <= 253 && len(p.GetPhase()) <= 64 && len(p.GetPriorityClassName()) <= 253 &&
		len(p.GetResourceVersion()) <= 256 && len(p.GetDisruptionReason()) <= 1024 &&
		plainLabels(p.GetLabels()) &&
		len(p.GetOwnerReferences()) <= 64 && all(p.GetOwnerReferences(), plainOwner) &&
		len(p.GetTolerations()) <= 1024 && all(p.GetTolerations(), plainToleration) &&
		plainTime(p.GetScheduledTime()) && plainTime(p.GetStartTime()) && plainTime(p.GetCreationTime()) &&
		plainTime(p.GetDeletionTime()) && plainTime(p.GetDisruptionTime())
}

func plainNode(n *reprievev1.Node) bool {
	return named(n.GetName(), 253) && named(n.GetUid(), 128) && len(n.GetResourceVersion()) <= 256 &&
		plainLabels(n.GetLabels()) &&
		len(n.GetTaints()) <= 1024 && all(n.GetTaints(), plainTaint) &&
		len(n.GetConditions()) <= 256 && all(n.GetConditions(), plainCondition) && plainTime(n.GetCreationTime())
}

func plainOwner(o *reprievev1.OwnerReference) bool {
	return len(o.GetApiVersion()) <= 256 && len(o.GetKind()) <= 256 && len(o.GetName()) <= 253 && len(o.GetUid()) <= 128
}

func plainToleration(t *reprievev1.Toleration) bool {
	return len(t.GetKey()) <= 512 && len(t.GetOperator()) <= 64 && len(t.GetValue()) <= 512 && len(t.GetEffect()) <= 64
}

func plainTaint(t *reprievev1.Taint) bool {
	return named(t.GetKey(), 512) && len(t.GetValue()) <= 512 && len(t.GetEffect()) <= 64 && plainTime(t.GetTimeAdded())
}

func plainCondition(c *reprievev1.NodeCondition) bool {
	return named(c.GetType(), 256) && len(c.GetStatus()) <= 64 && len(c.GetReason()) <= 1024 &&
		plainTime(c.GetLastHeartbeatTime()) && plainTime(c.GetLastTransitionTime())
}

func plainLabels(labels map[string]string) bool {
	for k, v := range labels {
		if len(k) > 512 || len(v) > 512 {
			return false
		}
	}
	return len(labels) <= 1024
}

// plainTime reports whether an instant, if there is one, is of this era.
func plainTime(t *timestamppb.Timestamp) bool {
	const year9000 = 221845392000
	return t == nil || t.GetSeconds() >= 0 && t.GetSeconds() < year9000 && t.GetNanos() >= 0 && t.GetNanos() < 1e9
}

// named reports whether a text is there and no longer than that. The rules
// count characters; there are never more of them than bytes.
func named(s string, most int) bool { return s != "" && len(s) <= most }

func all[T any](list []*T, plain func(*T) bool) bool {
	for _, e := range list {
		if e == nil || !plain(e) {
			return false
		}
	}
	return true
}
