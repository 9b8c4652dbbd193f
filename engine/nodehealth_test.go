package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// ward is an engine that watches the health of some nodes, on a virtual clock. It
// plays the agent: it tells of leases every 2 s, and of nodes as orders leave them.
type ward struct {
	*bench
	open  engine.StoreOpener
	mode  engine.NodeHealth
	nodes map[string]*health.Node
	// deaf nodes do not renew; blind tells of no leases at all.
	deaf  map[string]bool
	blind bool
	x     *engine.ExecutorSession
	log   *slog.Logger
}

func newWard(t *testing.T, open engine.StoreOpener, mode engine.NodeHealth, names ...string) *ward {
	w := &ward{
		bench: &bench{T: t, clock: clock.NewVirtual(epoch), sink: &sink{}, health: make(chan bool, 100)},
		open:  open, mode: mode, nodes: map[string]*health.Node{}, deaf: map[string]bool{},
	}
	for _, name := range names {
		w.nodes[name] = wellNode(name)
	}
	w.start()
	t.Cleanup(func() { w.eng.Stop(context.Background()) })
	return w
}

func wellNode(name string) *health.Node {
	n := &health.Node{Name: name, UID: "uid-" + name, Zone: "r/z", ReadyReason: "KubeletReady", Heartbeat: epoch}
	for c := range n.Conditions {
		n.Conditions[c] = health.StatusFalse
	}
	n.Conditions[health.CondReady] = health.StatusTrue
	return n
}

// start runs an engine on the store, with an executor and a list.
func (w *ward) start() {
	w.eng = engine.New(engine.Options{
		Clock: w.clock, Open: w.open, Shards: 2, FeedTimeout: -1, PruneEvery: -1, Logger: w.log,
		ClusterPolicy: func(string) engine.PolicyPatch {
			return engine.PolicyPatch{
				Policy: engine.Policy{Mode: engine.ModeEnforce, NodeHealth: w.mode}, Fields: engine.PolicyMode | engine.PolicyNodeHealth,
			}
		},
		Jitter:   func(d time.Duration) time.Duration { return d },
		OnHealth: func(serving bool, _ error) { w.health <- serving },
	})
	must(w.T, w.eng.Start(w.Context()))
	w.attachNodes()
	w.list()
}

func (w *ward) attachNodes() {
	x, err := w.eng.AttachExecutor(engine.ExecutorHello{ID: "x", Clusters: []string{"*"}, Capacity: 10, NodeOrders: true}, w.sink)
	must(w.T, err)
	w.x = x
	w.settle()
}

func (w *ward) restart(down time.Duration) {
	w.eng.Stop(context.Background())
	w.clock.Set(w.clock.Now().Add(down))
	w.start()
}

func (w *ward) names() []string {
	names := make([]string, 0, len(w.nodes))
	for name := range w.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *ward) event(name string) engine.Event {
	n := *w.nodes[name]
	e := &engine.Node{Name: name, UID: n.UID, Health: &n}
	for _, t := range n.Taints.List() {
		e.Taints = append(e.Taints, engine.ObservedTaint{Key: t.Key(), Effect: t.Effect()})
	}
	return engine.Event{Type: engine.EventUpsert, Node: e}
}

func (w *ward) list() {
	f, _, err := w.eng.OpenFeed(engine.FeedHello{Cluster: cluster, ClusterUID: "c", FeederID: "f"}, w.sink)
	must(w.T, err)
	w.feed = f
	var events []engine.Event
	for _, name := range w.names() {
		events = append(events, w.event(name))
	}
	must(w.T, f.SyncBegin(w.Context(), 1))
	must(w.T, f.Batch(w.Context(), 2, events))
	must(w.T, f.SyncEnd(w.Context(), 3))
	w.seq = 3
	w.settle()
	w.renew()
}

func (w *ward) send(events ...engine.Event) {
	w.seq++
	must(w.T, w.feed.Batch(w.Context(), w.seq, events))
	w.settle()
}

// renew tells of the leases; all but the deaf are renewed.
func (w *ward) renew() {
	var names []string
	for _, name := range w.names() {
		if !w.deaf[name] {
			names = append(names, name)
		}
	}
	w.send(engine.Event{Type: engine.EventUpsert, Leases: &engine.LeaseRenewals{Nodes: names}})
}

