package bolt_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
)

// TestLongScans reads a history that takes several transactions to go through.
func TestLongScans(t *testing.T) {
	const total = 17_000
	s := open(t, newFile(t))
	b := &engine.Batch{Revision: 1, Now: epoch}
	for i := 1; i <= total; i++ {
		r := &engine.EvictionRecord{Seq: uint64(i), UID: "u", Pod: "many", State: engine.StateClosed, ClosedAt: epoch.Add(time.Duration(i))}
		if i == 1 || i == 10_000 {
			r.Pod = "few"
		}
		if i%2 == 0 {
			r.Due = r.ClosedAt.Add(time.Hour)
		}
		b.Changes = append(b.Changes, engine.Change{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(r)})
	}
	b.Changes = append(b.Changes, engine.Change{Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(storetest.Eviction("a", total+1))})
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	page, err := s.History(t.Context(), engine.HistoryQuery{Cluster: "a", Pod: "few", Limit: 2})
	if err != nil || len(page.Evictions) != 2 || page.Evictions[0].Seq != 10_000 || page.Evictions[1].Seq != 1 || page.Cursor != "" {
		t.Errorf("a filter that matches two: %+v, error %v", page, err)
	}
	all, err := storetest.History(t.Context(), s, engine.HistoryQuery{Cluster: "a", Limit: 5000})
	if err != nil || len(all) != total {
		t.Fatalf("%d entries, want %d, error %v", len(all), total, err)
	}
	for i, r := range all {
		if r.Seq != uint64(total-i) {
			t.Fatalf("entry %d is %d, want %d", i, r.Seq, total-i)
		}
	}
	for _, seq := range []uint64{1, 2, total} {
		if r, err := s.HistoryEviction(t.Context(), "a", seq); err != nil || r.Seq != seq {
			t.Errorf("closed eviction %d: %+v, error %v", seq, r, err)
		}
	}
	for _, seq := range []uint64{0, total + 1, total + 2} {
		if _, err := s.HistoryEviction(t.Context(), "a", seq); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%d, which is not there: %v", seq, err)
		}
	}
}

