package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// Driver runs an engine on a virtual clock, with one feed a cluster and one
// executor that answers at once. All that happens at one instant happens before
// the timers of that instant.
type Driver struct {
	clock *clock.Virtual
	opts  engine.Options
	start time.Time

	eng      *engine.Engine
	executor *engine.ExecutorSession
	watcher  *engine.Watcher
	feeds    map[string]*feed
	// removed are UIDs that the virtual cluster has no more: the executor took them.
	removed map[string]bool
	tokens  int
	seen    map[string]*engine.EvictionRecord
	// seenHealth is what was last told of each cluster's node health.
	seenHealth map[string]*healthSeen
	// lastNews is when something last happened.
	lastNews time.Duration

	mu       sync.Mutex // guards what follows: orders come from the engine's goroutines
	outcomes map[podKey]engine.Outcome
	lingers  map[podKey]bool
	orders   []Order
	taken    []*engine.EvictionRecord
	// nodeOutcomes are the executor's answers for nodes; nodeTaken are the orders for
	// nodes that it carried out.
	nodeOutcomes map[nodeKey]engine.Outcome
	nodeTaken    []*engine.NodeOrder

	// NodeHealth is the clusters' mode of node health where no policy says another; it
	// is set before the first event.
	NodeHealth engine.NodeHealth
	// LeasesUntil is until when, from the start, the feeds tell of leases where node
	// health is on. After it the service is blind to heartbeats.
	LeasesUntil time.Duration

	// TellWaits also tells why a silent node does not have its NoExecute taint yet, by
	// events of kind waits.
	TellWaits bool

	// OnEvent, if set, is told what happens to evictions, in order.
	OnEvent func(Event)
	// OnOrder, if set, is told of each order at the moment it leaves, from one of
	// the engine's goroutines.
	OnOrder func(Order)
}

type podKey struct{ cluster, namespace, name string }

// feed is one cluster's feed.
type feed struct {
	session  *engine.FeedSession
	sequence uint64
	synced   bool
	batch    []engine.Event
	// objects are the cluster's as the feed last showed them.
	objects map[string]shown
	serial  int
	// tickAt is when the feed tells of leases next.
	tickAt time.Time
	asked
}

// asked is what the service asks of a feed, guarded by the driver's mu.
type asked struct {
	health engine.NodeHealth
	relist bool
}

// Order is an order that the engine sent.
type Order struct {
	Cluster, Namespace, Pod, UID, Node string
	// At and Due are from the start.
	At, Due time.Duration
	Token   string
	Outcome engine.Outcome
	Record  *engine.EvictionRecord
}

// Event is something that happened to an eviction, or to a node's health.
type Event struct {
	// At is from the start.
	At time.Duration
	// Kind is scheduled, rescheduled, cancelled, held, ordered or closed of an
	// eviction, and one of those of [HealthEvent].
	Kind     string
	Eviction *engine.EvictionRecord
	// Health is set, and Eviction is not, where node health is told of.
	Health *HealthEvent
}

// NewDriver starts an engine over the store that open opens, at the instant start.
func NewDriver(ctx context.Context, open engine.StoreOpener, start time.Time, shards int) (*Driver, error) {
	d := &Driver{
		clock: clock.NewVirtual(start), start: start, removed: map[string]bool{},
		outcomes: map[podKey]engine.Outcome{}, lingers: map[podKey]bool{}, seen: map[string]*engine.EvictionRecord{},
		nodeOutcomes: map[nodeKey]engine.Outcome{}, seenHealth: map[string]*healthSeen{},
	}
	d.opts = engine.Options{
		Clock: d.clock, Open: open, Shards: shards, FeedTimeout: -1, PruneEvery: -1,
		ClusterPolicy: func(string) engine.PolicyPatch {
			p := engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeEnforce, NodeHealth: d.NodeHealth}, Fields: engine.PolicyMode}
			if d.NodeHealth != engine.NodeHealthUnspecified {
				p.Fields |= engine.PolicyNodeHealth
			}
			return p
		},
		Jitter:   func(d time.Duration) time.Duration { return d },
		NewToken: d.newToken,
	}
	return d, d.boot(ctx)
}

func (d *Driver) newToken() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens++
	return "token-" + strconv.Itoa(d.tokens)
}

