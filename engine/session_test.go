package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// bench is an engine on a virtual clock with a feed, for tests that play the
// executor themselves.
type bench struct {
	*testing.T
	clock *clock.Virtual
	eng   *engine.Engine
	feed  *engine.FeedSession
	seq   uint64
	sink  *sink
	// health has what OnHealth was told, in order.
	health chan bool
}

// sink takes what the engine says to a feed and to executors.
type sink struct {
	mu      sync.Mutex // guards what follows
	orders  []engine.Order
	recalls []engine.RecallOrder
	resyncs int
	ended   []error
	modes   []engine.Mode
	healths []engine.NodeHealth
	refuse  bool
	acked   uint64
}

func (s *sink) Ack(sequence uint64, _ bool) { s.mu.Lock(); s.acked = sequence; s.mu.Unlock() }
func (s *sink) Resync(string)               { s.mu.Lock(); s.resyncs++; s.mu.Unlock() }

func (s *sink) Mode(m engine.Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modes = append(s.modes, m)
}

func (s *sink) NodeHealth(n engine.NodeHealth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.healths = append(s.healths, n)
}

func (s *sink) Ended(err error) { s.mu.Lock(); s.ended = append(s.ended, err); s.mu.Unlock() }
func (s *sink) Recall(r engine.RecallOrder) {
	s.mu.Lock()
	s.recalls = append(s.recalls, r)
	s.mu.Unlock()
}

func (s *sink) Order(o engine.Order) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		return false
	}
	if o.Eviction != nil {
		kept := *o.Eviction
		o.Eviction = &kept
	}
	s.orders = append(s.orders, o)
	return true
}

func (s *sink) take() []engine.Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.orders
	s.orders = nil
	return out
}

func newBench(t *testing.T, open engine.StoreOpener) *bench {
	b := &bench{T: t, clock: clock.NewVirtual(epoch), sink: &sink{}, health: make(chan bool, 100)}
	b.eng = engine.New(engine.Options{
		Clock: b.clock, Open: open, Shards: 2, FeedTimeout: -1, PruneEvery: -1,
		ClusterPolicy: func(string) engine.PolicyPatch {
			return engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeEnforce}, Fields: engine.PolicyMode}
		},
		Jitter:   func(d time.Duration) time.Duration { return d },
		OnHealth: func(serving bool, _ error) { b.health <- serving },
	})
	must(t, b.eng.Start(t.Context()))
	t.Cleanup(func() { b.eng.Stop(context.Background()) })
	return b
}

func (b *bench) settle() {
	b.Helper()
	must(b.T, b.eng.Settle(b.Context()))
}

// list feeds one node with taint x, and pods on it that tolerate it for 10 s.
func (b *bench) list(pods ...string) {
	b.Helper()
	f, _, err := b.eng.OpenFeed(engine.FeedHello{Cluster: cluster, ClusterUID: "c", FeederID: "f"}, b.sink)
	must(b.T, err)
	b.feed = f
	seconds := int64(10)
	events := []engine.Event{upsertNode("n", &mNode{uid: "node", taints: []mTaint{{key: "x"}}})}
	for _, p := range pods {
		events = append(events, upsertPod(&mPod{namespace: "default", name: p, uid: "uid-" + p, node: "n", bound: epoch,
			tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}}))
	}
	ctx := b.Context()
	must(b.T, f.SyncBegin(ctx, 1))
	must(b.T, f.Batch(ctx, 2, events))
	must(b.T, f.SyncEnd(ctx, 3))
	b.seq = 3
	b.settle()
}

func (b *bench) advance(d time.Duration) {
	b.Helper()
	b.settle()
	target := b.clock.Now().Add(d)
	for {
		next, ok := b.clock.Next()
		if !ok || next.After(target) {
			b.clock.Set(target)
			return
		}
		b.clock.Set(next)
		b.clock.Fire()
		b.settle()
	}
}

