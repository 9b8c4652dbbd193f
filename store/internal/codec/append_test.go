package codec

import (
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store/internal/record"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
)

func encodeEviction(r *engine.EvictionRecord) ([]byte, error) { return AppendEviction(nil, r) }

// TestEvictionIsItsMessage: what is written field by field is what protobuf makes
// of the message.
func TestEvictionIsItsMessage(t *testing.T) {
	none, zero, long := int64(-1), int64(0), filled[engine.EvictionRecord](t)
	long.LastMessage, long.Cause.Taint.Value, long.Cause.RequestID = strings.Repeat("m", 300), strings.Repeat("v", 200), strings.Repeat("i", 20_000)
	long.Due, long.BoundAt, long.ClosedAt = time.Unix(-5, 7), time.Unix(0, 0), time.Date(9999, 1, 1, 0, 0, 0, 1, time.UTC)
	for name, r := range map[string]*engine.EvictionRecord{
		"filled": filled[engine.EvictionRecord](t), "long": long, "of zeros": {},
		"zero seconds":     {Cause: engine.Cause{Toleration: &corev1.Toleration{TolerationSeconds: &zero}}},
		"negative seconds": {Cause: engine.Cause{Toleration: &corev1.Toleration{TolerationSeconds: &none}}, Requests: make([]engine.Request, 3)},
		"empty parts":      {Delivery: &engine.Delivery{}, Observed: &engine.Observation{}, Cause: engine.Cause{Toleration: &corev1.Toleration{}}},
	} {
		before := "what was there"
		b := must[[]byte](t)(AppendEviction([]byte(before), r))
		value, ok := strings.CutPrefix(string(b), before)
		payload := must[[]byte](t)(open(KindEviction, []byte(value)))
		var got storev1.EvictionRecord
		if err := proto.Unmarshal(payload, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := must[*storev1.EvictionRecord](t)(evictionMessage(r)); !ok || !proto.Equal(&got, want) || proto.Size(want) != len(payload) {
			t.Errorf("%s: %d bytes are\n%v\nwant %d\n%v", name, len(payload), &got, proto.Size(want), want)
		}
	}
}

// evictionMessage is the message that an eviction's value is to have.
func evictionMessage(r *engine.EvictionRecord) (*storev1.EvictionRecord, error) {
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
	return m, nil
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

func encodeToleration(t *corev1.Toleration) *storev1.TolerationRecord {
	if t == nil {
		return nil
	}
	return &storev1.TolerationRecord{
		Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect), Seconds: t.TolerationSeconds,
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
