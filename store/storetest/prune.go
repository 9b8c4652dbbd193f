package storetest

import (
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

var pruneCases = []suiteCase{
	{"prune by age, each class by its own", func(h *harness) {
		fill(h, 1, 10)
		q := engine.HistoryQuotas{SentAge: 3 * time.Second, EarlyAge: 6 * time.Second, SentCount: 100, EarlyCount: 100}
		// Even ones are early. At 10 s the sent ones of before 7 s are too old, and the early ones of before 4 s.
		h.wantPrune(at(10), q, 100, 4)
		h.wantHistory(engine.HistoryQuery{}, 10, 9, 8, 7, 6, 4)
		h.wantPrune(at(10), q, 100, 0)
	}},
	{"prune by count, each class by its own", func(h *harness) {
		fill(h, 1, 10)
		q := engine.HistoryQuotas{SentAge: time.Hour, EarlyAge: time.Hour, SentCount: 4, EarlyCount: 1}
		h.wantPrune(at(10), q, 100, 5)
		h.wantHistory(engine.HistoryQuery{}, 10, 9, 7, 5, 3)
		// Counts keep up with commits after the first prune, and across a restart.
		fill(h, 11, 14)
		h.wantPrune(at(14), q, 100, 4)
		h.wantHistory(engine.HistoryQuery{}, 14, 13, 11, 9, 7)
		h.reopen()
		fill(h, 15, 15)
		h.wantPrune(at(15), q, 100, 1)
		h.wantHistory(engine.HistoryQuery{}, 15, 14, 13, 11, 9)
	}},
	{"a flood of early ones washes nothing out", func(h *harness) {
		h.commit(closeEviction(Closed("a", 1, at(0), false)))
		for i := range 50 {
			h.commit(closeEviction(Closed("a", uint64(i+2), at(i), true)))
		}
		h.wantPrune(at(60), engine.HistoryQuotas{SentAge: time.Hour, EarlyAge: time.Hour, SentCount: 1, EarlyCount: 2}, 1000, 48)
		h.wantHistory(engine.HistoryQuery{}, 51, 50, 1)
	}},
	{"prune at most so many at once", func(h *harness) {
		fill(h, 1, 10)
		q := engine.HistoryQuotas{SentAge: time.Hour, EarlyAge: time.Hour, SentCount: 2, EarlyCount: 2}
		h.wantPrune(at(10), q, 2, 2)
		h.wantHistory(engine.HistoryQuery{}, 10, 9, 8, 7, 6, 5, 4, 2)
		h.wantPrune(at(10), q, 2, 2)
		h.wantPrune(at(10), q, 2, 2)
		h.wantPrune(at(10), q, 2, 0)
		h.wantPrune(at(10), q, 0, 0)
		h.wantHistory(engine.HistoryQuery{}, 10, 9, 8, 7)
	}},
	{"prune leaves other clusters and what is open alone", func(h *harness) {
		h.commit(closeEviction(Closed("a", 1, at(0), false)), closeEviction(Closed("b", 1, at(0), false)), putEviction(Eviction("a", 2)))
		h.wantPrune(at(9), engine.HistoryQuotas{}, 10, 1)
		h.wantHistory(engine.HistoryQuery{})
		h.wantHistory(engine.HistoryQuery{Cluster: "b"}, 1)
		h.wantLoad(
			ClusterContents{LoadedCluster: engine.LoadedCluster{Record: engine.ClusterRecord{Name: "a"}, LastSeq: 2}, Evictions: []*engine.EvictionRecord{Eviction("a", 2)}},
			ClusterContents{LoadedCluster: engine.LoadedCluster{Record: engine.ClusterRecord{Name: "b"}, LastSeq: 1}},
		)
	}},
	{"counts begin anew when a cluster was forgotten", func(h *harness) {
		q := engine.HistoryQuotas{SentAge: time.Hour, EarlyAge: time.Hour, SentCount: 3, EarlyCount: 3}
		fill(h, 1, 6)
		h.wantPrune(at(6), q, 100, 0)
		h.commit(forget("a"), closeEviction(Closed("a", 1, at(7), false)))
		h.wantPrune(at(8), q, 100, 0)
		h.wantHistory(engine.HistoryQuery{}, 1)
		fill(h, 8, 14)
		h.wantPrune(at(14), q, 100, 2)
		h.wantHistory(engine.HistoryQuery{}, 14, 13, 12, 11, 10, 9)
	}},
	{"prune of an unknown cluster does nothing", func(h *harness) {
		if n, err := h.store.Prune(h.ctx, "unknown", at(0), engine.HistoryQuotas{}, 10); n != 0 || err != nil {
			h.Errorf("pruned %d, error %v", n, err)
		}
	}},
}

// fill closes evictions first to last of cluster a, one a second; even ones are early.
func fill(h *harness, first, last int) {
	h.Helper()
	var changes []engine.Change
	for i := first; i <= last; i++ {
		changes = append(changes, closeEviction(Closed("a", uint64(i), at(i), i%2 == 0)))
	}
	h.commit(changes...)
}

func (h *harness) wantPrune(now time.Time, q engine.HistoryQuotas, limit, want int) {
	h.Helper()
	n, err := h.store.Prune(h.ctx, "a", now, q, limit)
	if err != nil {
		h.Fatalf("prune: %v", err)
	}
	if n != want {
		h.Errorf("pruned %d, want %d", n, want)
	}
}