func (b *bench) attach(id string, capacity int, held ...string) *engine.ExecutorSession {
	b.Helper()
	x, err := b.eng.AttachExecutor(engine.ExecutorHello{ID: id, Clusters: []string{"*"}, Capacity: capacity, HeldTokens: held}, b.sink)
	must(b.T, err)
	b.settle()
	return x
}

func (b *bench) answer(x *engine.ExecutorSession, token string, o engine.Outcome) bool {
	b.Helper()
	got := make(chan bool, 1)
	x.Result(engine.Result{Token: token, Outcome: o}, func(ok bool) { got <- ok })
	b.settle()
	return <-got
}

func (b *bench) only() *engine.EvictionRecord {
	b.Helper()
	page, err := b.eng.List(b.Context(), engine.ListQuery{Limit: 10})
	must(b.T, err)
	if len(page.Evictions) != 1 {
		b.Fatalf("%d open evictions, want one", len(page.Evictions))
	}
	return page.Evictions[0]
}

func TestCreditBoundsWhatIsOut(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 2)
	b.list("a", "b", "c")
	b.advance(10 * time.Second)
	first := b.sink.take()
	if len(first) != 2 {
		t.Fatalf("%d orders with a capacity of 2", len(first))
	}
	if !b.answer(x, first[0].Token, engine.OutcomeDenied) || len(b.sink.take()) != 1 {
		t.Fatal("the answer gave no room for one more order")
	}
	must(t, x.SetCapacity("", 0))
	b.settle()
	b.answer(x, first[1].Token, engine.OutcomeFailed)
	// Past the back-offs of both.
	b.advance(5 * time.Second)
	if n := len(b.sink.take()); n != 0 {
		t.Fatalf("%d orders after the capacity went to 0", n)
	}
	if err := x.SetCapacity("elsewhere", 1); !errors.Is(err, engine.ErrClusterUnknown) {
		t.Fatalf("capacity for another cluster: %v", err)
	}
}

func TestReconnectKeepsTheOrderAndGraceEndsIt(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	x.Close()
	b.advance(4 * time.Second)
	x = b.attach("x", 5, token)
	b.advance(10 * time.Second)
	if n := len(b.sink.take()); n != 0 {
		t.Fatalf("%d new orders although the executor came back with the token", n)
	}
	x.Close()
	b.advance(6 * time.Second)
	if e := b.only(); e.State != engine.StateDue || e.LastOutcome != engine.OutcomeNoAnswer || e.Attempts != 1 {
		t.Fatalf("after the grace: %+v", e)
	}
	x = b.attach("x", 5)
	b.advance(0)
	next := b.sink.take()
	if len(next) != 1 || next[0].Attempt != 2 {
		t.Fatalf("orders after the grace: %+v", next)
	}
	if b.answer(x, token, engine.OutcomeEvicted) {
		t.Fatal("I6: the old token was accepted")
	}
}

// TestHeldOrdersTakeCredit comes back with an order in hand: it fills the capacity.
func TestHeldOrdersTakeCredit(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 1)
	b.list("a", "b")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	x.Close()
	x = b.attach("x", 1, token)
	b.advance(10 * time.Second)
	if n := len(b.sink.take()); n != 0 {
		t.Fatalf("%d orders beyond the capacity", n)
	}
	b.answer(x, token, engine.OutcomeEvicted)
	if n := len(b.sink.take()); n != 1 {
		t.Fatalf("%d orders after the held one was answered, want one", n)
	}
}

// TestTokenHeldTwiceTakesCreditOnce comes back with a token that its hello names twice.
func TestTokenHeldTwiceTakesCreditOnce(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 1)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	x.Close()
	b.attach("x", 2, token, token)
	st, err := b.eng.Cluster(t.Context(), cluster)
	if err != nil || len(st.Executors) != 1 || st.Executors[0].Outstanding != 1 {
		t.Fatalf("executors %+v, %v; want one order out", st.Executors, err)
	}
}