func (d *Driver) boot(ctx context.Context) error {
	d.feeds = map[string]*feed{}
	d.eng = engine.New(d.opts)
	if err := d.eng.Start(ctx); err != nil {
		return err
	}
	rev, err := d.eng.Revision()
	if err != nil {
		return err
	}
	if d.watcher, err = d.eng.Watch(rev); err != nil {
		return err
	}
	d.executor, err = d.eng.AttachExecutor(engine.ExecutorHello{ID: "replay", Clusters: []string{"*"}, Capacity: 1 << 20, NodeOrders: true}, d)
	return err
}

// Engine is the engine as it runs now; a restart replaces it.
func (d *Driver) Engine() *engine.Engine { return d.eng }

// Now is the virtual time since the start.
func (d *Driver) Now() time.Duration { return d.clock.Now().Sub(d.start) }

// Order takes an order and answers it at once. It implements [engine.OrderSink].
func (d *Driver) Order(o engine.Order) bool {
	if o.Node != nil {
		d.nodeOrder(o)
		return true
	}
	kept := *o.Eviction
	r := &kept
	d.mu.Lock()
	outcome, ok := d.outcomes[podKey{r.Cluster, r.Namespace, r.Pod}]
	if !ok {
		outcome = engine.OutcomeEvicted
	}
	order := Order{
		Cluster: r.Cluster, Namespace: r.Namespace, Pod: r.Pod, UID: r.UID, Node: r.Node,
		At: d.Now(), Due: r.Due.Sub(d.start), Outcome: outcome, Record: r, Token: o.Token,
	}
	d.orders = append(d.orders, order)
	if d.OnOrder != nil {
		d.OnOrder(order)
	}
	if (outcome == engine.OutcomeEvicted || outcome == engine.OutcomeGone) && !d.lingers[podKey{r.Cluster, r.Namespace, r.Pod}] {
		d.taken = append(d.taken, r)
	}
	d.mu.Unlock()
	if outcome != engine.OutcomeNoAnswer {
		d.executor.Result(engine.Result{Token: o.Token, Outcome: outcome}, func(bool) {})
	}
	return true
}

// Recall takes a recall. An order is answered at once, so there is nothing to call back.
func (d *Driver) Recall(engine.RecallOrder) {}

// Ended takes the end of the executor's session, as a restart brings it.
func (d *Driver) Ended(error) {}

// Answer sends an answer by hand, as an executor with an old token might, and
// reports whether it was accepted.
func (d *Driver) Answer(token string, o engine.Outcome) bool {
	accepted := make(chan bool, 1)
	d.executor.Result(engine.Result{Token: token, Outcome: o}, func(ok bool) { accepted <- ok })
	return <-accepted
}

// Orders returns the orders sent so far, in order.
func (d *Driver) Orders() []Order {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.orders)
}

// SetOutcome sets the executor's answer for a pod from now on.
func (d *Driver) SetOutcome(cluster, namespace, name string, o engine.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outcomes[podKey{cluster, namespace, name}] = o
}

// SetLinger makes the virtual cluster keep a pod although the executor reports
// it evicted, as a feed that lags behind does.
func (d *Driver) SetLinger(cluster, namespace, name string, linger bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lingers[podKey{cluster, namespace, name}] = linger
}

// AdvanceTo lets time pass up to t: every timer before t fires, those at t do not.
func (d *Driver) AdvanceTo(ctx context.Context, t time.Duration) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	target := d.start.Add(t)
	for {
		next, ok := d.next()
		if !ok || !next.Before(target) {
			d.clock.Set(target)
			return nil
		}
		if err := d.fire(ctx, next); err != nil {
			return err
		}
	}
}

// RunUntil lets time pass up to and including t.
func (d *Driver) RunUntil(ctx context.Context, t time.Duration) error {
	if err := d.AdvanceTo(ctx, t); err != nil {
		return err
	}
	return d.fireThrough(ctx, t, func() bool { return false })
}

// RunOut lets time pass until nothing is left that time could change, but not
// beyond limit. Node health looks at the time for ever: where it is on, nothing is
// left when nothing has happened for a while and no pod waits.
func (d *Driver) RunOut(ctx context.Context, limit time.Duration) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	return d.fireThrough(ctx, limit, d.over)
}

// fireThrough fires one instant after the other, up to and including t, or until
// over says so.
func (d *Driver) fireThrough(ctx context.Context, t time.Duration, over func() bool) error {
	for {
		next, ok := d.next()
		if !ok || next.After(d.start.Add(t)) || over() {
			return nil
		}
		if err := d.fire(ctx, next); err != nil {
			return err
		}
	}
}

// fire fires the timers of one instant and lets all that follows happen.
func (d *Driver) fire(ctx context.Context, at time.Time) error {
	d.clock.Set(at)
	if err := d.tellOfLeases(ctx); err != nil {
		return err
	}
	d.clock.Fire()
	return d.settle(ctx)
}

