package storetest

import (
	"context"
	"errors"
	"sync"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
)

var commitCases = []suiteCase{
	{"changes of a batch apply in order", orderInBatch},
	{"what is not stored is left out", notStored},
	{"the sequence never goes down", lastSeq},
	{"closing moves an eviction to history", func(h *harness) {
		h.commit(putEviction(Eviction("a", 1)), putEviction(Eviction("a", 2)), putReprieve(Reprieve("a", "uid-1")), putReprieve(Reprieve("a", "uid-2")))
		drop, keep := closeEviction(Closed("a", 1, at(9), false)), closeEviction(Closed("a", 2, at(9), true))
		drop.DropReprieve = true
		h.commit(drop, keep)
		h.wantLoad(ClusterContents{LoadedCluster: engine.LoadedCluster{Record: engine.ClusterRecord{Name: "a"}, LastSeq: 2},
			Reprieves: []*engine.ReprieveRecord{Reprieve("a", "uid-2")}})
		h.wantHistory(engine.HistoryQuery{}, 2, 1)
	}},
	{"deleting removes", func(h *harness) {
		h.commit(putNode(Node("a", "n")), putNode(Node("a", "o")), putReprieve(Reprieve("a", "u")), putReprieve(Reprieve("a", "v")))
		h.commit(deleteNode("a", "n"), deleteNode("a", "unknown"), deleteReprieve("a", "v"), deleteReprieve("a", "unknown"))
		h.commit(deleteNode("unknown", "n"), deleteReprieve("unknown", "u"))
		h.wantLoad(ClusterContents{LoadedCluster: named("a"), Nodes: []*engine.NodeRecord{Node("a", "o")},
			Reprieves: []*engine.ReprieveRecord{Reprieve("a", "u")}})
	}},
	{"forgetting removes a cluster and nothing else", forgetting},
	{"a bad change breaks the handle and writes nothing", badChanges},
	{"a cancelled write breaks the handle", cancelledWrites},
	{"a closed handle refuses everything", closedHandle},
	{"what was handed over may not be read after the commit", func(h *harness) {
		r := Eviction("a", 1)
		h.commit(putEviction(r))
		r.Requests[0].ID, r.Delivery.Token = "changed", "changed"
		h.wantLoad(ClusterContents{LoadedCluster: engine.LoadedCluster{Record: engine.ClusterRecord{Name: "a"}, LastSeq: 1},
			Evictions: []*engine.EvictionRecord{Eviction("a", 1)}})
	}},
	{"readers run beside commits", concurrentReaders},
}

func orderInBatch(h *harness) {
	first, last := Cluster("a"), Cluster("a")
	first.UID, last.PolicyVersion = "other", 9
	second := Eviction("a", 1)
	second.Attempts = 9
	h.commit(
		putCluster(first), putNode(Node("a", "n")), deleteNode("a", "n"), putNode(Node("a", "m")), deleteNode("a", "m"), putNode(Node("a", "m")),
		putEviction(Eviction("a", 1)), putReprieve(Reprieve("a", "u")), deleteReprieve("a", "u"), putEviction(second), putCluster(last),
	)
	want := ClusterContents{
		LoadedCluster: engine.LoadedCluster{Record: *last, LastSeq: 1},
		Nodes:         []*engine.NodeRecord{Node("a", "m")}, Evictions: []*engine.EvictionRecord{second},
	}
	h.wantLoad(want)
	h.commit(putCluster(first), forget("a"), putNode(Node("a", "z")), putCluster(Cluster("b")), forget("b"), putCluster(Cluster("c")), forget("c"), putCluster(renamed(last, "c")))
	h.wantLoad(
		ClusterContents{LoadedCluster: named("a"), Nodes: []*engine.NodeRecord{Node("a", "z")}},
		ClusterContents{LoadedCluster: engine.LoadedCluster{Record: *renamed(last, "c")}},
	)
}