// TestOneAnswerCounts gives two answers to one order, the second before the
// first has had its effect (I6).
func TestOneAnswerCounts(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 1)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	got := make(chan bool, 2)
	x.Result(engine.Result{Token: token, Outcome: engine.OutcomeFailed}, func(ok bool) { got <- ok })
	x.Result(engine.Result{Token: token, Outcome: engine.OutcomeEvicted}, func(ok bool) { got <- ok })
	b.settle()
	if one, two := <-got, <-got; one == two {
		t.Fatalf("I6: answers were taken: %v and %v", one, two)
	}
	if e := b.only(); e.LastOutcome != engine.OutcomeFailed || e.Attempts != 1 {
		t.Fatalf("I6: after the first answer: %+v", e)
	}
}

func TestNewerStreamOfAnExecutorTakesOver(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	b.sink.take()
	b.attach("x", 5)
	if !slices.ContainsFunc(b.sink.ended, func(err error) bool { return errors.Is(err, engine.ErrSuperseded) }) {
		t.Fatalf("the older stream ended with %v", b.sink.ended)
	}
	b.advance(0)
	// The new stream does not have the token: nobody will answer it.
	if n := len(b.sink.take()); n != 1 {
		t.Fatalf("%d orders to the new stream, want the lost one again", n)
	}
}

func TestExtendUpToTenMinutes(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	total := time.Duration(0)
	for range 40 {
		left := make(chan time.Duration, 1)
		x.Extend(token, func(d time.Duration, ok bool) {
			if !ok {
				d = -1
			}
			left <- d
		})
		b.settle()
		d := <-left
		if d < 0 {
			break
		}
		if d > 30*time.Second {
			t.Fatalf("extended to %s", d)
		}
		b.advance(20 * time.Second)
		total += 20 * time.Second
	}
	if total < 9*time.Minute || total > 10*time.Minute+20*time.Second {
		t.Fatalf("the delivery lasted %s, want about ten minutes", total)
	}
	if e := b.only(); e.LastOutcome != engine.OutcomeNoAnswer {
		t.Fatalf("after the last extension: %+v", e)
	}
}

// TestI7RecallsInAGap pauses, reprieves and sets shadow mode while the feed is
// lost and orders are out: those concerned are recalled, the others are not.
func TestI7RecallsInAGap(t *testing.T) {
	ctx := context.Background()
	for name, tc := range map[string]struct {
		act  func(*bench) error
		want int
	}{
		"pause": {func(b *bench) error {
			_, err := b.eng.Pause(ctx, cluster, engine.Pause{Node: "n", Reason: "test"})
			return err
		}, 2},
		"pause of another node": {func(b *bench) error {
			_, err := b.eng.Pause(ctx, cluster, engine.Pause{Node: "m", Reason: "test"})
			return err
		}, 0},
		"reprieve": {func(b *bench) error {
			_, err := b.eng.GrantReprieve(ctx, cluster, engine.PodRef{UID: "uid-a"}, engine.ReprieveRecord{Until: epoch.Add(time.Hour), Reason: "test"})
			return err
		}, 1},
		"shadow": {func(b *bench) error {
			_, err := b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeShadow}, Fields: engine.PolicyMode}})
			return err
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, mem.New().Open)
			b.attach("x", 5)
			b.list("a", "b")
			b.advance(10 * time.Second)
			if n := len(b.sink.take()); n != 2 {
				t.Fatalf("%d orders, want 2", n)
			}
			b.feed.Close()
			b.settle()
			must(t, tc.act(b))
			b.settle()
			if len(b.sink.recalls) != tc.want {
				t.Fatalf("recalls: %+v, want %d", b.sink.recalls, tc.want)
			}
		})
	}
}