// settle waits until the engine has nothing to do, tells what happened, and
// takes the pods that the executor evicted out of the virtual cluster.
func (d *Driver) settle(ctx context.Context) error {
	for {
		if err := d.eng.Settle(ctx); err != nil {
			return err
		}
		if err := d.report(); err != nil {
			return err
		}
		if err := d.reportHealth(ctx); err != nil {
			return err
		}
		d.mu.Lock()
		taken, nodes := d.taken, d.nodeTaken
		d.taken, d.nodeTaken = nil, nil
		d.mu.Unlock()
		relisted, err := d.relist(ctx)
		if err != nil {
			return err
		}
		if len(taken)+len(nodes) == 0 && !relisted {
			return nil
		}
		for _, r := range taken {
			d.removed[r.UID] = true
			gone := engine.Event{Type: engine.EventDelete, Pod: &engine.Pod{Namespace: r.Namespace, Name: r.Pod, UID: r.UID}}
			if err := d.show(ctx, r.Cluster, gone); err != nil {
				return err
			}
		}
		for _, o := range nodes {
			if err := d.carryOut(ctx, o); err != nil {
				return err
			}
		}
	}
}

// show tells a cluster's feed of one change in the virtual cluster.
func (d *Driver) show(ctx context.Context, cluster string, ev engine.Event) error {
	f := d.feeds[cluster]
	if f == nil || f.session == nil || !f.synced {
		return nil
	}
	f.keep(ev)
	f.sequence++
	return f.session.Batch(ctx, f.sequence, []engine.Event{ev})
}

// report turns committed changes into events.
func (d *Driver) report() error {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		changes, _, err := d.watcher.Next(done, 1000)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, c := range changes {
			d.tell(c.Eviction)
		}
	}
}

func (d *Driver) tell(r *engine.EvictionRecord) {
	id := engine.EvictionID(r.Cluster, r.Seq)
	was := d.seen[id]
	d.seen[id] = r
	kind := eventKind(was, r)
	if r.State == engine.StateClosed {
		delete(d.seen, id)
	}
	if kind != "" {
		d.happened(Event{At: d.Now(), Kind: kind, Eviction: r})
	}
}

func (d *Driver) happened(ev Event) {
	d.lastNews = ev.At
	if d.OnEvent != nil {
		d.OnEvent(ev)
	}
}

func eventKind(was, r *engine.EvictionRecord) string {
	switch {
	case r.State == engine.StateClosed && r.CloseReason == engine.CloseCancelled:
		return "cancelled"
	case r.State == engine.StateClosed:
		return "closed"
	case was == nil && r.State == engine.StateWaiting:
		return "scheduled"
	case r.State == engine.StateDelivered && (was == nil || was.Delivery == nil || was.Delivery.Token != r.Delivery.Token):
		return "ordered"
	case r.State == engine.StateDue && r.Hold != engine.HoldNone && (was == nil || was.State != engine.StateDue || was.Hold != r.Hold):
		return "held"
	case was != nil && !was.Due.Equal(r.Due):
		return "rescheduled"
	}
	return ""
}

// feed is a cluster's feed with a session.
func (d *Driver) feed(ctx context.Context, cluster string) (*feed, error) {
	f := d.feeds[cluster]
	if f == nil {
		f = &feed{}
		d.feeds[cluster] = f
	}
	if f.session != nil {
		return f, nil
	}
	return f, d.open(ctx, cluster, f)
}

// Apply takes one event of a cluster. Events of one instant go to the engine
// together, when time moves on or a control comes.
func (d *Driver) Apply(ctx context.Context, cluster string, ev engine.Event) error {
	if ev.Pod != nil && d.removed[ev.Pod.UID] {
		return nil
	}
	f, err := d.feed(ctx, cluster)
	if err != nil {
		return err
	}
	f.keep(ev)
	f.batch = append(f.batch, ev)
	return nil
}

// open begins a cluster's list.
func (d *Driver) open(ctx context.Context, cluster string, f *feed) error {
	hello := engine.FeedHello{Cluster: cluster, ClusterUID: "replay", FeederID: "replay"}
	session, welcome, err := d.eng.OpenFeed(hello, feedSink{d: d, f: f})
	if err != nil {
		return err
	}
	d.setHealth(f, welcome.NodeHealth)
	f.session, f.sequence, f.synced = session, 1, false
	return f.session.SyncBegin(ctx, f.sequence)
}