// pass lets time pass; orders are carried out as they come.
func (w *ward) pass(d time.Duration) {
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); {
		w.advance(2 * time.Second)
		if !w.blind {
			w.renew()
		}
		w.execute()
	}
}

// nextOrder lets time pass until an order comes, and does not carry it out.
func (w *ward) nextOrder() engine.Order {
	for len(w.sink.orders) == 0 {
		w.advance(2 * time.Second)
		w.renew()
	}
	return w.sink.take()[0]
}

func (w *ward) execute() {
	for _, o := range w.sink.take() {
		if o.Node == nil {
			continue
		}
		w.carryOut(o.Node)
		if !w.answer(w.x, o.Token, engine.OutcomeApplied) {
			w.Fatalf("the answer to the order for node %s was not taken", o.Node.Name)
		}
		w.send(w.event(o.Node.Name))
	}
}

func (w *ward) carryOut(o *engine.NodeOrder) {
	n := w.nodes[o.Name]
	if o.Unknown {
		for c := range health.CondNetworkUnavailable {
			n.Conditions[c] = health.StatusUnknown
		}
		n.ReadyReason = "NodeStatusUnknown"
	}
	n.Taints = n.Taints&^o.Remove | o.Add
}

func (w *ward) explain(name string) *engine.NodeExplanation {
	x, err := w.eng.ExplainNode(w.Context(), cluster, name)
	must(w.T, err)
	if x.Node.Health == nil {
		w.Fatalf("node %s has no health", name)
	}
	return x
}

var unreachableTaints = health.Set(health.UnreachableNoSchedule, health.UnreachableNoExecute)

func TestNodeHealthEnforced(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	w.pass(50 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("N2: tainted %s within the grace", n.Taints)
	}
	w.pass(4 * time.Second)
	if n := w.nodes["a"]; n.Taints != unreachableTaints || n.Conditions[health.CondMemoryPressure] != health.StatusUnknown {
		t.Fatalf("N2, N3: %s, conditions %v", n.Taints, n.Conditions)
	}
	// The taint is the shards' too: pods are evicted for it.
	if x := w.explain("a"); len(x.Node.Taints) != 1 || !x.Node.Health.Silent || x.Cluster.Unknown != 1 {
		t.Errorf("explained as %+v; cluster %+v", x.Node, x.Cluster)
	}
	w.deaf["a"] = false
	w.nodes["a"].Conditions = wellNode("a").Conditions
	w.nodes["a"].Heartbeat = w.clock.Now()
	w.send(w.event("a"))
	w.pass(4 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Errorf("N3: ready again and tainted %s", n.Taints)
	}
}

// TestNodeHealthOfTheList is wanted before anything is live, and while a pause holds it.
func TestNodeHealthOfTheList(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce)
	w.nodes["a"], w.nodes["b"] = wellNode("a"), wellNode("b")
	w.nodes["a"].Conditions[health.CondDiskPressure] = health.StatusTrue
	if _, err := w.eng.Pause(t.Context(), cluster, engine.Pause{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	w.list()
	w.pass(10 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("tainted %s under a pause", n.Taints)
	}
	if _, err := w.eng.Resume(t.Context(), engine.PauseScope{Cluster: cluster}, false); err != nil {
		t.Fatal(err)
	}
	w.pass(2 * time.Second)
	if n := w.nodes["a"]; n.Taints != health.Set(health.DiskPressure) {
		t.Errorf("N4: tainted %s", n.Taints)
	}
}

func TestNodeHealthObservedChangesNothing(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthObserve, "a", "b", "c")
	w.deaf["a"] = true
	w.pass(60 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("tainted %s", n.Taints)
	}
	nodes, err := w.eng.Nodes(t.Context(), cluster, false)
	if err != nil || len(nodes) != 1 || nodes[0].Health == nil {
		t.Fatalf("nodes %+v, %v; want the silent one", nodes, err)
	}
	h := nodes[0].Health
	if h.Ready != health.StatusUnknown || len(h.Taints) != 2 || h.Taints[0].Change != health.ChangeAdd || !strings.Contains(h.Reason, "no heartbeat for 50s") {
		t.Errorf("health %+v", h)
	}
	if x := w.explain("a"); !h.Observed || !strings.Contains(x.Change[0], "taints would go at once") {
		t.Errorf("observed %t; what would change it: %q", h.Observed, x.Change)
	}
	if x := w.explain("b"); !strings.Contains(x.Change[0], "would become Unknown, and it would get the taint") {
		t.Errorf("what would change b: %q", x.Change)
	}
}