func TestI7PauseRecallsWhatIsOut(t *testing.T) {
	for name, tc := range map[string]struct {
		answer engine.Outcome
		state  engine.State
	}{
		"recalled": {engine.OutcomeRecalled, engine.StateDue},
		"too late": {engine.OutcomeEvicted, engine.StateConfirming},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, mem.New().Open)
			x := b.attach("x", 5)
			b.list("a")
			b.advance(10 * time.Second)
			token := b.sink.take()[0].Token
			_, err := b.eng.Pause(t.Context(), cluster, engine.Pause{Namespace: "default", Reason: "test"})
			must(t, err)
			if len(b.sink.recalls) != 1 || b.sink.recalls[0].Token != token || b.sink.recalls[0].Reason != engine.RecallPaused {
				t.Fatalf("recalls: %+v", b.sink.recalls)
			}
			b.answer(x, token, tc.answer)
			// At once, before the eviction has come to its gate again.
			n, err := b.eng.Resume(t.Context(), engine.PauseScope{Cluster: cluster, Namespace: "default"}, true)
			if want := map[engine.State]int{engine.StateDue: 1}[tc.state]; err != nil || n != want {
				t.Fatalf("resuming would release %d, %v; want %d", n, err, want)
			}
			b.advance(0)
			if e := b.only(); e.State != tc.state || len(b.sink.take()) != 0 {
				t.Fatalf("%+v", e)
			}
			n, err = b.eng.Resume(t.Context(), engine.PauseScope{Cluster: cluster, Node: "n"}, true)
			if !errors.Is(err, engine.ErrPauseUnknown) {
				t.Fatalf("resuming another scope: %d, %v", n, err)
			}
		})
	}
}

func TestReprieveRecallsAndHolds(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	until := b.clock.Now().Add(100 * time.Second)
	_, err := b.eng.GrantReprieve(t.Context(), cluster, engine.PodRef{Namespace: "default", Name: "a"}, engine.ReprieveRecord{Until: until, Reason: "demo", Actor: "me"})
	must(t, err)
	b.answer(x, token, engine.OutcomeRecalled)
	b.advance(0)
	if e := b.only(); e.State != engine.StateDue || e.Hold != engine.HoldReprieved || !e.HoldUntil.Equal(until) {
		t.Fatalf("%+v", e)
	}
	h, err := b.eng.History(t.Context(), engine.HistoryQuery{Cluster: cluster, Limit: 5})
	must(t, err)
	if len(h.Evictions) != 1 || h.Evictions[0].CancelCause != engine.CancelReprieve {
		t.Fatalf("history %+v", h.Evictions)
	}
	got, err := b.eng.Get(t.Context(), engine.EvictionID(cluster, h.Evictions[0].Seq))
	if err != nil || got.CloseReason != engine.CloseCancelled {
		t.Fatalf("get: %+v, %v", got, err)
	}
	list, err := b.eng.Reprieves(t.Context(), cluster)
	if err != nil || len(list) != 1 || list[0].UID != "uid-a" {
		t.Fatalf("reprieves: %+v, %v", list, err)
	}
	b.advance(100 * time.Second)
	if n := len(b.sink.take()); n != 1 {
		t.Fatalf("%d orders at the reprieve's end", n)
	}
}