// feedSink takes what the service asks of a feed.
type feedSink struct {
	d *Driver
	f *feed
}

// Ack implements [engine.FeedSink].
func (feedSink) Ack(uint64, bool) {}

// Mode implements [engine.FeedSink].
func (feedSink) Mode(engine.Mode) {}

// Ended implements [engine.FeedSink].
func (feedSink) Ended(error) {}

// Resync implements [engine.FeedSink].
func (s feedSink) Resync(string) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.f.relist = true
}

// NodeHealth implements [engine.FeedSink].
func (s feedSink) NodeHealth(mode engine.NodeHealth) { s.d.setHealth(s.f, mode) }

// flush sends what was collected and waits for it to have its effect.
func (d *Driver) flush(ctx context.Context) error {
	if err := d.Send(ctx); err != nil {
		return err
	}
	return d.settle(ctx)
}

// Send gives the engine what was collected and waits for nothing.
func (d *Driver) Send(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(d.feeds)) {
		f := d.feeds[name]
		if len(f.batch) == 0 {
			continue
		}
		batch := f.batch
		f.batch = nil
		f.sequence++
		if err := f.session.Batch(ctx, f.sequence, batch); err != nil {
			return fmt.Errorf("cluster %s: %w", name, err)
		}
	}
	return nil
}

// Synced ends a cluster's list.
func (d *Driver) Synced(ctx context.Context, cluster string) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	f, err := d.feed(ctx, cluster)
	if err != nil {
		return err
	}
	if f.synced {
		return fmt.Errorf("cluster %q is synced already", cluster)
	}
	f.sequence++
	f.synced = true
	if err := f.session.SyncEnd(ctx, f.sequence); err != nil {
		return err
	}
	f.tickAt = d.clock.Now()
	if err := d.tellOfLeases(ctx); err != nil {
		return err
	}
	return d.settle(ctx)
}

// heartbeat is what a feed that is alive has sent by now.
func (f *feed) heartbeat(ctx context.Context) error {
	if f.session == nil || !f.synced {
		return nil
	}
	f.sequence++
	return f.session.Heartbeat(ctx, f.sequence)
}

// FeedLost ends a cluster's feed.
func (d *Driver) FeedLost(ctx context.Context, cluster string) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	if err := d.DropFeed(ctx, cluster); err != nil {
		return err
	}
	return d.settle(ctx)
}

// DropFeed ends a cluster's feed, alive until now, and waits for nothing.
func (d *Driver) DropFeed(ctx context.Context, cluster string) error {
	f := d.feeds[cluster]
	if f == nil || f.session == nil {
		return fmt.Errorf("cluster %q has no feed that could be lost", cluster)
	}
	if err := f.heartbeat(ctx); err != nil {
		return err
	}
	f.session.Close()
	d.feeds[cluster] = &feed{}
	return nil
}

// Restart stops the engine and starts it again on the same store, down later.
func (d *Driver) Restart(ctx context.Context, down time.Duration) error {
	if err := d.Heartbeat(ctx); err != nil {
		return err
	}
	return d.Reboot(ctx, down)
}

// Heartbeat lets every feed show that it is alive.
func (d *Driver) Heartbeat(ctx context.Context) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(d.feeds)) {
		if err := d.feeds[name].heartbeat(ctx); err != nil {
			return err
		}
	}
	return d.settle(ctx)
}

// Reboot replaces the engine, down later, by another on the same store. What was
// under way, and not on disk, is lost.
func (d *Driver) Reboot(ctx context.Context, down time.Duration) error {
	d.eng.Stop(ctx)
	d.clock.Set(d.clock.Now().Add(down))
	return d.boot(ctx)
}

// Pause pauses a cluster.
func (d *Driver) Pause(ctx context.Context, cluster string) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	if _, err := d.eng.Pause(ctx, cluster, engine.Pause{Reason: "timeline", Actor: "replay"}); err != nil {
		return err
	}
	return d.settle(ctx)
}

// Resume ends a cluster's pause.
func (d *Driver) Resume(ctx context.Context, cluster string) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	if _, err := d.eng.Resume(ctx, engine.PauseScope{Cluster: cluster}, false); err != nil {
		return err
	}
	return d.settle(ctx)
}

// SetPolicy lays fields over a cluster's policy.
func (d *Driver) SetPolicy(ctx context.Context, cluster string, p engine.PolicyPatch) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	if _, err := d.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: p}); err != nil {
		return err
	}
	return d.settle(ctx)
}

// Close stops the engine.
func (d *Driver) Close(ctx context.Context) { d.eng.Stop(ctx) }
