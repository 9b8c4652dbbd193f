package history

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

// Class tells the two kinds of closed evictions apart: each has quotas of its own.
type Class byte

// The classes. The values are on disk.
const (
	// Sent is what fell due or was sent.
	Sent Class = 0
	// Early is what was closed before that.
	Early Class = 1
	// Classes is how many there are.
	Classes = 2
)

// ClassOf is the class of a closed eviction.
func ClassOf(r *engine.EvictionRecord) Class {
	if r.Early() {
		return Early
	}
	return Sent
}

// Position is a closed eviction's place in the order of a cluster's history.
type Position struct {
	// ClosedAt is in nanoseconds since 1970, see [Nanos].
	ClosedAt int64
	Seq      uint64
}

// PositionOf is the place of a closed eviction.
func PositionOf(r *engine.EvictionRecord) Position {
	return Position{ClosedAt: Nanos(r.ClosedAt), Seq: r.Seq}
}

// Newest is not below any position.
var Newest = Position{ClosedAt: math.MaxInt64, Seq: math.MaxUint64}

// Compare orders by time, then by sequence.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.ClosedAt, o.ClosedAt), cmp.Compare(p.Seq, o.Seq))
}

var (
	minTime = time.Unix(0, math.MinInt64)
	maxTime = time.Unix(0, math.MaxInt64)
)

// Nanos is t in nanoseconds since 1970. What an int64 cannot hold (before 1677,
// after 2262) becomes the nearest that it can.
func Nanos(t time.Time) int64 {
	switch {
	case t.Before(minTime):
		return math.MinInt64
	case t.After(maxTime):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// Query is a checked [engine.HistoryQuery].
type Query struct {
	engine.HistoryQuery
	// Below is the first position from the newest that is not wanted any more:
	// the scan goes down from there.
	Below Position
	floor int64
}

// Parse checks a query. Its errors wrap [engine.ErrInvalid].
func Parse(q engine.HistoryQuery) (*Query, error) {
	switch {
	case q.Cluster == "":
		return nil, fmt.Errorf("%w: history query without a cluster", engine.ErrInvalid)
	case q.Limit <= 0:
		return nil, fmt.Errorf("%w: history query of cluster %q: limit is %d; it must be positive", engine.ErrInvalid, q.Cluster, q.Limit)
	}
	p := &Query{HistoryQuery: q, Below: Newest, floor: math.MinInt64}
	if !q.After.IsZero() {
		p.floor = Nanos(q.After)
	}
	// A bound that does not fit into a key is left to Match.
	if n := Nanos(q.Before); !q.Before.IsZero() && n < math.MaxInt64 {
		p.Below = Position{ClosedAt: n}
	}
	if q.Cursor != "" {
		at, err := parseCursor(q.Cursor)
		if err != nil {
			return nil, fmt.Errorf("%w: history query of cluster %q: %w", engine.ErrInvalid, q.Cluster, err)
		}
		if at.Compare(p.Below) < 0 {
			p.Below = at
		}
	}
	return p, nil
}

// Reaches reports whether the scan, going down, has still to look at p.
func (q *Query) Reaches(p Position) bool { return p.ClosedAt >= q.floor }

// Match reports whether the query wants r.
func (q *Query) Match(r *engine.EvictionRecord) bool {
	return want(q.Namespace, r.Namespace) && want(q.Pod, r.Pod) && want(q.UID, r.UID) && want(q.Node, r.Node) &&
		(q.Requester == "" || asked(r, q.Requester)) &&
		(len(q.Reasons) == 0 || slices.Contains(q.Reasons, r.CloseReason)) &&
		(q.After.IsZero() || !r.ClosedAt.Before(q.After)) &&
		(q.Before.IsZero() || r.ClosedAt.Before(q.Before))
}

func want(wanted, have string) bool { return wanted == "" || wanted == have }

// asked reports whether the requester is behind the eviction: by a request that
// was open when it closed, or as its cause.
func asked(r *engine.EvictionRecord, requester string) bool {
	return r.Cause.Requester == requester ||
		slices.ContainsFunc(r.Requests, func(q engine.Request) bool { return q.Requester == requester })
}

// A cursor is the last position given, with a version and a checksum so that
// one that was cut or made up is refused rather than taken for a place.
const (
	cursorVersion = 1
	cursorSize    = 1 + 8 + 8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Cursor continues after p.
func Cursor(p Position) string {
	b := make([]byte, 0, cursorSize)
	b = append(b, cursorVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(p.ClosedAt))
	b = binary.BigEndian.AppendUint64(b, p.Seq)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s string) (Position, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil && len(b) == cursorSize {
		p := Position{ClosedAt: int64(binary.BigEndian.Uint64(b[1:])), Seq: binary.BigEndian.Uint64(b[9:])}
		// Made again and compared: that checks version, checksum and spelling in one.
		if Cursor(p) == s {
			return p, nil
		}
	}
	return Position{}, errors.New("the cursor is not one that this service gave out; begin again without it")
}

// Expired is the position below which a class is too old at now.
func Expired(now time.Time, age time.Duration) Position {
	return Position{ClosedAt: Nanos(now.Add(-age))}
}

// Quota is what one class may keep.
type Quota struct {
	Age   time.Duration
	Count int
}

// Quotas are the quotas by class.
func Quotas(q engine.HistoryQuotas) [Classes]Quota {
	return [Classes]Quota{Sent: {q.SentAge, q.SentCount}, Early: {q.EarlyAge, q.EarlyCount}}
}
