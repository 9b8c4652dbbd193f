package bolt

import (
	"bytes"
	"context"
	"sync"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"go.etcd.io/bbolt"
)

// kept knows the sequences that histories have, so that one that was pruned is not
// looked for among all keys each time that somebody asks. A cluster's set is begun
// when one is first asked for in vain. It may have more than there is, never less.
type kept struct {
	mu   sync.Mutex // guards what follows, and the sets
	sets map[string]*seqSet
}

// seqSet is a set of sequences, which lie close together.
type seqSet struct {
	building sync.Mutex // lets one reader at a time walk the keys
	// whole: what was in history when the set was begun is in it.
	whole  bool
	chunks map[uint64]*seqChunk
}

// seqChunk has a bit for each of 1,024 sequences.
type seqChunk [16]uint64

func (s *seqSet) add(seq uint64) {
	c := s.chunks[seq/1024]
	if c == nil {
		c = new(seqChunk)
		s.chunks[seq/1024] = c
	}
	c[seq%1024/64] |= 1 << (seq % 64)
}

func (s *seqSet) remove(seq uint64) {
	c := s.chunks[seq/1024]
	if c == nil {
		return
	}
	if c[seq%1024/64] &^= 1 << (seq % 64); *c == (seqChunk{}) {
		delete(s.chunks, seq/1024)
	}
}

func (s *seqSet) has(seq uint64) bool {
	c := s.chunks[seq/1024]
	return c != nil && c[seq%1024/64]&(1<<(seq%64)) != 0
}

// set returns a cluster's set, begun if there is none.
func (k *kept) set(cluster string) *seqSet {
	k.mu.Lock()
	defer k.mu.Unlock()
	set := k.sets[cluster]
	if set == nil {
		set = &seqSet{chunks: map[uint64]*seqChunk{}}
		if k.sets == nil {
			k.sets = map[string]*seqSet{}
		}
		k.sets[cluster] = set
	}
	return set
}

// ahead takes note of what is about to be committed. Afterwards would be too late:
// a reader may be quicker.
func (k *kept) ahead(changes []engine.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.sets) == 0 {
		return
	}
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case engine.ChangeForgetCluster:
			// A cluster that comes back by that name begins at one again.
			delete(k.sets, c.Cluster)
		case engine.ChangeCloseEviction:
			if set := k.sets[c.Cluster]; set != nil && c.Eviction != nil {
				set.add(c.Eviction.Seq())
			}
		}
	}
}

// pruned takes note of entries that are off the disk.
func (k *kept) pruned(cluster string, keys [][]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if set := k.sets[cluster]; set != nil {
		for _, key := range keys {
			if _, at, err := codec.ParseHistoryKey(key); err == nil {
				set.remove(at.Seq)
			}
		}
	}
}

// mayHave reports whether a cluster's history may have a sequence. The first time
// it walks all keys.
func (s *Store) mayHave(ctx context.Context, cluster string, seq uint64) (bool, error) {
	set := s.kept.set(cluster)
	set.building.Lock()
	defer set.building.Unlock()
	for from := []byte{}; !set.whole; {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		err := s.view(func(tx *bbolt.Tx) error {
			t, err := findCluster(tx, cluster)
			if t == nil {
				set.whole = err == nil
				return err
			}
			from = s.kept.fill(set, t.history, from)
			set.whole = from == nil
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	return set.has(seq), nil
}

// fill adds the sequences of the next keys, and returns where to go on; nil at the end.
func (k *kept) fill(set *seqSet, b *bbolt.Bucket, from []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := b.Cursor()
	key, _ := c.Seek(from)
	for range findKeys {
		if key == nil {
			return nil
		}
		if _, at, err := codec.ParseHistoryKey(key); err == nil {
			set.add(at.Seq)
		}
		key, _ = c.Next()
	}
	return bytes.Clone(key)
}
