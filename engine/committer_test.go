package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// slowStore is a store whose commits take their time.
type slowStore struct {
	Store
	clock *clock.Virtual
	takes time.Duration
	sizes []int // of the commits
}

func (s *slowStore) Commit(_ context.Context, b *Batch) error {
	s.sizes = append(s.sizes, len(b.Changes))
	s.clock.Set(s.clock.Now().Add(s.takes))
	return nil
}

// TestCommitterRests: few changes wait for as long as the last transaction took, but
// no longer than they may, and share the next; many do not wait, nor what comes after many; and a committer
// that ends at its rest begins no transaction.
func TestCommitterRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{clock: clock.NewVirtual(time.Unix(0, 0)), takes: 300 * time.Microsecond}
		opts := &Options{Clock: s.clock, CommitRest: time.Millisecond}
		opts.setDefaults()
		ctx, cancel := context.WithCancel(t.Context())
		c := newCore(ctx, opts, s)
		c.ring = newRing(0)
		ended := make(chan error)
		go func() { ended <- c.committer.run(ctx) }()
		put := func(n int) {
			for range n {
				c.committer.put(pending{kind: ChangePutNode, cluster: "c", other: &Change{Kind: ChangePutNode, Cluster: "c", Node: &NodeRecord{}}})
			}
			synctest.Wait()
		}
		pass := func(d time.Duration) {
			s.clock.Set(s.clock.Now().Add(d))
			s.clock.Fire()
			synctest.Wait()
		}
		want := func(what string, sizes ...int) {
			t.Helper()
			if !slices.Equal(s.sizes, sizes) {
				t.Fatalf("%s: commits of %v changes, want %v", what, s.sizes, sizes)
			}
			s.sizes = nil
		}
		put(1)
		want("the first", 1)
		put(2)
		pass(s.takes - 1)
		put(1)
		want("at rest")
		s.takes = time.Second
		pass(1)
		want("after the rest", 3)
		put(1)
		pass(time.Millisecond - 1)
		want("at rest after a long transaction")
		pass(1)
		want("after the longest rest", 1)
		many := make([]pending, manyChanges)
		for i := range many {
			many[i] = pending{kind: ChangeNotify, cluster: "c", other: &Change{Kind: ChangeNotify, Cluster: "c"}}
		}
		c.committer.put(many...)
		synctest.Wait()
		want("many", manyChanges)
		put(1)
		want("after many", 1)
		put(1)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want("ended at rest")
	})
}