func TestN7RestartForgetsNothing(t *testing.T) {
	path := t.TempDir() + "/data"
	open := func(ctx context.Context) (engine.Store, error) { return bolt.Open(ctx, bolt.Options{Path: path}) }
	w := newWard(t, open, engine.NodeHealthEnforce, "a", "b", "c", "d", "e", "f", "g")
	w.deaf["a"], w.deaf["b"] = true, true
	w.pass(54 * time.Second)
	// One grant in ten seconds: one of the two has NoExecute, the other waits.
	tainted := func() (n int) {
		for _, node := range w.nodes {
			if node.Taints.Has(health.UnreachableNoExecute) {
				n++
			}
		}
		return n
	}
	if tainted() != 1 {
		t.Fatalf("N5: %d nodes have NoExecute, want one", tainted())
	}
	since := w.explain("a").Node.Health.Since
	w.restart(3 * time.Second)
	w.pass(2 * time.Second)
	if tainted() != 1 {
		t.Errorf("N7: %d nodes have NoExecute after a restart that gives no grant", tainted())
	}
	if h := w.explain("a").Node.Health; !h.Since.Equal(since) || !h.Silent {
		t.Errorf("N7: silent %t since %s, before the restart since %s", h.Silent, h.Since, since)
	}
	w.pass(6 * time.Second)
	if tainted() != 2 {
		t.Errorf("N7: %d nodes have NoExecute; the pass was forgotten", tainted())
	}
}

func TestN8ARestartGivesTheWholeGrace(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	w.pass(40 * time.Second)
	w.restart(20 * time.Second)
	w.pass(48 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("N8: tainted %s", n.Taints)
	}
	w.pass(6 * time.Second)
	if n := w.nodes["a"]; n.Taints != unreachableTaints {
		t.Errorf("N2: tainted %s after the grace that the restart gave", n.Taints)
	}
}

func TestN8BlindWithoutWordOfLeases(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.blind = true
	w.pass(time.Hour)
	for name, n := range w.nodes {
		if n.Taints != 0 {
			t.Errorf("N8: node %s tainted %s", name, n.Taints)
		}
	}
	st, err := w.eng.Cluster(t.Context(), cluster)
	if err != nil || st.Health.BlindSince.IsZero() || !slices.ContainsFunc(st.Warnings, func(s string) bool { return strings.Contains(s, "node health is blind") }) {
		t.Errorf("nothing says that node health is blind: %v, %v", st.Warnings, err)
	}
}

func TestN8AllSilentAtOnceIsHeld(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf = map[string]bool{"a": true, "b": true, "c": true}
	w.pass(10 * time.Minute)
	for name, n := range w.nodes {
		if n.Taints != 0 {
			t.Errorf("N8: node %s tainted %s", name, n.Taints)
		}
	}
	st, err := w.eng.Cluster(t.Context(), cluster)
	if err != nil || st.Health.HeldSince.IsZero() || st.Health.Silent != 3 {
		t.Errorf("not held: %+v, %v", st.Health, err)
	}
}

