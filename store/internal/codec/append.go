package codec

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/record"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

// fields writes the fields of a message as protobuf does, those that are zero
// left out. Evictions are written so, without a message to be built first: they
// are nearly all that a busy store writes. The first error stays.
type fields struct {
	b []byte
	// beyond: some instants are not in the list of the eviction's.
	beyond bool
	numbers
}

func (f *fields) str(n protowire.Number, s string) {
	if s == "" {
		return
	}
	if !utf8.ValidString(s) {
		f.note(fmt.Errorf("%w: field %d is not valid UTF-8", store.ErrBadChange, n))
	}
	f.b = protowire.AppendString(protowire.AppendTag(f.b, n, protowire.BytesType), s)
}

func (f *fields) num(n protowire.Number, v uint64) {
	if v != 0 {
		f.b = protowire.AppendVarint(protowire.AppendTag(f.b, n, protowire.VarintType), v)
	}
}

func (f *fields) flag(n protowire.Number, v bool) { f.num(n, protowire.EncodeBool(v)) }

// instant writes a Timestamp; the zero time is written as none.
func (f *fields) instant(n protowire.Number, t time.Time) {
	if t.IsZero() {
		return
	}
	at := f.begin(n)
	f.num(1, uint64(t.Unix()))
	f.num(2, uint64(t.Nanosecond()))
	f.end(at)
}

// far writes an instant that is not among those of the list.
func (f *fields) far(n protowire.Number, t time.Time) {
	if !f.beyond {
		return
	}
	if _, ok := nanos(t); !ok {
		f.instant(n, t)
	}
}

// instants writes the list of those that are.
func (f *fields) instants(n protowire.Number, l *instantList) {
	if l.len == 1 {
		return
	}
	at := f.begin(n)
	for _, v := range l.numbers[:l.len] {
		f.b = protowire.AppendVarint(f.b, protowire.EncodeZigZag(v))
	}
	f.end(at)
}

// uid writes a UID as bytes if it is a UUID, and as the text that it is otherwise.
func (f *fields) uid(short, long protowire.Number, s string) {
	id, ok := parseUUID(s)
	if !ok {
		f.str(long, s)
		return
	}
	f.b = protowire.AppendBytes(protowire.AppendTag(f.b, short, protowire.BytesType), id[:])
}

// begin starts a message within the message and returns where; end ends it.
func (f *fields) begin(n protowire.Number) int {
	// Few need more than the one byte for their length.
	f.b = append(protowire.AppendTag(f.b, n, protowire.BytesType), 0)
	return len(f.b)
}

func (f *fields) end(at int) {
	n := len(f.b) - at
	if n < 1<<7 {
		f.b[at-1] = byte(n)
		return
	}
	more := protowire.SizeVarint(uint64(n)) - 1
	f.b = append(f.b, make([]byte, more)...)
	copy(f.b[at+more:], f.b[at:at+n])
	protowire.AppendVarint(f.b[:at-1], uint64(n))
}

// AppendEviction appends the value of an eviction, open or closed, to b. Its hold
// is not written, and DUE is written as WAITING.
func AppendEviction(b []byte, r *engine.EvictionRecord) ([]byte, error) {
	var frame [frameSize]byte
	list := listInstants(r)
	f := fields{b: append(b, frame[:]...), beyond: list.beyond}
	f.str(1, r.Namespace)
	f.str(2, r.Pod)
	f.uid(28, 3, r.UID)
	f.str(4, r.Node)
	f.uid(29, 5, r.NodeUID)
	f.num(6, uint64(put(&f.numbers, states, record.State(r.State))))
	f.far(7, r.BoundAt)
	f.far(8, r.Due)
	f.cause(9, &r.Cause)
	for i := range r.Requests {
		f.request(10, &r.Requests[i])
	}
	f.delivery(11, r.Delivery)
	f.num(12, uint64(r.Attempts))
	f.num(13, uint64(r.NoAnswers))
	f.far(14, r.NotBefore)
	f.num(15, uint64(put(&f.numbers, outcomes, r.LastOutcome)))
	f.str(16, text(r.LastMessage))
	f.far(17, r.OpenedAt)
	f.far(18, r.FirstSentAt)
	f.far(19, r.LastSentAt)
	f.far(20, r.ResultAt)
	f.far(21, r.ConfirmBy)
	f.far(22, r.ClosedAt)
	f.num(23, uint64(put(&f.numbers, closeReasons, r.CloseReason)))
	f.num(24, uint64(put(&f.numbers, cancelCauses, r.CancelCause)))
	f.num(25, r.Revision)
	f.far(26, r.FirstDue)
	f.observation(27, r.Observed)
	f.instants(30, &list)
	if f.err != nil {
		return b, f.err
	}
	seal(KindEviction, f.b[len(b):])
	return f.b, nil
}

func (f *fields) cause(n protowire.Number, c *engine.Cause) {
	at := f.begin(n)
	f.num(1, uint64(put(&f.numbers, causeKinds, c.Kind)))
	if c.Taint != (engine.Taint{}) {
		f.taint(2, &c.Taint)
	}
	f.far(3, c.Start)
	f.toleration(4, c.Toleration)
	f.flag(5, c.Default)
	f.str(6, c.RequestID)
	f.str(7, c.Requester)
	f.end(at)
}

func (f *fields) taint(n protowire.Number, t *engine.Taint) {
	at := f.begin(n)
	f.str(1, t.Key)
	f.str(2, t.Value)
	f.far(3, t.TimeAdded)
	f.far(4, t.Start)
	f.end(at)
}

func (f *fields) toleration(n protowire.Number, t *corev1.Toleration) {
	if t == nil {
		return
	}
	at := f.begin(n)
	f.str(1, t.Key)
	f.str(2, string(t.Operator))
	f.str(3, t.Value)
	f.str(4, string(t.Effect))
	if t.TolerationSeconds != nil {
		// Zero seconds are not the same as none.
		f.b = protowire.AppendVarint(protowire.AppendTag(f.b, 5, protowire.VarintType), uint64(*t.TolerationSeconds))
	}
	f.end(at)
}

func (f *fields) request(n protowire.Number, q *engine.Request) {
	at := f.begin(n)
	f.str(1, q.ID)
	f.str(2, q.Requester)
	f.str(3, text(q.Reason))
	f.instant(4, q.NotBefore)
	f.instant(5, q.RequestedAt)
	f.end(at)
}

func (f *fields) delivery(n protowire.Number, d *engine.Delivery) {
	if d == nil {
		return
	}
	at := f.begin(n)
	f.str(1, d.Token)
	f.str(2, d.ExecutorID)
	f.far(3, d.SentAt)
	f.far(4, d.Deadline)
	f.num(5, uint64(put(&f.numbers, recallReasons, d.Recall)))
	f.num(6, uint64(put(&f.numbers, cancelCauses, d.RecallCause)))
	f.end(at)
}

func (f *fields) observation(n protowire.Number, o *engine.Observation) {
	if o == nil {
		return
	}
	at := f.begin(n)
	f.instant(1, o.DeletedAt)
	f.str(2, text(o.Reason))
	f.num(3, uint64(put(&f.numbers, standings, o.Standing)))
	f.instant(4, o.TaintSince)
	f.end(at)
}