// A change that cannot be encoded is named, and nothing of its batch is written, where
// evictions are encoded ahead of the transaction too.
func TestBadChangeOfALargeBatch(t *testing.T) {
	file := newFile(t)
	s := open(t, file)
	b := &engine.Batch{Revision: 1, Now: epoch}
	for i := 1; i <= 1000; i++ {
		r := &engine.EvictionRecord{Seq: uint64(i), UID: "u", Pod: "p", State: engine.StateClosed, ClosedAt: epoch.Add(time.Duration(i))}
		if i == 701 {
			r.Pod = "\xff"
		}
		b.Changes = append(b.Changes, engine.Change{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(r)})
	}
	if err := s.Commit(t.Context(), b); !errors.Is(err, store.ErrBadChange) || !strings.Contains(err.Error(), `change 700 of cluster "a"`) {
		t.Fatalf("error %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := storetest.History(t.Context(), open(t, file), engine.HistoryQuery{Cluster: "a", Limit: 5000})
	if err != nil || len(all) != 0 {
		t.Errorf("%d evictions of a refused batch, error %v", len(all), err)
	}
}

// TestFindIsNear: a closed eviction is found among few keys, however old it is, as
// long as it was closed not too long after it was opened; any other is found too.
func TestFindIsNear(t *testing.T) {
	const total = 20_000
	s := open(t, newFile(t))
	b := &engine.Batch{Revision: 1, Now: epoch}
	for seq := uint64(1); seq <= total; seq++ {
		wait := time.Duration(seq%7) * 100
		if seq%1001 == 0 {
			wait = 1_000_000
		}
		r := storetest.Closed("a", seq, epoch.Add(time.Duration(seq)+wait), seq%3 == 0)
		b.Changes = append(b.Changes, engine.Change{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(r)})
	}
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= total; seq += 10 {
		keys := 2000
		if seq%1001 == 0 {
			keys = 2 * total
		}
		if found, err := bolt.FindWithin(s, "a", seq, keys); !found || err != nil {
			t.Errorf("eviction %d is not found among %d keys: %v", seq, keys, err)
		}
	}
}

// TestPrunedIsLookedForOnce: once one pruned eviction was asked for, others are
// known to be gone without a walk over all keys, and what is there is found still.
func TestPrunedIsLookedForOnce(t *testing.T) {
	const total, pruned, late = 60_000, 5_000, 50_001
	s := open(t, newFile(t))
	closing := func(seq uint64) engine.Change {
		at := epoch.Add(time.Duration(seq))
		if seq == late {
			at = epoch
		}
		return engine.Change{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(storetest.Closed("a", seq, at, false))}
	}
	b := &engine.Batch{Revision: 1, Now: epoch}
	for seq := uint64(1); seq <= total; seq++ {
		b.Changes = append(b.Changes, closing(seq))
	}
	commit := func(b *engine.Batch) {
		t.Helper()
		if err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	commit(b)
	// The late one goes with those that were opened first.
	if n, err := s.Prune(t.Context(), "a", epoch, engine.HistoryQuotas{SentCount: total - pruned, SentAge: time.Hour, EarlyCount: total, EarlyAge: time.Hour}, pruned); err != nil || n != pruned {
		t.Fatalf("pruned %d, %v", n, err)
	}
	ask := func(seq uint64, there bool) (transactions int) {
		t.Helper()
		before := bolt.Handle(s).Stats().TxN
		if _, err := s.HistoryEviction(t.Context(), "a", seq); there && err != nil || !there && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%d, there %t: %v", seq, there, err)
		}
		return bolt.Handle(s).Stats().TxN - before
	}
	if n := ask(1, false); n < 3 {
		t.Fatalf("the first took %d transactions: all keys fit into fewer than this test means", n)
	}
	for seq := uint64(2); seq < pruned; seq += 100 {
		if n := ask(seq, false); n > 1 {
			t.Errorf("pruned %d took %d transactions", seq, n)
		}
	}
	for seq := uint64(pruned + 1); seq < total; seq += 1000 {
		if n := ask(seq, seq != late); n > 1 {
			t.Errorf("%d took %d transactions", seq, n)
		}
	}
	commit(&engine.Batch{Revision: 2, Now: epoch, Changes: []engine.Change{closing(late), closing(total + 1)}})
	ask(late, true)
	ask(total+1, true)
	commit(&engine.Batch{Revision: 3, Now: epoch, Changes: []engine.Change{{Kind: engine.ChangeForgetCluster, Cluster: "a"}, closing(1)}})
	ask(1, true)
	ask(total, false)
}

// TestUnstorableValues: a value without a stored form fails the whole batch.
func TestUnstorableValues(t *testing.T) {
	open1, closed1, record := storetest.Eviction("a", 1), closed(2), storetest.Cluster("a")
	open1.State, closed1.CloseReason, record.Policy.Burst = 99, 99, -1
	for name, c := range map[string]engine.Change{
		"state":        {Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(open1)},
		"close reason": {Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(closed1)},
		"policy":       {Kind: engine.ChangePutCluster, Cluster: "a", Record: record},
		"node":         {Kind: engine.ChangePutNode, Cluster: "a", Node: &engine.NodeRecord{Name: "n", UID: "\xff"}},
		"reprieve":     {Kind: engine.ChangePutReprieve, Cluster: "a", Reprieve: &engine.ReprieveRecord{UID: "u", Pod: "\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t)
			s := open(t, path)
			good := engine.Change{Kind: engine.ChangePutNode, Cluster: "a", Node: storetest.Node("a", "n-1")}
			if err := s.Commit(t.Context(), &engine.Batch{Revision: 1, Changes: []engine.Change{good, c}}); !errors.Is(err, store.ErrBadChange) {
				t.Errorf("commit: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if c := load(t, path); len(c.Clusters) != 0 || c.Meta.Revision != 0 {
				t.Errorf("the batch is there in part: %+v", c)
			}
		})
	}
}