// TestCommitErrorIsAnUnknownOutcome lets the commit of a delivery fail, once
// without and once with the change on disk: no order may have left before the
// store is open again, none is lost, and the pod is ordered at most once.
func TestCommitErrorIsAnUnknownOutcome(t *testing.T) {
	for name, f := range map[string]fault.Effect{"not done": fault.Before, "done and reported as failed": fault.After} {
		t.Run(name, func(t *testing.T) {
			plan := fault.NewScript()
			b := newBench(t, fault.New(mem.New().Open, plan))
			b.attach("x", 5)
			b.list("a")
			plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: f}})
			b.clock.Set(epoch.Add(10 * time.Second))
			b.clock.Fire()
			waitReopen(t, b)
			if n := len(b.sink.take()); n != 0 {
				t.Fatalf("I1: %d orders left although the commit was not known to be done", n)
			}
			e := b.only()
			want := map[string]engine.State{"not done": engine.StateDue, "done and reported as failed": engine.StateDelivered}[name]
			if e.State != want || e.UID != "uid-a" {
				t.Fatalf("after the store was opened again: %+v, want %s", e, want)
			}
			if b.sink.resyncs != 1 {
				t.Fatalf("%d resyncs asked for, want one", b.sink.resyncs)
			}
			b.attach("x", 5)
			b.list("a")
			// A delivery that is on disk may be with the executor until its deadline.
			b.advance(map[string]time.Duration{"not done": 5 * time.Second, "done and reported as failed": 31 * time.Second}[name])
			if n := len(b.sink.take()); n != 1 {
				t.Fatalf("%d orders in the end, want one", n)
			}
		})
	}
}

// TestReopenBackOffOutlivesTheReopening has a store that opens, takes a first
// commit and fails the next. Only commits that go well for a while make the
// wait short again.
func TestReopenBackOffOutlivesTheReopening(t *testing.T) {
	plan := fault.NewScript()
	b := newBench(t, fault.New(mem.New().Open, plan))
	work := func() error {
		_, err := b.eng.Pause(t.Context(), cluster, engine.Pause{Reason: "test"})
		return err
	}
	waited := func() time.Duration {
		t.Helper()
		plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Before}})
		from := b.clock.Now()
		if err := work(); !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("a commit that fails: %v", err)
		}
		waitReopen(t, b)
		return b.clock.Now().Sub(from)
	}
	for _, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond} {
		if got := waited(); got != want {
			t.Fatalf("opened again after %s, want %s", got, want)
		}
	}
	// A minute in which nothing is written proves nothing.
	b.advance(time.Minute)
	if got := waited(); got != 1600*time.Millisecond {
		t.Fatalf("opened again after %s, want 1.6s", got)
	}
	must(t, work())
	b.advance(29 * time.Second)
	must(t, work())
	if got := waited(); got != 3200*time.Millisecond {
		t.Fatalf("opened again after %s, want 3.2s", got)
	}
	must(t, work())
	b.advance(30 * time.Second)
	must(t, work())
	if got := waited(); got != 100*time.Millisecond {
		t.Fatalf("opened again after %s, want 100ms as 30 s of commits went well", got)
	}
}

// waitReopen waits for the engine to drop its core and moves time until it has a new one.
func waitReopen(t *testing.T, b *bench) {
	t.Helper()
	for serving := true; serving; {
		serving = <-b.health
	}
	limit := b.clock.Now().Add(5 * time.Second)
	for {
		select {
		case serving := <-b.health:
			if serving {
				return
			}
		default:
			// The wait before the next try is on the clock; deadlines are later and must not pass.
			if next, ok := b.clock.Next(); ok && next.Before(limit) {
				b.clock.Set(next)
				b.clock.Fire()
			}
			runtime.Gosched()
		}
	}
}

func TestExplainAndSimulate(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list("a")
	ctx := t.Context()
	x, err := b.eng.Explain(ctx, cluster, engine.PodRef{Namespace: "default", Name: "a"})
	must(t, err)
	if x.Decision.Verdict != engine.VerdictLeave || !x.Decision.Due.Equal(epoch.Add(10*time.Second)) || x.Eviction == nil || x.Sync != engine.SyncLive {
		t.Fatalf("%+v", x)
	}
	if len(x.Change) != 1 || !strings.Contains(x.Change[0], "removing taint x:NoExecute from node n would cancel the eviction") {
		t.Fatalf("what would change: %q", x.Change)
	}
	pods, now, err := b.eng.Simulate(ctx, cluster, []engine.HypotheticalTaint{{Node: "n", Key: "y"}}, "")
	must(t, err)
	if len(pods) != 1 || !pods[0].Decision.Due.Equal(now) || len(pods[0].Decision.Steps) != 2 {
		t.Fatalf("%+v", pods)
	}
	if _, _, err := b.eng.Simulate(ctx, cluster, []engine.HypotheticalTaint{{Node: "m", Key: "y"}}, ""); !errors.Is(err, engine.ErrInvalid) {
		t.Fatalf("simulating an unknown node: %v", err)
	}
	if _, err := b.eng.Explain(ctx, cluster, engine.PodRef{UID: "nobody"}); !errors.Is(err, engine.ErrPodUnknown) {
		t.Fatalf("explaining an unknown pod: %v", err)
	}
	nodes, err := b.eng.Nodes(ctx, cluster, false)
	if err != nil || len(nodes) != 1 || nodes[0].Pods != 1 || nodes[0].Open != 1 {
		t.Fatalf("nodes: %+v, %v", nodes, err)
	}
}

