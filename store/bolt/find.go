package bolt

import (
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"github.com/reprieve-dev/reprieve/store/internal/history"
)

// findKeys is how many keys one transaction of a search passes.
const findKeys = 16384

// HistoryEviction looks for a sequence by keys alone. The order of keys is that of
// closing. Sequences are given at opening, which is near for most. What is not found
// near is looked for further only if it is known not to be pruned.
func (s *Store) HistoryEviction(ctx context.Context, cluster string, seq uint64) (*engine.EvictionRecord, error) {
	fail := func(err error) error {
		return fmt.Errorf("read closed eviction %d of cluster %q: %w", seq, cluster, err)
	}
	searches := []*search{{class: history.Sent, seq: seq}, {class: history.Early, seq: seq}}
	for near := true; ; near = false {
		if err := ctx.Err(); err != nil {
			return nil, fail(err)
		}
		r, over, err := s.lookFurther(cluster, seq, searches)
		if err == nil && !over && near {
			var there bool
			there, err = s.mayHave(ctx, cluster, seq)
			over = !there
		}
		switch {
		case err != nil:
			return nil, fail(err)
		case r != nil:
			return r, nil
		case over:
			return nil, fmt.Errorf("closed eviction %d of cluster %q: %w", seq, cluster, engine.ErrNotFound)
		}
	}
}

// lookFurther goes on with searches in one transaction, and reports whether they are over.
func (s *Store) lookFurther(cluster string, seq uint64, searches []*search) (r *engine.EvictionRecord, over bool, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		over = true
		t, err := findCluster(tx, cluster)
		if t == nil || seq > t.evictions.Sequence() {
			return err
		}
		for _, at := range searches {
			if v := at.look(t.history, findKeys/len(searches)); v != nil {
				over = true
				r, err = codec.DecodeEviction(cluster, seq, v)
				return err
			}
			over = over && at.over()
		}
		return nil
	})
	return r, over, err
}

// search looks for a sequence in one class of a history, outward in both
// directions from where it most likely is. It goes on over several transactions.
type search struct {
	class history.Class
	seq   uint64
	begun bool
	// What lies from below up to above, without that, has been looked at; nothing
	// is left below at the bottom, and above at the top.
	below, above history.Position
	bottom, top  bool
}

func (s *search) over() bool { return s.bottom && s.top }

// look passes so many more keys. It returns the value if one is the sequence's, nil
// if none is.
func (s *search) look(b *bbolt.Bucket, keys int) []byte {
	if !s.begun {
		s.below = s.likely(b)
		s.above, s.begun = s.below, true
	}
	down, up := b.Cursor(), b.Cursor()
	lower := below(down, s.class, s.below)
	upper := s.climb(up, func() ([]byte, []byte) { return up.Seek(codec.HistoryKey(s.class, s.above)) })
	for range keys / 2 {
		if s.bottom = lower == nil; !s.bottom {
			if lower.at.Seq == s.seq {
				return lower.value
			}
			s.below = lower.at
			k, v := down.Prev()
			lower = settle(down, s.class, k, v)
		}
		if s.top = upper == nil; !s.top {
			if upper.at.Seq == s.seq {
				return upper.value
			}
			s.above = history.Position{ClosedAt: upper.at.ClosedAt, Seq: upper.at.Seq + 1}
			upper = s.climb(up, up.Next)
		}
		if s.over() {
			break
		}
	}
	return nil
}

// climb is the entry that next gives, or the next one up that can be read; nil at
// the end of the class.
func (s *search) climb(c *bbolt.Cursor, next func() (k, v []byte)) *entry {
	for k, v := next(); len(k) > 0 && k[0] <= byte(s.class); k, v = c.Next() {
		if have, at, err := codec.ParseHistoryKey(k); err == nil && have == s.class {
			return &entry{class: s.class, at: at, value: v}
		}
	}
	return nil
}

// likely is where the sequences of entries, which mostly grow, pass the one that
// is looked for.
func (s *search) likely(b *bbolt.Bucket) history.Position {
	c := b.Cursor()
	low := s.climb(c, func() ([]byte, []byte) { return c.Seek([]byte{byte(s.class)}) })
	high := below(c, s.class, history.Newest)
	if low == nil || high == nil {
		return history.Newest
	}
	from, to := low.at.ClosedAt, high.at.ClosedAt
	for from < to {
		// Without a sign: the span may be more than an int64 holds.
		middle := from + int64((uint64(to)-uint64(from))/2)
		if s.newest(c, history.Position{ClosedAt: middle}) < s.seq {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return history.Position{ClosedAt: from}
}

// newest is the highest sequence among some entries from a position on: one
// alone may have been open for much longer than those around it.
func (s *search) newest(c *bbolt.Cursor, at history.Position) (seq uint64) {
	e := s.climb(c, func() ([]byte, []byte) { return c.Seek(codec.HistoryKey(s.class, at)) })
	for range 32 {
		if e == nil {
			break
		}
		seq = max(seq, e.at.Seq)
		e = s.climb(c, c.Next)
	}
	return seq
}
