package engine_test

import (
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// TestRequestsEndWithTheirNode replaces the node under an order: what was asked
// for before is over with the node (D15), what is asked for after counts.
func TestRequestsEndWithTheirNode(t *testing.T) {
	for name, first := range map[string]func(*bench){
		"delivered": func(*bench) {},
		"recalling": func(b *bench) {
			_, err := b.eng.Pause(b.Context(), cluster, engine.Pause{Namespace: "default", Reason: "test"})
			must(b.T, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, mem.New().Open)
			x := b.attach("x", 5)
			b.list("a")
			ask := func(id string, at time.Time) {
				t.Helper()
				_, err := b.eng.RequestEviction(t.Context(), engine.EvictionRequest{
					Cluster: cluster, ID: id, Requester: "me", Pod: engine.PodRef{UID: "uid-a"}, NotBefore: at,
				})
				must(t, err)
			}
			ask("before", epoch.Add(5*time.Second))
			b.advance(5 * time.Second)
			token := b.sink.take()[0].Token
			first(b)
			b.feedNow(upsertNode("n", &mNode{uid: "another"}))
			after := b.clock.Now().Add(time.Hour)
			ask("after", after)
			b.answer(x, token, engine.OutcomeRecalled)
			e := b.only()
			if len(e.Requests) != 1 || e.Requests[0].ID != "after" || e.State != engine.StateWaiting || !e.Due.Equal(after) {
				t.Errorf("open: %+v", e)
			}
			h, err := b.eng.History(t.Context(), engine.HistoryQuery{Cluster: cluster, Limit: 5})
			must(t, err)
			if len(h.Evictions) != 1 || h.Evictions[0].CloseReason != engine.CloseNodeDeleted {
				t.Errorf("history: %+v", h.Evictions)
			}
		})
	}
}