// TestListPagesInOrderOfDue reads pages over the shards of many nodes: each has
// what comes next by due instant, and every eviction is there once.
func TestListPagesInOrderOfDue(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list()
	var events []engine.Event
	want := map[string][]string{}
	for i := range 20 {
		// The later the name, the earlier the due instant.
		name, node := fmt.Sprintf("p%02d", i), fmt.Sprintf("n%d", i%4)
		p := &mPod{namespace: "default", name: name, uid: "uid-" + name, node: node, bound: epoch, tolerations: []corev1.Toleration{tol("x", corev1.TolerationOpExists, "", int64(1000-i))}}
		events = append(events, upsertPod(p))
		want[""], want[node] = append([]string{name}, want[""]...), append([]string{name}, want[node]...)
	}
	for i := range 4 {
		events = append(events, upsertNode(fmt.Sprintf("n%d", i), &mNode{uid: fmt.Sprintf("node%d", i), taints: []mTaint{{key: "x"}}}))
	}
	must(t, b.feed.Batch(t.Context(), 4, events))
	b.settle()
	for node, names := range want {
		var got []string
		for cursor := ""; ; {
			page, err := b.eng.List(t.Context(), engine.ListQuery{Cluster: cluster, Node: node, Limit: 3, Cursor: cursor})
			must(t, err)
			if len(page.Evictions) > 3 {
				t.Fatalf("a page of 3 has %d", len(page.Evictions))
			}
			for _, e := range page.Evictions {
				got = append(got, e.Pod)
			}
			if cursor = page.Cursor; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, names) {
			t.Fatalf("pages of node %q have %v, want %v", node, got, names)
		}
	}
	for _, cursor := range []string{"half", "AAAA", "!"} {
		if _, err := b.eng.List(t.Context(), engine.ListQuery{Limit: 3, Cursor: cursor}); !errors.Is(err, engine.ErrInvalid) {
			t.Fatalf("bad cursor %q: %v", cursor, err)
		}
	}
}

