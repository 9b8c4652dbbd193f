package storetest

import (
	"context"
	"encoding/base64"
	"errors"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

var historyCases = []suiteCase{
	{"history is newest first over both classes", func(h *harness) {
		h.commit(
			closeEviction(Closed("a", 1, at(10), false)), closeEviction(Closed("a", 2, at(30), true)), closeEviction(Closed("a", 3, at(20), false)),
			closeEviction(Closed("a", 4, at(20), true)), closeEviction(Closed("a", 5, at(20), false)), closeEviction(Closed("b", 6, at(99), false)),
			closeEviction(Closed("a", 7, time.Date(1966, 1, 1, 0, 0, 0, 5, time.UTC), true)), closeEviction(Closed("a", 8, time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), false)),
		)
		for range 2 {
			h.wantHistory(engine.HistoryQuery{}, 2, 5, 4, 3, 1, 8, 7)
			h.wantHistory(engine.HistoryQuery{Cluster: "b"}, 6)
			h.wantHistory(engine.HistoryQuery{Cluster: "unknown"})
			h.reopen()
		}
	}},
	{"history of times that fit no key", func(h *harness) {
		late, later := time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)
		h.commit(closeEviction(Closed("a", 1, late, false)), closeEviction(Closed("a", 2, at(1), false)), closeEviction(Closed("a", 3, time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC), false)))
		h.wantHistory(engine.HistoryQuery{}, 1, 2, 3)
		h.wantHistory(engine.HistoryQuery{Before: later}, 1, 2, 3)
		h.wantHistory(engine.HistoryQuery{Before: late}, 2, 3)
		h.wantHistory(engine.HistoryQuery{After: late}, 1)
		h.wantHistory(engine.HistoryQuery{After: later})
	}},
	{"history by filters", historyFilters},
	{"history in pages", historyPages},
	{"pages stay in place while history grows", func(h *harness) {
		for i := range uint64(6) {
			h.commit(closeEviction(Closed("a", i+1, at(int(i)), i%2 == 0)))
		}
		page, err := h.store.History(h.ctx, engine.HistoryQuery{Cluster: "a", Limit: 2})
		if err != nil {
			h.Fatal(err)
		}
		h.commit(closeEviction(Closed("a", 7, at(100), false)), closeEviction(Closed("a", 8, at(101), true)))
		h.reopen()
		h.wantHistory(engine.HistoryQuery{Limit: 2, Cursor: page.Cursor}, 4, 3, 2, 1)
	}},
	{"bad queries are refused", badQueries},
	{"one closed eviction by its sequence", oneClosed},
	{"a cancelled read ends", func(h *harness) {
		h.commit(closeEviction(Closed("a", 1, at(1), false)))
		ctx, cancel := context.WithCancel(h.ctx)
		cancel()
		if _, err := h.store.History(ctx, engine.HistoryQuery{Cluster: "a", Limit: 1}); !errors.Is(err, context.Canceled) {
			h.Errorf("history: %v", err)
		}
		if _, err := h.store.HistoryEviction(ctx, "a", 1); !errors.Is(err, context.Canceled) {
			h.Errorf("history of one: %v", err)
		}
		h.wantHistory(engine.HistoryQuery{}, 1)
	}},
}

func historyFilters(h *harness) {
	var all [5]*engine.EvictionRecord
	for i := range all {
		all[i] = Closed("a", uint64(i+1), at(10*(i+1)), i == 4)
		all[i].Requests, all[i].Cause.Requester = nil, ""
	}
	all[0].Namespace = "batch"
	all[1].Node = "node-2"
	all[2].Requests = []engine.Request{{ID: "x", Requester: "other"}, {ID: "y", Requester: "backend"}}
	all[3].Cause = engine.Cause{Kind: engine.CauseRequest, RequestID: "z", Requester: "backend"}
	all[3].CloseReason = engine.CloseGone
	var changes []engine.Change
	for _, r := range all {
		changes = append(changes, closeEviction(r))
	}
	h.commit(changes...)
	h.wantHistory(engine.HistoryQuery{Namespace: "batch"}, 1)
	h.wantHistory(engine.HistoryQuery{Namespace: "default"}, 5, 4, 3, 2)
	h.wantHistory(engine.HistoryQuery{Pod: "pod-3"}, 3)
	h.wantHistory(engine.HistoryQuery{UID: "uid-4"}, 4)
	h.wantHistory(engine.HistoryQuery{Node: "node-2"}, 2)
	h.wantHistory(engine.HistoryQuery{Requester: "backend"}, 4, 3)
	h.wantHistory(engine.HistoryQuery{Requester: "nobody"})
	h.wantHistory(engine.HistoryQuery{Reasons: []engine.CloseReason{engine.CloseGone, engine.CloseCancelled}}, 5, 4)
	h.wantHistory(engine.HistoryQuery{After: at(20)}, 5, 4, 3, 2)
	h.wantHistory(engine.HistoryQuery{Before: at(20)}, 1)
	h.wantHistory(engine.HistoryQuery{After: at(20), Before: at(50)}, 4, 3, 2)
	h.wantHistory(engine.HistoryQuery{After: at(20).Add(time.Nanosecond), Before: at(50), Namespace: "default", Limit: 1}, 4, 3)
	h.wantHistory(engine.HistoryQuery{After: at(50), Before: at(20)})
	h.wantHistory(engine.HistoryQuery{Namespace: "default", Pod: "pod-3", Node: "node-2"})
}