func TestI7PauseHoldsOrdersForNodes(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	w.pass(46 * time.Second)
	if _, err := w.eng.Pause(t.Context(), cluster, engine.Pause{Node: "a", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	w.pass(20 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("I7: tainted %s under a pause", n.Taints)
	}
	if h := w.explain("a").Node.Health; h.Hold != engine.HoldPaused {
		t.Errorf("held by %s", h.Hold)
	}
	if _, err := w.eng.Resume(t.Context(), engine.PauseScope{Cluster: cluster, Node: "a"}, false); err != nil {
		t.Fatal(err)
	}
	w.pass(4 * time.Second)
	if n := w.nodes["a"]; n.Taints != unreachableTaints {
		t.Errorf("tainted %s after the pause", n.Taints)
	}
}

func TestNodeOrderIsRecalledWhenTheNodeIsHeardAgain(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	for w.nodes["a"].Taints == 0 && len(w.sink.orders) == 0 {
		w.advance(2 * time.Second)
		w.renew()
	}
	order := w.sink.take()[0]
	w.deaf["a"] = false
	w.renew()
	if n := len(w.sink.recalls); n != 1 || w.sink.recalls[0].Token != order.Token {
		t.Fatalf("%d recalls", n)
	}
	if !w.answer(w.x, order.Token, engine.OutcomeRecalled) {
		t.Error("the answer was not taken")
	}
	w.pass(20 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Errorf("N6: tainted %s", n.Taints)
	}
	if w.answer(w.x, order.Token, engine.OutcomeApplied) {
		t.Error("I6: an old token was taken")
	}
}

// A node that is ready again before the executor has answered loses its taints at
// once, whatever is answered: the feed has shown that the order was carried out, and
// one that was called back and failed is no reason to wait (N3).
func TestN3ReadyAgainWhileAnOrderIsOut(t *testing.T) {
	for _, answer := range []engine.Outcome{engine.OutcomeApplied, engine.OutcomeFailed, engine.OutcomeStale, engine.OutcomeRecalled} {
		t.Run(answer.String(), func(t *testing.T) {
			w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
			w.deaf["a"] = true
			order := w.nextOrder()
			w.carryOut(order.Node)
			tainted := w.event("a")
			well := wellNode("a")
			well.Heartbeat, well.Taints = w.clock.Now(), w.nodes["a"].Taints
			w.nodes["a"] = well
			w.send(tainted, w.event("a"))
			if !w.answer(w.x, order.Token, answer) {
				t.Fatal("the answer was not taken")
			}
			next := w.sink.take()
			if len(next) != 1 || next[0].Node.Remove != unreachableTaints || next[0].Attempt != 1 {
				t.Errorf("orders after the answer: %+v, want one at once that takes the taints off", next)
			}
		})
	}
}

func TestN8StaleHoldsUntilTheFeedHasCaughtUp(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	order := w.nextOrder()
	w.answer(w.x, order.Token, engine.OutcomeStale)
	if st, err := w.eng.Cluster(t.Context(), cluster); err != nil || st.Health.StaleSince.IsZero() {
		t.Fatalf("not stale: %+v, %v", st.Health, err)
	}
	w.deaf["a"] = false
	w.pass(10 * time.Second)
	if st, err := w.eng.Cluster(t.Context(), cluster); err != nil || !st.Health.StaleSince.IsZero() || w.nodes["a"].Taints != 0 {
		t.Fatalf("still stale: %+v, %v", st.Health, err)
	}
}

// An executor whose view is stuck answers STALE to everything, and at once, so that
// it always has most credit. The others decide all the same.
func TestN8AStuckExecutorDoesNotStopTheOthers(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c", "d", "e")
	stuck := &sink{}
	x, err := w.eng.AttachExecutor(engine.ExecutorHello{ID: "stuck", Clusters: []string{"*"}, Capacity: 1000, NodeOrders: true}, stuck)
	must(t, err)
	pass := func(d time.Duration) (asked int) {
		for end := w.clock.Now().Add(d); w.clock.Now().Before(end); {
			w.pass(2 * time.Second)
			for _, o := range stuck.take() {
				asked++
				w.answer(x, o.Token, engine.OutcomeStale)
			}
			w.execute()
		}
		return asked
	}
	w.deaf["a"] = true
	if pass(54*time.Second) != 1 || w.nodes["a"].Taints != 0 {
		t.Fatal("the stuck executor was not asked first")
	}
	// Its word counts for a grace; then the other one is asked.
	if asked := pass(60 * time.Second); asked != 0 || w.nodes["a"].Taints != unreachableTaints {
		t.Fatalf("N2: asked %d times, a is tainted %s", asked, w.nodes["a"].Taints)
	}
	w.deaf["b"] = true
	if asked := pass(54 * time.Second); asked != 0 || !w.nodes["b"].Taints.Has(health.UnreachableNoSchedule) {
		t.Errorf("N2: asked %d times, b is tainted %s", asked, w.nodes["b"].Taints)
	}
	// It is asked where it is the only one.
	w.x.Close()
	w.deaf["c"] = true
	w.pass(54 * time.Second)
	orders := stuck.take()
	if len(orders) != 1 {
		t.Fatalf("%d orders for the only executor", len(orders))
	}
}

// An executor that answered STALE once, and was right, is asked again when the other one
// fails: no other would ever come to the nodes.
func TestN8AFailingExecutorIsNotAskedForEver(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c", "d", "e")
	other := &sink{}
	x, err := w.eng.AttachExecutor(engine.ExecutorHello{ID: "other", Clusters: []string{"*"}, Capacity: 1000, NodeOrders: true}, other)
	must(t, err)
	w.deaf["a"] = true
	stale, failed, applied := 0, 0, 0
	for range 120 {
		w.advance(2 * time.Second)
		w.renew()
		for _, o := range other.take() {
			if stale == 0 {
				stale++
				w.answer(x, o.Token, engine.OutcomeStale)
				continue
			}
			applied++
			w.answer(x, o.Token, engine.OutcomeApplied)
		}
		for _, o := range w.sink.take() {
			failed++
			w.answer(w.x, o.Token, engine.OutcomeFailed)
		}
	}
	if stale != 1 || failed != 1 || applied == 0 {
		t.Errorf("N2: %d orders were stale, %d failed, and then %d were carried out by the one that can", stale, failed, applied)
	}
}

// Of an order that was recalled nothing was done: what happens then is another's work.
func TestRecalledNodeOrderExplainsNothing(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	order := w.nextOrder()
	if _, err := w.eng.Pause(t.Context(), cluster, engine.Pause{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	w.answer(w.x, order.Token, engine.OutcomeRecalled)
	w.nodes["a"].Conditions[health.CondReady], w.nodes["a"].ReadyReason = health.StatusUnknown, "NodeStatusUnknown"
	w.send(w.event("a"))
	if st, err := w.eng.Cluster(t.Context(), cluster); err != nil || st.Health.Other == "" {
		t.Errorf("another controller is not noticed: %+v, %v", st.Health, err)
	}
}

func TestFailedNodeOrderBacksOff(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	var last time.Time
	for attempt := uint32(1); attempt <= 6; attempt++ {
		for len(w.sink.orders) == 0 {
			w.advance(time.Second)
			w.renew()
		}
		o := w.sink.take()[0]
		if o.Attempt != attempt {
			t.Fatalf("attempt %d, want %d", o.Attempt, attempt)
		}
		if wait := w.clock.Now().Sub(last); attempt > 1 && (wait < min(time.Second<<(attempt-2), 10*time.Second) || wait > 12*time.Second) {
			t.Errorf("attempt %d came %s after the one before", attempt, wait)
		}
		last = w.clock.Now()
		w.answer(w.x, o.Token, engine.OutcomeFailed)
	}
}

// Orders that failed while nothing was seen of heartbeats leave as soon as something is.
func TestFailedNodeOrderIsTriedAgainWhenTheAPIServerIsBack(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.nodes["a"].Conditions[health.CondReady] = health.StatusFalse
	w.send(w.event("a"))
	for range 5 {
		for len(w.sink.orders) == 0 {
			w.advance(time.Second)
		}
		w.answer(w.x, w.sink.take()[0].Token, engine.OutcomeFailed)
	}
	if x := w.explain("a"); len(w.sink.orders) != 0 || x.Node.Health.Hold != engine.HoldBackingOff {
		t.Fatalf("%d orders, hold %s, want none and a rest", len(w.sink.orders), x.Node.Health.Hold)
	}
	w.renew()
	w.advance(0)
	if orders := w.sink.take(); len(orders) != 1 || orders[0].Attempt != 1 {
		t.Fatalf("once heartbeats are seen: %v, want the order again", orders)
	}
}

func TestEnforceIsRefusedBesideAnotherController(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthObserve, "a", "b", "c")
	w.nodes["a"].Conditions[health.CondReady], w.nodes["a"].ReadyReason = health.StatusUnknown, "NodeStatusUnknown"
	w.send(w.event("a"))
	update := engine.PolicyUpdate{Patch: engine.PolicyPatch{Policy: engine.Policy{NodeHealth: engine.NodeHealthEnforce}, Fields: engine.PolicyNodeHealth}}
	if _, err := w.eng.SetPolicy(t.Context(), cluster, update); !errors.Is(err, engine.ErrOtherController) {
		t.Fatalf("ENFORCE beside another controller: %v", err)
	}
	shown := func() bool {
		st, err := w.eng.Cluster(t.Context(), cluster)
		must(t, err)
		return st.Health.Other != ""
	}
	if w.advance(24*time.Hour - time.Second); !shown() {
		t.Error("the other controller is not shown as long as it counts")
	}
	if w.advance(time.Second); shown() {
		t.Error("the other controller is shown longer than it counts")
	}
	w.nodes["b"].Conditions[health.CondReady], w.nodes["b"].ReadyReason = health.StatusUnknown, "NodeStatusUnknown"
	w.send(w.event("b"))
	update.Force = true
	if _, err := w.eng.SetPolicy(t.Context(), cluster, update); err != nil {
		t.Fatalf("forced: %v", err)
	}
}

// What was set in mode SHADOW, before the other controller was seen, acts from mode ENFORCE on only.
func TestModeEnforceIsRefusedBesideAnotherController(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	set := func(mode engine.Mode, force bool) error {
		_, err := w.eng.SetPolicy(t.Context(), cluster, engine.PolicyUpdate{
			Patch: engine.PolicyPatch{Policy: engine.Policy{Mode: mode}, Fields: engine.PolicyMode}, Force: force,
		})
		w.settle()
		return err
	}
	must(t, set(engine.ModeShadow, false))
	w.nodes["a"].Conditions[health.CondReady], w.nodes["a"].ReadyReason = health.StatusUnknown, "NodeStatusUnknown"
	w.send(w.event("a"))
	if err := set(engine.ModeEnforce, false); !errors.Is(err, engine.ErrOtherController) {
		t.Fatalf("mode ENFORCE beside another controller: %v", err)
	}
	must(t, set(engine.ModeEnforce, true))
}

func TestNodeHealthIsSwitchedOnAndOff(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthOff, "a", "b", "c")
	set := func(mode engine.NodeHealth) {
		t.Helper()
		_, err := w.eng.SetPolicy(t.Context(), cluster, engine.PolicyUpdate{
			Patch: engine.PolicyPatch{Policy: engine.Policy{NodeHealth: mode}, Fields: engine.PolicyNodeHealth},
		})
		must(t, err)
		w.settle()
	}
	set(engine.NodeHealthEnforce)
	if w.sink.resyncs != 1 || !slices.Equal(w.sink.healths, []engine.NodeHealth{engine.NodeHealthOff, engine.NodeHealthEnforce}) {
		t.Fatalf("%d times a list was asked for; told %v", w.sink.resyncs, w.sink.healths)
	}
	w.list()
	w.deaf["a"] = true
	w.pass(56 * time.Second)
	if n := w.nodes["a"]; n.Taints != unreachableTaints {
		t.Fatalf("tainted %s", n.Taints)
	}
	set(engine.NodeHealthOff)
	st, err := w.eng.Cluster(t.Context(), cluster)
	if err != nil || st.Health != nil {
		t.Fatalf("health %+v, %v", st.Health, err)
	}
	w.nodes["a"].Taints = 0
	w.send(w.event("a"))
	w.pass(10 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Errorf("tainted %s although it is off", n.Taints)
	}
	must(t, w.eng.ForgetCluster(t.Context(), cluster))
}

func TestForgetWithNodeOrdersOut(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.deaf["a"] = true
	for len(w.sink.orders) == 0 {
		w.advance(2 * time.Second)
		w.renew()
	}
	must(t, w.eng.ForgetCluster(t.Context(), cluster))
	w.settle()
	if len(w.sink.recalls) != 1 {
		t.Errorf("%d recalls", len(w.sink.recalls))
	}
	if _, err := w.eng.ExplainNode(t.Context(), cluster, "a"); !errors.Is(err, engine.ErrClusterUnknown) {
		t.Errorf("explained: %v", err)
	}
}

func TestExecutorsThatTakeNoNodeOrdersGetNone(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthEnforce, "a", "b", "c")
	w.x.Close()
	w.attach("plain", 10)
	w.deaf["a"] = true
	w.pass(60 * time.Second)
	if n := w.nodes["a"]; n.Taints != 0 {
		t.Fatalf("tainted %s", n.Taints)
	}
	if h := w.explain("a").Node.Health; h.Hold != engine.HoldNoExecutor {
		t.Errorf("held by %s", h.Hold)
	}
	w.attachNodes()
	w.pass(2 * time.Second)
	if n := w.nodes["a"]; n.Taints != unreachableTaints {
		t.Errorf("tainted %s", n.Taints)
	}
}

func TestNodeUnknown(t *testing.T) {
	w := newWard(t, mem.New().Open, engine.NodeHealthObserve, "a")
	if _, err := w.eng.ExplainNode(t.Context(), cluster, "none"); !errors.Is(err, engine.ErrNodeUnknown) {
		t.Error(fmt.Errorf("explained: %w", err))
	}
}