func notStored(h *harness) {
	r, w := Eviction("a", 1), Eviction("a", 1)
	r.State, r.Hold, r.HoldUntil = engine.StateDue, engine.HoldPaused, at(99)
	w.State = engine.StateWaiting
	c, cw := Cluster("a"), Cluster("a")
	c.Policy.Fields, cw.Policy = engine.PolicyBudgetWait|engine.PolicyIgnoredTaintKeys, engine.PolicyPatch{
		Fields: engine.PolicyBudgetWait | engine.PolicyIgnoredTaintKeys,
		Policy: engine.Policy{BudgetWait: c.Policy.BudgetWait, IgnoredTaintKeys: c.Policy.IgnoredTaintKeys},
	}
	h.commit(putEviction(r), putCluster(c))
	h.wantLoad(ClusterContents{LoadedCluster: engine.LoadedCluster{Record: *cw, LastSeq: 1}, Evictions: []*engine.EvictionRecord{w}})
}

func lastSeq(h *harness) {
	want := func(last uint64) {
		h.Helper()
		for range 2 {
			if got := h.load().Clusters[0].LastSeq; got != last {
				h.Errorf("last sequence is %d, want %d", got, last)
			}
			h.reopen()
		}
	}
	h.commit(putEviction(Eviction("a", 5)))
	want(5)
	h.commit(putEviction(Eviction("a", 3)))
	want(5)
	h.commit(closeEviction(Closed("a", 5, at(1), true)), closeEviction(Closed("a", 3, at(1), false)))
	want(5)
	h.commit(closeEviction(Closed("a", 9, at(1), true)))
	want(9)
	if _, err := h.store.Prune(h.ctx, "a", at(2), engine.HistoryQuotas{}, 100); err != nil {
		h.Fatal(err)
	}
	h.wantHistory(engine.HistoryQuery{})
	want(9)
}

func forgetting(h *harness) {
	for _, name := range []string{"a", "a-b", "b"} {
		h.commit(putCluster(Cluster(name)), putNode(Node(name, "n")), putHealth(Health(name, "n")), putReprieve(Reprieve(name, "u")),
			putEviction(Eviction(name, 4)), closeEviction(Closed(name, 3, at(1), false)))
	}
	h.commit(forget("a"), forget("unknown"))
	kept := func(name string) ClusterContents {
		return ClusterContents{
			LoadedCluster: engine.LoadedCluster{Record: *Cluster(name), LastSeq: 4},
			Nodes:         []*engine.NodeRecord{Node(name, "n")}, Healths: []*engine.NodeHealthRecord{Health(name, "n")},
			Reprieves: []*engine.ReprieveRecord{Reprieve(name, "u")}, Evictions: []*engine.EvictionRecord{Eviction(name, 4)},
		}
	}
	h.wantLoad(kept("a-b"), kept("b"))
	h.wantHistory(engine.HistoryQuery{})
	h.wantHistory(engine.HistoryQuery{Cluster: "a-b"}, 3)
	h.commit(putNode(Node("a", "n")))
	h.wantLoad(ClusterContents{LoadedCluster: named("a"), Nodes: []*engine.NodeRecord{Node("a", "n")}}, kept("a-b"), kept("b"))
}

func badChanges(h *harness) {
	h.commit(putNode(Node("a", "n")))
	bad := map[string]engine.Change{
		"no cluster":                putNode(Node("", "n")),
		"unknown kind":              {Kind: 99, Cluster: "a"},
		"no kind":                   {Cluster: "a"},
		"no eviction":               {Kind: engine.ChangePutEviction, Cluster: "a"},
		"eviction without sequence": putEviction(Eviction("a", 0)),
		"closing without a UID":     {Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: VersionOf(&engine.EvictionRecord{Seq: 1})},
		"no node":                   {Kind: engine.ChangePutNode, Cluster: "a"},
		"node without name":         deleteNode("a", ""),
		"no health":                 {Kind: engine.ChangePutHealth, Cluster: "a"},
		"health without name":       deleteHealth("a", ""),
		"no reprieve":               {Kind: engine.ChangePutReprieve, Cluster: "a"},
		"reprieve without UID":      deleteReprieve("a", ""),
		"no record":                 {Kind: engine.ChangePutCluster, Cluster: "a"},
	}
	for name, c := range bad {
		b := &engine.Batch{Revision: 50, Now: at(50), Changes: []engine.Change{putNode(Node("a", "m")), c, putNode(Node("b", "m"))}}
		if err := h.store.Commit(h.ctx, b); !errors.Is(err, store.ErrBadChange) {
			h.Errorf("%s: commit says %v", name, err)
		}
		h.wantBroken(name)
		h.reopen()
		c := h.load()
		if diff := Diff([]ClusterContents{{LoadedCluster: named("a"), Nodes: []*engine.NodeRecord{Node("a", "n")}}}, c.Clusters); diff != "" {
			h.Errorf("%s: the batch is there in part (-want +got):\n%s", name, diff)
		}
		if c.Meta.Revision != 1 {
			h.Errorf("%s: revision is %d, want 1", name, c.Meta.Revision)
		}
	}
}

