package codec

import (
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store"
)

// DecodeEviction reads an eviction, open or closed.
func DecodeEviction(cluster string, seq uint64, b []byte) (*engine.EvictionRecord, error) {
	m := &storev1.EvictionRecord{}
	if err := unmarshal(KindEviction, b, m); err != nil {
		return nil, err
	}
	uid, err := textOf(m.GetUidBytes(), m.GetUid())
	if err != nil {
		return nil, err
	}
	if uid == "" {
		return nil, fmt.Errorf("%w: eviction without the UID of a pod", store.ErrDamaged)
	}
	nodeUID, err := textOf(m.GetNodeUidBytes(), m.GetNodeUid())
	if err != nil {
		return nil, err
	}
	var n numbers
	r := &engine.EvictionRecord{
		Cluster: cluster, Seq: seq,
		Namespace: m.GetNamespace(), Pod: m.GetPod(), UID: uid, Node: m.GetNode(), NodeUID: nodeUID,
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
	if err := readInstants(m.GetInstants(), r); err != nil {
		return nil, err
	}
	return r, nil
}

func decodeCause(n *numbers, m *storev1.CauseRecord) engine.Cause {
	return engine.Cause{
		Kind: get(n, causeKinds, m.GetKind()), Taint: decodeTaint(m.GetTaint()), Start: instant(m.GetStart()),
		Toleration: decodeToleration(m.GetToleration()), Default: m.GetDefaultToleration(),
		RequestID: m.GetRequestId(), Requester: m.GetRequester(),
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

func decodeObservation(n *numbers, m *storev1.ObservationRecord) *engine.Observation {
	if m == nil {
		return nil
	}
	return &engine.Observation{
		DeletedAt: instant(m.GetDeletedAt()), Reason: m.GetReason(), Standing: get(n, standings, m.GetStanding()), TaintSince: instant(m.GetTaintSince()),
	}
}
