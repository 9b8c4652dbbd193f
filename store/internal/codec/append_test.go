package codec

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/reprieve-dev/reprieve/engine"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/record"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
)

func encodeEviction(r *engine.EvictionRecord) ([]byte, error) { return AppendEviction(nil, r) }

const podUID, nodeUID = "5f0c7d52-8a34-4a6e-9b1e-0123456789ab", "ffffffff-ffff-ffff-ffff-ffffffffffff"

// evictions have what is written in more than one way.
func evictions(t *testing.T) map[string]*engine.EvictionRecord {
	none, zero := int64(-1), int64(0)
	long, short, far, beyond := filled[engine.EvictionRecord](t), filled[engine.EvictionRecord](t), filled[engine.EvictionRecord](t), filled[engine.EvictionRecord](t)
	long.LastMessage, long.Cause.Taint.Value, long.Cause.RequestID = strings.Repeat("m", 300), strings.Repeat("v", 200), strings.Repeat("i", 20_000)
	long.Due, long.BoundAt, long.ClosedAt = time.Unix(-5, 7), time.Unix(0, 0), time.Date(9999, 1, 1, 0, 0, 0, 1, time.UTC)
	short.UID, short.NodeUID = podUID, nodeUID
	for i, at := range instantsOf(far) {
		*at = time.Unix(0, [...]int64{math.MinInt64, math.MaxInt64}[i%2]).UTC().AddDate(i%3-1, 0, 0)
	}
	for _, at := range instantsOf(beyond) {
		*at = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	}
	return map[string]*engine.EvictionRecord{
		"filled": filled[engine.EvictionRecord](t), "long": long, "short": short, "far": far, "beyond": beyond, "of zeros": {UID: "u"},
		"zero seconds":     {UID: "u", Cause: engine.Cause{Toleration: &corev1.Toleration{TolerationSeconds: &zero}}},
		"negative seconds": {UID: "u", Cause: engine.Cause{Toleration: &corev1.Toleration{TolerationSeconds: &none}}, Requests: make([]engine.Request, 3)},
		"empty parts":      {UID: "u", Delivery: &engine.Delivery{}, Observed: &engine.Observation{}, Cause: engine.Cause{Toleration: &corev1.Toleration{}}},
		"no real UUIDs":    {UID: strings.ToUpper(podUID), NodeUID: strings.ReplaceAll(podUID, "-", "")},
	}
}