func historyPages(h *harness) {
	var changes []engine.Change
	var want []uint64
	for i := range 20 {
		changes = append(changes, closeEviction(Closed("a", uint64(i+1), at(i/3), i%3 == 1)))
		want = append([]uint64{uint64(i + 1)}, want...)
	}
	h.commit(changes...)
	for _, limit := range []int{1, 2, 3, 7, 19, 20, 21, 1000} {
		h.wantHistory(engine.HistoryQuery{Limit: limit}, want...)
	}
	page, err := h.store.History(h.ctx, engine.HistoryQuery{Cluster: "a", Limit: 20})
	if err != nil || page.Cursor != "" {
		h.Errorf("the last page has cursor %q, error %v", page.Cursor, err)
	}
	page, err = h.store.History(h.ctx, engine.HistoryQuery{Cluster: "a", Limit: 19})
	if err != nil || page.Cursor == "" {
		h.Errorf("the page before the last has cursor %q, error %v", page.Cursor, err)
	}
}

func badQueries(h *harness) {
	h.commit(closeEviction(Closed("a", 1, at(1), false)), closeEviction(Closed("a", 2, at(2), false)))
	page, err := h.store.History(h.ctx, engine.HistoryQuery{Cluster: "a", Limit: 1})
	if err != nil || page.Cursor == "" {
		h.Fatalf("cursor %q, error %v", page.Cursor, err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(page.Cursor)
	if err != nil {
		raw = []byte(page.Cursor)
	}
	raw[len(raw)/2] ^= 1
	for name, q := range map[string]engine.HistoryQuery{
		"no cluster":          {Limit: 1},
		"no limit":            {Cluster: "a"},
		"negative limit":      {Cluster: "a", Limit: -1},
		"cursor of garbage":   {Cluster: "a", Limit: 1, Cursor: "!!"},
		"cursor cut short":    {Cluster: "a", Limit: 1, Cursor: page.Cursor[:len(page.Cursor)-4]},
		"cursor with a tail":  {Cluster: "a", Limit: 1, Cursor: page.Cursor + "AAAA"},
		"cursor with a flaw":  {Cluster: "a", Limit: 1, Cursor: base64.RawURLEncoding.EncodeToString(raw)},
		"cursor made of text": {Cluster: "a", Limit: 1, Cursor: "bm90LWEtY3Vyc29y"},
	} {
		if _, err := h.store.History(h.ctx, q); !errors.Is(err, engine.ErrInvalid) {
			h.Errorf("%s: %v, want it refused as invalid", name, err)
		}
	}
	h.wantHistory(engine.HistoryQuery{Limit: 1, Cursor: page.Cursor}, 1)
}

func oneClosed(h *harness) {
	h.commit(
		closeEviction(Closed("a", 1, at(30), false)), closeEviction(Closed("a", 2, at(20), true)), closeEviction(Closed("a", 3, at(10), false)),
		putEviction(Eviction("a", 4)), closeEviction(Closed("b", 5, at(1), false)),
	)
	for seq, want := range map[uint64]*engine.EvictionRecord{1: Closed("a", 1, at(30), false), 2: Closed("a", 2, at(20), true), 3: Closed("a", 3, at(10), false)} {
		got, err := h.store.HistoryEviction(h.ctx, "a", seq)
		if err != nil {
			h.Errorf("closed eviction %d: %v", seq, err)
		} else if diff := Diff(want, got); diff != "" {
			h.Errorf("closed eviction %d (-want +got):\n%s", seq, diff)
		}
	}
	for _, seq := range []uint64{0, 4, 5, 99} {
		if _, err := h.store.HistoryEviction(h.ctx, "a", seq); !errors.Is(err, engine.ErrNotFound) {
			h.Errorf("closed eviction %d: %v, want not found", seq, err)
		}
	}
	if _, err := h.store.HistoryEviction(h.ctx, "unknown", 1); !errors.Is(err, engine.ErrNotFound) {
		h.Errorf("closed eviction of an unknown cluster: %v, want not found", err)
	}
}