func TestPolicyEtagAndImpact(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list("a")
	ctx := t.Context()
	// One that is far from due does not count.
	must(t, b.feed.Batch(ctx, 4, []engine.Event{upsertPod(&mPod{namespace: "default", name: "later", uid: "uid-later", node: "n", bound: epoch,
		tolerations: []corev1.Toleration{tol("x", corev1.TolerationOpExists, "", 1000)}})}))
	b.settle()
	shadow := engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeShadow}, Fields: engine.PolicyMode}
	st, err := b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: shadow})
	must(t, err)
	b.advance(20 * time.Second)
	enforce := engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeEnforce}, Fields: engine.PolicyMode}
	old := st.Etag
	st, err = b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: shadow, Etag: old})
	must(t, err)
	for _, etag := range []string{"stale", old} {
		if _, err := b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: enforce, Etag: etag}); !errors.Is(err, engine.ErrEtag) {
			t.Fatalf("etag %q: %v", etag, err)
		}
	}
	dry, err := b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: enforce, Etag: st.Etag, ValidateOnly: true})
	if err != nil || dry.Impact.BecomeDue != 1 || dry.Effective.Mode != engine.ModeEnforce {
		t.Fatalf("dry run: %+v, %v", dry, err)
	}
	now, err := b.eng.Policy(ctx, cluster)
	if err != nil || now.Effective.Mode != engine.ModeShadow || now.Etag != st.Etag {
		t.Fatalf("the dry run changed the policy: %+v, %v", now, err)
	}
	if _, err := b.eng.SetPolicy(ctx, "unknown", engine.PolicyUpdate{Patch: enforce, ValidateOnly: true}); !errors.Is(err, engine.ErrClusterUnknown) {
		t.Fatalf("a dry run for an unknown cluster: %v", err)
	}
	_, err = b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: enforce, Etag: st.Etag})
	must(t, err)
	_, err = b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: enforce})
	must(t, err)
	b.sink.mu.Lock()
	defer b.sink.mu.Unlock()
	if want := []engine.Mode{engine.ModeEnforce, engine.ModeShadow, engine.ModeEnforce}; !slices.Equal(b.sink.modes, want) {
		t.Fatalf("the feed was told of the modes %v; want %v", b.sink.modes, want)
	}
}