// wantBroken checks that the handle refuses everything after a failed write.
func (h *harness) wantBroken(after string) {
	h.Helper()
	for call, err := range calls(h.ctx, h.store) {
		if !errors.Is(err, store.ErrBroken) {
			h.Errorf("%s after %s: %v, want it to refuse until it is opened again", call, after, err)
		}
	}
}

// calls makes every call that can fail.
func calls(ctx context.Context, s engine.Store) map[string]error {
	out := map[string]error{
		"commit": s.Commit(ctx, &engine.Batch{Revision: 99}),
		"load":   s.Load(ctx, &visitor{}),
	}
	_, out["history"] = s.History(ctx, engine.HistoryQuery{Cluster: "a", Limit: 1})
	_, out["history of one"] = s.HistoryEviction(ctx, "a", 1)
	_, out["prune"] = s.Prune(ctx, "a", at(0), engine.HistoryQuotas{}, 1)
	return out
}

func cancelledWrites(h *harness) {
	h.commit(closeEviction(Closed("a", 1, at(1), false)))
	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	if err := h.store.Commit(ctx, h.batch(putNode(Node("a", "n")))); !errors.Is(err, context.Canceled) {
		h.Errorf("cancelled commit: %v", err)
	}
	h.wantBroken("a cancelled commit")
	h.reopen()
	if _, err := h.store.Prune(ctx, "a", at(9), engine.HistoryQuotas{}, 9); !errors.Is(err, context.Canceled) {
		h.Errorf("cancelled prune: %v", err)
	}
	h.wantBroken("a cancelled prune")
	h.reopen()
	h.wantHistory(engine.HistoryQuery{}, 1)
	h.wantLoad(ClusterContents{LoadedCluster: engine.LoadedCluster{Record: engine.ClusterRecord{Name: "a"}, LastSeq: 1}})
}

func closedHandle(h *harness) {
	h.commit(putNode(Node("a", "n")))
	old := h.store
	h.reopen()
	for call, err := range calls(h.ctx, old) {
		if !errors.Is(err, store.ErrClosed) {
			h.Errorf("%s of a closed handle: %v", call, err)
		}
	}
	if err := old.Close(); err != nil {
		h.Errorf("second close: %v", err)
	}
	// A reader of metrics may come a moment too late.
	if size, free := old.Size(), old.Free(); size < 0 || free < 0 {
		h.Errorf("size of a closed handle: %d, %d free", size, free)
	}
	h.commit(putNode(Node("a", "o")))
}

func concurrentReaders(h *harness) {
	const commits, readers = 40, 4
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			seen := 0
			for over := false; !over; {
				select {
				case <-done:
					over = true
				default:
				}
				all, err := History(h.ctx, h.store, engine.HistoryQuery{Cluster: "a", Limit: 7})
				if err != nil {
					h.Errorf("history beside commits: %v", err)
					return
				}
				if len(all) < seen || !descending(all) {
					h.Errorf("history beside commits went from %d to %d entries, or is out of order: %v", seen, len(all), seqs(all))
					return
				}
				seen = len(all)
			}
			if seen != 2*commits {
				h.Errorf("history after the last commit has %d entries, want %d", seen, 2*commits)
			}
		})
	}
	for i := range commits {
		seq := uint64(2*i + 1)
		h.commit(closeEviction(Closed("a", seq, at(i), true)), closeEviction(Closed("a", seq+1, at(i), false)))
	}
	close(done)
	wg.Wait()
}

func descending(rs []*engine.EvictionRecord) bool {
	for i := 1; i < len(rs); i++ {
		if c := rs[i-1].ClosedAt.Compare(rs[i].ClosedAt); c < 0 || c == 0 && rs[i-1].Seq <= rs[i].Seq {
			return false
		}
	}
	return true
}

func renamed(r *engine.ClusterRecord, name string) *engine.ClusterRecord {
	c := *r
	c.Name = name
	return &c
}