// TestEvictionIsItsMessage: what is written field by field is what protobuf makes
// of the message.
func TestEvictionIsItsMessage(t *testing.T) {
	for name, r := range evictions(t) {
		before := "what was there"
		b := must[[]byte](t)(AppendEviction([]byte(before), r))
		value, ok := strings.CutPrefix(string(b), before)
		payload := must[[]byte](t)(open(KindEviction, []byte(value)))
		var got storev1.EvictionRecord
		if err := proto.Unmarshal(payload, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := shortened(must[*storev1.EvictionRecord](t)(evictionMessage(r))); !ok || !proto.Equal(&got, want) || proto.Size(want) != len(payload) {
			t.Errorf("%s: %d bytes are\n%v\nwant %d\n%v", name, len(payload), &got, proto.Size(want), want)
		}
	}
}

// TestBothFormsOfAnEviction: what schema version 1 wrote is read as what is written now.
func TestBothFormsOfAnEviction(t *testing.T) {
	for name, r := range evictions(t) {
		old := must[[]byte](t)(marshal(KindEviction, must[*storev1.EvictionRecord](t)(evictionMessage(r))))
		for _, b := range [][]byte{old, must[[]byte](t)(encodeEviction(r))} {
			want := record.Eviction(r)
			want.Cluster, want.Seq = "a", 1
			if diff := cmp.Diff(want, must[*engine.EvictionRecord](t)(DecodeEviction("a", 1, b))); diff != "" {
				t.Errorf("%s of %d bytes (-want +got):\n%s", name, len(b), diff)
			}
		}
	}
}

// TestInstantsAreInOrder: files have these numbers.
func TestInstantsAreInOrder(t *testing.T) {
	at := func(n int64) time.Time { return time.Unix(1_800_000_000, n) }
	r := &engine.EvictionRecord{
		UID: podUID, BoundAt: at(0), OpenedAt: at(40), Due: at(50), FirstSentAt: at(60), LastSentAt: at(61), ResultAt: at(75), ClosedAt: at(79),
		FirstDue: at(45), NotBefore: at(80), ConfirmBy: at(81), Delivery: &engine.Delivery{SentAt: at(61), Deadline: at(90)},
		Cause: engine.Cause{Start: at(30), Taint: engine.Taint{TimeAdded: at(10), Start: at(20)}},
	}
	for _, c := range []struct {
		change func()
		want   []int64
	}{
		{func() {}, []int64{1<<15 - 1, 1_800_000_000_000_000_000, 10, 10, 10, 10, 10, 10, 1, 0, 29, -15, 4, -34, 35, 1}},
		{func() { r.Delivery, r.BoundAt, r.ConfirmBy = nil, time.Time{}, time.Time{} }, []int64{1<<14 - 1 - 1<<9 - 1<<8 - 1, 1_800_000_000_000_000_010, 10, 10, 10, 10, 10, 1, 14, 4, -34, 35}},
	} {
		c.change()
		var m storev1.EvictionRecord
		if err := proto.Unmarshal(must[[]byte](t)(open(KindEviction, must[[]byte](t)(encodeEviction(r)))), &m); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(m.GetInstants(), c.want) {
			t.Errorf("instants %v\nwant %v", m.GetInstants(), c.want)
		}
	}
}

// TestBadInstants: a list that does not fit its record is damage, not other instants.
func TestBadInstants(t *testing.T) {
	for name, m := range map[string]*storev1.EvictionRecord{
		"too few":           {Uid: "u", Instants: []int64{3, 1}},
		"too many":          {Uid: "u", Instants: []int64{1, 1, 1}},
		"no bits":           {Uid: "u", Instants: []int64{0}},
		"negative bits":     {Uid: "u", Instants: []int64{-1, 1}},
		"a bit too far":     {Uid: "u", Instants: []int64{1 << instantCount, 1}},
		"of no delivery":    {Uid: "u", Instants: []int64{1 << 8, 1}},
		"a UID of 15 bytes": {UidBytes: make([]byte, 15)},
		"a node's of 17":    {Uid: "u", NodeUidBytes: make([]byte, 17)},
	} {
		if r, err := DecodeEviction("a", 1, must[[]byte](t)(marshal(KindEviction, m))); !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// shortened is the message as it is written from schema version 2 on.
func shortened(m *storev1.EvictionRecord) *storev1.EvictionRecord {
	if m.GetUid() == podUID {
		m.Uid, m.UidBytes = "", []byte("\x5f\x0c\x7d\x52\x8a\x34\x4a\x6e\x9b\x1e\x01\x23\x45\x67\x89\xab")
	}
	if m.GetNodeUid() == nodeUID {
		m.NodeUid, m.NodeUidBytes = "", bytes.Repeat([]byte{0xff}, 16)
	}
	taint, delivery := &storev1.TaintRecord{}, &storev1.DeliveryRecord{}
	if m.GetCause().GetTaint() != nil {
		taint = m.GetCause().GetTaint()
	}
	if m.GetDelivery() != nil {
		delivery = m.GetDelivery()
	}
	last := int64(0)
	for i, at := range []**timestamppb.Timestamp{
		&m.BoundAt, &taint.TimeAdded, &taint.Start, &m.Cause.Start, &m.OpenedAt, &m.Due, &m.FirstSentAt, &m.LastSentAt,
		&delivery.SentAt, &delivery.Deadline, &m.ResultAt, &m.ClosedAt, &m.FirstDue, &m.NotBefore, &m.ConfirmBy,
	} {
		if *at == nil || (*at).GetSeconds() < -9_223_372_036 || (*at).GetSeconds() >= 9_223_372_036 {
			continue
		}
		if m.Instants == nil {
			m.Instants = []int64{0}
		}
		now := (*at).AsTime().UnixNano()
		m.Instants, last = append(m.Instants, now-last), now
		m.Instants[0] |= 1 << i
		*at = nil
	}
	return m
}

// evictionMessage is the message as schema version 1 wrote it.
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
