package codec

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
)

// instantCount is how many instants an eviction's record has, without those of its
// requests and its observation.
const instantCount = 15

// instantsOf are the instants of a record that are stored together; nil where the
// record has no place for one. A stored list goes by their order: it only grows at
// its end. What is there mostly is in front, and each near the one before it.
func instantsOf(r *engine.EvictionRecord) [instantCount]*time.Time {
	all := [instantCount]*time.Time{
		&r.BoundAt, &r.Cause.Taint.TimeAdded, &r.Cause.Taint.Start, &r.Cause.Start, &r.OpenedAt, &r.Due,
		&r.FirstSentAt, &r.LastSentAt, nil, nil, &r.ResultAt, &r.ClosedAt,
		&r.FirstDue, &r.NotBefore, &r.ConfirmBy,
	}
	if d := r.Delivery; d != nil {
		all[8], all[9] = &d.SentAt, &d.Deadline
	}
	return all
}

// The seconds since 1970 between which all instants can be counted in nanoseconds.
const (
	firstSecond = math.MinInt64 / int64(time.Second)
	lastSecond  = math.MaxInt64/int64(time.Second) - 1
)

// nanos is t in nanoseconds since 1970, if they can be counted so. The zero time cannot.
func nanos(t time.Time) (n int64, ok bool) {
	if s := t.Unix(); s < firstSecond || s > lastSecond {
		return 0, false
	}
	return t.UnixNano(), true
}

// instantList are the instants of a record as they are stored: a bit set of those
// that are there, and each as the difference from the one before.
type instantList struct {
	numbers [1 + instantCount]int64
	len     int
	// beyond: there are others, which cannot be counted in nanoseconds.
	beyond bool
}

func listInstants(r *engine.EvictionRecord) instantList {
	l, last := instantList{len: 1}, int64(0)
	for i, t := range instantsOf(r) {
		if t == nil || t.IsZero() {
			continue
		}
		at, ok := nanos(*t)
		if !ok {
			l.beyond = true
			continue
		}
		l.numbers[0] |= 1 << i
		l.numbers[l.len], last = at-last, at
		l.len++
	}
	return l
}

// readInstants sets the instants of a record that a stored list has.
func readInstants(list []int64, r *engine.EvictionRecord) error {
	if len(list) == 0 {
		return nil
	}
	set, steps := list[0], list[1:]
	if set == 0 || set>>instantCount != 0 || bits.OnesCount64(uint64(set)) != len(steps) {
		return fmt.Errorf("%w: eviction with %d instants for the bit set %#x", store.ErrDamaged, len(steps), uint64(set))
	}
	at := int64(0)
	for i, t := range instantsOf(r) {
		if set&(1<<i) == 0 {
			continue
		}
		if t == nil {
			return fmt.Errorf("%w: eviction with instants of a delivery that it does not have", store.ErrDamaged)
		}
		at, steps = at+steps[0], steps[1:]
		*t = time.Unix(0, at).UTC()
	}
	return nil
}

// parseUUID reads a UID that is a UUID in the one form that [textOf] writes.
func parseUUID(s string) (id uuid.UUID, ok bool) {
	if len(s) != 36 || strings.ToLower(s) != s {
		return id, false
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}

// textOf is a stored UID, of which one form is there.
func textOf(short []byte, long string) (string, error) {
	if len(short) == 0 {
		return long, nil
	}
	id, err := uuid.FromBytes(short)
	if err != nil {
		return "", fmt.Errorf("%w: UID of %d bytes, want %d", store.ErrDamaged, len(short), len(id))
	}
	return id.String(), nil
}
