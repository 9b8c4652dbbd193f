package engine_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// TestClosingEvictionIsFound asks for an eviction whose close is on its way to
// the disk: it is no longer among the open ones, and is found in history.
func TestClosingEvictionIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan, gate := fault.NewScript(), fault.NewGate()
		b := newBench(t, fault.New(mem.New().Open, plan))
		b.list("a")
		id := engine.EvictionID(cluster, b.only().Seq)
		plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: gate}})
		must(t, b.feed.Batch(t.Context(), 4, []engine.Event{upsertNode("n", &mNode{uid: "node"})}))
		<-gate.Reached()
		type answer struct {
			closed []*engine.EvictionRecord
			err    error
		}
		got, listed := make(chan answer, 1), make(chan answer, 1)
		go func() {
			e, err := b.eng.Get(t.Context(), id)
			got <- answer{[]*engine.EvictionRecord{e}, err}
		}()
		go func() {
			page, err := b.eng.History(t.Context(), engine.HistoryQuery{Cluster: cluster, Limit: 10})
			listed <- answer{page.Evictions, err}
		}()
		synctest.Wait()
		gate.Release()
		for how, c := range map[string]chan answer{"by its id": got, "in history": listed} {
			a := <-c
			if a.err != nil || len(a.closed) != 1 || a.closed[0].CancelCause != engine.CancelTaintRemoved {
				t.Errorf("%s: %v, %v", how, a.closed, a.err)
			}
		}
	})
}

// endless is a sink that does not survive the end of its feed.
type endless struct{ *sink }

func (endless) Ended(error) { panic("the sink's") }

// TestPanicOfATimer lets the end of a silent feed panic, in the clock's goroutine:
// like a panic in the engine's own it costs the state in memory, not the process.
func TestPanicOfATimer(t *testing.T) {
	c, health := clock.NewVirtual(epoch), make(chan error, 10)
	eng := engine.New(engine.Options{
		Clock: c, Open: mem.New().Open, PruneEvery: -1, FeedTimeout: 30 * time.Second,
		OnHealth: func(_ bool, err error) { health <- err },
	})
	must(t, eng.Start(t.Context()))
	defer eng.Stop(t.Context())
	must(t, <-health)
	_, _, err := eng.OpenFeed(engine.FeedHello{Cluster: cluster, ClusterUID: "c", FeederID: "f"}, endless{&sink{}})
	must(t, err)
	c.Set(epoch.Add(31 * time.Second))
	c.Fire()
	if err := <-health; err == nil || err.Error() != "panic: the sink's" {
		t.Errorf("health: %v", err)
	}
	if _, err := eng.Revision(); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("the engine goes on: %v", err)
	}
}
