package bolt

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"go.etcd.io/bbolt"
)

// Prune removes the oldest entries of each class that are beyond its quota.
func (s *Store) Prune(ctx context.Context, cluster string, now time.Time, q engine.HistoryQuotas, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		s.broken.Store(true)
		return 0, fmt.Errorf("prune history of cluster %q in data file %s: %w", cluster, s.path, err)
	}
	var doomed [history.Classes][][]byte
	total := 0
	err := s.view(func(tx *bbolt.Tx) error {
		t, err := findCluster(tx, cluster)
		if t == nil {
			return err
		}
		have := s.counted(cluster, t.history)
		for class, quota := range history.Quotas(q) {
			doomed[class] = beyond(t.history, pruning{
				class: history.Class(class), have: have[class], keep: quota.Count,
				expired: history.Expired(now, quota.Age), limit: limit - total,
			})
			total += len(doomed[class])
		}
		return nil
	})
	if err != nil {
		s.broken.Store(true)
		return 0, fmt.Errorf("prune history of cluster %q: %w", cluster, err)
	}
	if total == 0 {
		return 0, nil
	}
	if err := s.update("prune history", func(tx *bbolt.Tx) error { return remove(tx, cluster, doomed) }); err != nil {
		return 0, err
	}
	for class := range doomed {
		s.counts[cluster][class] -= len(doomed[class])
		s.kept.pruned(cluster, doomed[class])
	}
	return total, nil
}

// counted returns how many entries each class has. The first time it walks all
// keys; from then on commits keep the counts.
func (s *Store) counted(cluster string, b *bbolt.Bucket) *[history.Classes]int {
	if have := s.counts[cluster]; have != nil {
		return have
	}
	have := new([history.Classes]int)
	c := b.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if class, _, err := codec.ParseHistoryKey(k); err == nil {
			have[class]++
		}
	}
	s.counts[cluster] = have
	return have
}

// pruning says what one class is to lose.
type pruning struct {
	class history.Class
	// have is how many there are, keep how many may stay.
	have, keep int
	// expired is the position below which entries are too old.
	expired history.Position
	limit   int
}

// beyond returns the keys that are to go, oldest first.
func beyond(b *bbolt.Bucket, p pruning) [][]byte {
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.Seek([]byte{byte(p.class)}); k != nil && len(keys) < p.limit; k, _ = c.Next() {
		class, at, err := codec.ParseHistoryKey(k)
		if err != nil {
			continue
		}
		if class != p.class || p.have-len(keys) <= p.keep && at.Compare(p.expired) >= 0 {
			break
		}
		keys = append(keys, bytes.Clone(k))
	}
	return keys
}

func remove(tx *bbolt.Tx, cluster string, doomed [history.Classes][][]byte) error {
	t, err := findCluster(tx, cluster)
	if t == nil {
		return err
	}
	for _, keys := range doomed {
		for _, k := range keys {
			if err := t.history.Delete(k); err != nil {
				return err
			}
		}
	}
	return nil
}