func TestWatchResumesAndRefusesWhatIsGone(t *testing.T) {
	b := newBench(t, mem.New().Open)
	from, err := b.eng.Revision()
	must(t, err)
	b.list("a", "b")
	w, err := b.eng.Watch(from)
	must(t, err)
	changes, revision, err := w.Next(t.Context(), 100)
	must(t, err)
	if len(changes) != 2 || revision <= from {
		t.Fatalf("%d changes up to revision %d", len(changes), revision)
	}
	w, err = b.eng.Watch(revision)
	must(t, err)
	must(t, b.feed.Batch(t.Context(), 4, []engine.Event{{Type: engine.EventDelete, Pod: &engine.Pod{UID: "uid-a"}}}))
	b.settle()
	changes, _, err = w.Next(t.Context(), 100)
	if err != nil || len(changes) != 1 || changes[0].Revision <= revision || changes[0].Eviction.UID != "uid-a" {
		t.Fatalf("after revision %d: %+v, %v", revision, changes, err)
	}
	if _, err := b.eng.Watch(revision + 100); !errors.Is(err, engine.ErrRevisionTooOld) {
		t.Fatalf("a revision of the future: %v", err)
	}
	for _, id := range []string{"", "prod", "prod/", "prod/x", "/1", "prod/0"} {
		if _, err := b.eng.Get(t.Context(), id); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	if _, err := b.eng.Get(t.Context(), "prod/99"); !errors.Is(err, engine.ErrEvictionUnknown) {
		t.Errorf("unknown id: %v", err)
	}
}

// TestListAfterListIsAcknowledged begins lists on the heels of others: none may
// keep back the acknowledgement of what comes after it.
func TestListAfterListIsAcknowledged(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list("a")
	ctx := t.Context()
	for range 200 {
		must(t, b.feed.SyncBegin(ctx, b.seq+1))
		must(t, b.feed.SyncEnd(ctx, b.seq+2))
		b.seq += 2
	}
	must(t, b.feed.SyncBegin(ctx, b.seq+1))
	b.seq++
	b.settle()
	b.sink.mu.Lock()
	defer b.sink.mu.Unlock()
	if b.sink.acked != b.seq {
		t.Errorf("acknowledged is %d of %d", b.sink.acked, b.seq)
	}
}

func TestFeedRules(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list("a")
	ctx := t.Context()
	open := func(uid, feeder string, epoch uint64) error {
		_, _, err := b.eng.OpenFeed(engine.FeedHello{Cluster: cluster, ClusterUID: uid, FeederID: feeder, Epoch: epoch}, &sink{})
		return err
	}
	if err := open("other", "f", 1); !errors.Is(err, engine.ErrClusterUID) {
		t.Errorf("another cluster's UID: %v", err)
	}
	if err := open("c", "g", 0); !errors.Is(err, engine.ErrFeedHeld) {
		t.Errorf("another feeder: %v", err)
	}
	bad := upsertPod(&mPod{namespace: "default", name: "b", uid: "uid-a", node: "n"})
	if err := b.feed.Batch(ctx, 4, []engine.Event{bad}); !errors.Is(err, engine.ErrUIDConflict) {
		t.Errorf("one UID under two names: %v", err)
	}
	both := []engine.Event{
		upsertPod(&mPod{namespace: "default", name: "b", uid: "uid-new", node: "n"}), upsertPod(&mPod{namespace: "default", name: "c", uid: "uid-new", node: "n"}),
	}
	if err := b.feed.Batch(ctx, 4, both); !errors.Is(err, engine.ErrUIDConflict) {
		t.Errorf("one new UID under two names in one batch: %v", err)
	}
	if err := b.feed.SyncEnd(ctx, 5); !errors.Is(err, engine.ErrFeedOrder) {
		t.Errorf("an end without a beginning: %v", err)
	}
	must(t, open("c", "g", 7))
	if !slices.ContainsFunc(b.sink.ended, func(err error) bool { return errors.Is(err, engine.ErrSuperseded) }) {
		t.Errorf("the older feed ended with %v", b.sink.ended)
	}
	if err := b.feed.Heartbeat(ctx, 6); !errors.Is(err, engine.ErrSuperseded) {
		t.Errorf("a heartbeat of the older feed: %v", err)
	}
	for _, feeder := range []string{"f", "g"} {
		if err := open("c", feeder, 6); !errors.Is(err, engine.ErrFeedHeld) {
			t.Errorf("a lower epoch by %s: %v", feeder, err)
		}
	}
}

// TestLookAfterTheCommit holds the commit of a delivery back while its reason
// goes away: when the commit is done, no order may leave.
func TestLookAfterTheCommit(t *testing.T) {
	for name, act := range map[string]func(*bench) error{
		"taint removed": func(b *bench) error {
			return b.feed.Batch(context.Background(), 4, []engine.Event{upsertNode("n", &mNode{uid: "node"})})
		},
		"pod replaced": func(b *bench) error {
			return b.feed.Batch(context.Background(), 4, []engine.Event{upsertPod(&mPod{namespace: "default", name: "a", uid: "another", node: "n", bound: epoch})})
		},
		"paused": func(b *bench) error {
			_, err := b.eng.Pause(context.Background(), cluster, engine.Pause{Reason: "test"})
			return err
		},
		"feed lost": func(b *bench) error {
			b.feed.Close()
			return nil
		},
		"reprieved": func(b *bench) error {
			_, err := b.eng.GrantReprieve(context.Background(), cluster, engine.PodRef{UID: "uid-a"},
				engine.ReprieveRecord{Until: epoch.Add(time.Hour), Reason: "test"})
			return err
		},
		"in shadow mode": func(b *bench) error {
			_, err := b.eng.SetPolicy(context.Background(), cluster, engine.PolicyUpdate{
				Patch: engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeShadow}, Fields: engine.PolicyMode}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plan, gate := fault.NewScript(), fault.NewGate()
				b := newBench(t, fault.New(mem.New().Open, plan))
				b.attach("x", 5)
				b.list("a")
				plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: gate}})
				b.clock.Set(epoch.Add(10 * time.Second))
				b.clock.Fire()
				<-gate.Reached()
				done := make(chan error, 1)
				go func() { done <- act(b) }()
				// The shards have taken in what came; it is not on disk.
				synctest.Wait()
				gate.Release()
				must(t, <-done)
				b.settle()
				if orders := b.sink.take(); len(orders) != 0 {
					t.Fatalf("orders after the reason was gone: %+v", orders)
				}
			})
		})
	}
}
