package codec

import (
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/record"
)

// EncodeEviction is the value of an eviction, open or closed. Its hold is not
// written, and DUE is written as WAITING.
func EncodeEviction(r *engine.EvictionRecord) ([]byte, error) {
	var n numbers
	m := &storev1.EvictionRecord{
		Namespace: r.Namespace, Pod: r.Pod, Uid: r.UID, Node: r.Node, NodeUid: r.NodeUID,
		State: put(&n, states, record.State(r.State)), BoundAt: stamp(r.BoundAt), Due: stamp(r.Due),
		Cause: encodeCause(&n, &r.Cause), Delivery: encodeDelivery(&n, r.Delivery),
		Attempts: r.Attempts, NoAnswers: r.NoAnswers, NotBefore: stamp(r.NotBefore),
		LastOutcome: put(&n, outcomes, r.LastOutcome), LastMessage: text(r.LastMessage),
		OpenedAt: stamp(r.OpenedAt), FirstSentAt: stamp(r.FirstSentAt), LastSentAt: stamp(r.LastSentAt),
		ResultAt: stamp(r.ResultAt), ConfirmBy: stamp(r.ConfirmBy), ClosedAt: stamp(r.ClosedAt),
		CloseReason: put(&n, closeReasons, r.CloseReason), CancelCause: put(&n, cancelCauses, r.CancelCause),
		FirstDue: stamp(r.FirstDue), Observed: encodeObservation(&n, r.Observed), Revision: r.Revision,
	}
	if n.err != nil {
		return nil, n.err
	}
	for i := range r.Requests {
		q := &r.Requests[i]
		m.Requests = append(m.Requests, &storev1.RequestRecord{
			Id: q.ID, Requester: q.Requester, Reason: text(q.Reason), NotBefore: stamp(q.NotBefore), RequestedAt: stamp(q.RequestedAt),
		})
	}
	return marshal(KindEviction, m)
}

// DecodeEviction reads an eviction, open or closed.
func DecodeEviction(cluster string, seq uint64, b []byte) (*engine.EvictionRecord, error) {
	m := &storev1.EvictionRecord{}
	if err := unmarshal(KindEviction, b, m); err != nil {
		return nil, err
	}
	if m.GetUid() == "" {
		return nil, fmt.Errorf("%w: eviction without the UID of a pod", store.ErrDamaged)
	}
	var n numbers
	r := &engine.EvictionRecord{
		Cluster: cluster, Seq: seq,
		Namespace: m.GetNamespace(), Pod: m.GetPod(), UID: m.GetUid(), Node: m.GetNode(), NodeUID: m.GetNodeUid(),
		State: get(&n, states, m.GetState()), BoundAt: instant(m.GetBoundAt()), Due: instant(m.GetDue()),
		Cause: decodeCause(&n, m.GetCause()), Delivery: decodeDelivery(&n, m.GetDelivery()),
		Attempts: m.GetAttempts(), NoAnswers: m.GetNoAnswers(), NotBefore: instant(m.GetNotBefore()),
		LastOutcome: get(&n, outcomes, m.GetLastOutcome()), LastMessage: m.GetLastMessage(),
		OpenedAt: instant(m.GetOpenedAt()), FirstSentAt: instant(m.GetFirstSentAt()), LastSentAt: instant(m.GetLastSentAt()),
		ResultAt: instant(m.GetResultAt()), ConfirmBy: instant(m.GetConfirmBy()), ClosedAt: instant(m.GetClosedAt()),
		CloseReason: get(&n, closeReasons, m.GetCloseReason()), CancelCause: get(&n, cancelCauses, m.GetCancelCause()),
		FirstDue: instant(m.GetFirstDue()), Observed: decodeObservation(&n, m.GetObserved()), Revision: m.GetRevision(),
	}
	for _, q := range m.GetRequests() {
		r.Requests = append(r.Requests, engine.Request{
			ID: q.GetId(), Requester: q.GetRequester(), Reason: q.GetReason(),
			NotBefore: instant(q.GetNotBefore()), RequestedAt: instant(q.GetRequestedAt()),
		})
	}
	if n.err != nil {
		return nil, n.err
	}
	return r, nil
}

func encodeCause(n *numbers, c *engine.Cause) *storev1.CauseRecord {
	m := &storev1.CauseRecord{
		Kind: put(n, causeKinds, c.Kind), Start: stamp(c.Start), Toleration: encodeToleration(c.Toleration),
		DefaultToleration: c.Default, RequestId: c.RequestID, Requester: c.Requester,
	}
	if c.Taint != (engine.Taint{}) {
		m.Taint = encodeTaint(&c.Taint)
	}
	return m
}

func decodeCause(n *numbers, m *storev1.CauseRecord) engine.Cause {
	return engine.Cause{
		Kind: get(n, causeKinds, m.GetKind()), Taint: decodeTaint(m.GetTaint()), Start: instant(m.GetStart()),
		Toleration: decodeToleration(m.GetToleration()), Default: m.GetDefaultToleration(),
		RequestID: m.GetRequestId(), Requester: m.GetRequester(),
	}
}

func encodeDelivery(n *numbers, d *engine.Delivery) *storev1.DeliveryRecord {
	if d == nil {
		return nil
	}
	return &storev1.DeliveryRecord{
		Token: d.Token, ExecutorId: d.ExecutorID, SentAt: stamp(d.SentAt), Deadline: stamp(d.Deadline),
		Recall: put(n, recallReasons, d.Recall), RecallCause: put(n, cancelCauses, d.RecallCause),
	}
}

func decodeDelivery(n *numbers, m *storev1.DeliveryRecord) *engine.Delivery {
	if m == nil {
		return nil
	}
	return &engine.Delivery{
		Token: m.GetToken(), ExecutorID: m.GetExecutorId(), SentAt: instant(m.GetSentAt()), Deadline: instant(m.GetDeadline()),
		Recall: get(n, recallReasons, m.GetRecall()), RecallCause: get(n, cancelCauses, m.GetRecallCause()),
	}
}

func encodeObservation(n *numbers, o *engine.Observation) *storev1.ObservationRecord {
	if o == nil {
		return nil
	}
	return &storev1.ObservationRecord{
		DeletedAt: stamp(o.DeletedAt), Reason: text(o.Reason), Standing: put(n, standings, o.Standing), TaintSince: stamp(o.TaintSince),
	}
}

func decodeObservation(n *numbers, m *storev1.ObservationRecord) *engine.Observation {
	if m == nil {
		return nil
	}
	return &engine.Observation{
		DeletedAt: instant(m.GetDeletedAt()), Reason: m.GetReason(), Standing: get(n, standings, m.GetStanding()), TaintSince: instant(m.GetTaintSince()),
	}
}
