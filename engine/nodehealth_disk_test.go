package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// orderBook is a store that knows the orders for nodes that are on disk, and can fail.
type orderBook struct {
	engine.Store
	*orderPages
}

type orderPages struct {
	mu     sync.Mutex // guards what follows
	tokens map[string]bool
	// failAt fails the commit of a delivery after it was made: its outcome is unknown.
	failAt int
}

func (b *orderBook) Commit(ctx context.Context, batch *engine.Batch) error {
	if err := b.Store.Commit(ctx, batch); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range batch.Changes {
		if r := batch.Changes[i].Health; r != nil && r.Delivery != nil && !b.tokens[r.Delivery.Token] {
			b.tokens[r.Delivery.Token] = true
			if b.failAt--; b.failAt == 0 {
				return errors.New("the disk said no, or did it")
			}
		}
	}
	return nil
}

func (b *orderPages) has(token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens[token]
}

func (b *orderPages) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tokens) == 0
}

func openBook(pages *orderPages) engine.StoreOpener {
	data := mem.New()
	return func(ctx context.Context) (engine.Store, error) {
		s, err := data.Open(ctx)
		return &orderBook{Store: s, orderPages: pages}, err
	}
}

// strictSink looks at the disk when an order comes.
type strictSink struct {
	*sink
	pages *orderPages
	early int
}

func (s *strictSink) Order(o engine.Order) bool {
	if !s.pages.has(o.Token) {
		s.early++
	}
	return s.sink.Order(o)
}

func TestI1NodeOrderIsOnDiskBeforeItLeaves(t *testing.T) {
	pages := &orderPages{tokens: map[string]bool{}}
	w := newWard(t, openBook(pages), engine.NodeHealthEnforce, "a", "b", "c")
	strict := &strictSink{sink: w.sink, pages: pages}
	x, err := w.eng.AttachExecutor(engine.ExecutorHello{ID: "x", Clusters: []string{"*"}, Capacity: 10, NodeOrders: true}, strict)
	must(t, err)
	w.x, w.deaf["a"] = x, true
	orders := 0
	for end := w.clock.Now().Add(70 * time.Second); w.clock.Now().Before(end); {
		w.advance(2 * time.Second)
		w.renew()
		for _, o := range w.sink.take() {
			orders++
			w.answer(w.x, o.Token, engine.OutcomeFailed)
		}
	}
	if orders < 4 || strict.early > 0 {
		t.Fatalf("I1: %d of %d orders left before they were on disk", strict.early, orders)
	}
}

// TestI1NodeOrderOfUnknownOutcome fails the commit of a delivery that is on disk
// all the same: the order has not left, and nobody has it, until its deadline.
func TestI1NodeOrderOfUnknownOutcome(t *testing.T) {
	pages := &orderPages{tokens: map[string]bool{}, failAt: 1}
	w := newWard(t, openBook(pages), engine.NodeHealthEnforce, "a", "b", "c")
	w.nodes["a"].Conditions[health.CondReady] = health.StatusFalse
	w.seq++
	must(t, w.feed.Batch(t.Context(), w.seq, []engine.Event{w.event("a")}))
	for pages.empty() {
		w.clock.Set(w.clock.Now().Add(time.Second))
		w.clock.Fire()
		_ = w.eng.Settle(t.Context()) // It ends with the store.
	}
	waitReopen(t, w.bench)
	if n := len(w.sink.take()); n != 0 {
		t.Fatalf("I1: %d orders left although their commit had failed", n)
	}
	w.attachNodes()
	w.list()
	w.pass(24 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("I5: a second order while the first may be out: tainted %s", n.Taints)
	}
	w.pass(20 * time.Second)
	if n := w.nodes["a"]; n.Taints != health.Set(health.NotReadyNoSchedule, health.NotReadyNoExecute) {
		t.Errorf("after the deadline: tainted %s", n.Taints)
	}
}

// TestI6UnknownOfANodeOrderWaitsForItsEnd gives an order for a node a second answer
// while the first is on its way to the disk: it is refused when that is there, since
// the delivery is live again if it never gets there.
func TestI6UnknownOfANodeOrderWaitsForItsEnd(t *testing.T) {
	plan, gate := fault.NewScript(), fault.NewGate()
	w := newWard(t, fault.New(mem.New().Open, plan), engine.NodeHealthEnforce, "a", "b", "c")
	t.Cleanup(gate.Release)
	w.nodes["a"].Conditions[health.CondReady] = health.StatusFalse
	w.send(w.event("a"))
	w.advance(time.Second)
	token := w.sink.take()[0].Token
	plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: gate}})
	w.nodes["b"].Conditions[health.CondReady] = health.StatusFalse
	w.seq++
	must(t, w.feed.Batch(t.Context(), w.seq, []engine.Event{w.event("b")}))
	<-gate.Reached()
	var mu sync.Mutex
	var said []string
	told := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(said)
	}
	for _, name := range []string{"first", "second"} {
		w.x.Result(engine.Result{Token: token, Outcome: engine.OutcomeFailed}, func(ok bool) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, map[bool]string{true: name + " taken", false: name + " unknown"}[ok])
		})
		// A query comes after what the owner has taken.
		if x := w.explain("a"); x.Node.Health.Delivery != nil {
			t.Fatal("the order has not ended")
		}
	}
	if got := told(); len(got) > 0 {
		t.Fatalf("I6: before the end of the delivery was on disk: %v", got)
	}
	gate.Release()
	w.settle()
	if got, want := told(), []string{"first taken", "second unknown"}; !slices.Equal(got, want) {
		t.Errorf("I6: replies %v, want %v", got, want)
	}
}
