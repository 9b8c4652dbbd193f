package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// offer is a due eviction that a shard has put before its cluster's dispatcher.
type offer struct {
	// ev is read only for what of it never changes.
	ev *eviction
	// grounds are the eviction's as it fell due.
	grounds *grounds
	retry   bool
	// place is the index in its heap plus one; zero: not waiting. The dispatcher's.
	place int32
}

// execLink is an executor as one cluster's dispatcher sees it. All but the
// session is the dispatcher's.
type execLink struct {
	session               *ExecutorSession
	capacity, outstanding int
	attachedAt            time.Time
	detached              bool
	// stale: its last answer to an order for a node was STALE, and no other has failed
	// with one since.
	stale bool
}

// dispatchMsg is a message to a dispatcher: exactly one of its parts is set.
type dispatchMsg struct {
	offer    *offer
	withdraw *offer
	behind   *behindMsg
	// node offers an order for a node, unnode takes it back.
	node, unnode *nodeOffer
	credit       *execLink
	attach       *execLink
	detach       *execLink
	capacity     *capacityMsg
	answer       *nodeAnswer
	policy       *Policy
	suspend      int // +1 or -1
	tick         bool
	// roomy: the line was full and is no more.
	roomy bool
	task  func(*dispatcher)
}

// behindMsg says whether a shard has more evictions of a kind than it has offered.
type behindMsg struct {
	shard       int
	retry, more bool
}

// offers are the due evictions of one kind that the shards have offered.
type offers struct {
	heap indexedHeap[*offer]
	// shards are by number.
	shards []shardOffers
}

// shardOffers is what the dispatcher knows of one shard.
type shardOffers struct {
	// offered counts those in the heap; more: the shard has others, which are all later.
	offered int
	more    bool
}

// complete reports whether the head of the heap is the oldest of all shards. It
// is not known while a shard has offers to make and all that it made are used.
func (q *offers) complete() bool {
	for i := range q.shards {
		if s := &q.shards[i]; s.more && s.offered == 0 {
			return false
		}
	}
	return true
}

func (q *offers) push(o *offer) {
	q.shards[o.ev.pod.shard().id].offered++
	q.heap.push(o)
}

// remove takes an offer out if it is in.
func (q *offers) remove(o *offer) {
	if *o.at() != 0 {
		q.shards[o.ev.pod.shard().id].offered--
		q.heap.remove(o)
	}
}

type capacityMsg struct {
	link     *execLink
	capacity int
}

// nodeAnswer is what came of an executor's order for a node.
type nodeAnswer struct {
	link    *execLink
	outcome Outcome
}

// dispatcher orders what is due in one cluster over all shards and grants
// permits: to the oldest first, within the rate and the executors' credit.
type dispatcher struct {
	core    *core
	cluster string
	inbox   *mailbox[dispatchMsg]
	timer   clock.Timer
	// blocked is why the head of the queue is not sent, for readers.
	blocked atomic.Uint32
	// nodesWait: orders for nodes wait for an executor that takes them.
	nodesWait atomic.Bool
	line      line

	// Owned by the goroutine.
	// nodes are the orders for nodes, oldest first; they leave before evictions and
	// outside their rate.
	nodes           []*nodeOffer
	fresh, retries  offers
	links           []*execLink
	limiter, halved *rate.Limiter // nil: unlimited
	suspended       int
	releasing       bool
	tickAt          time.Time
}

func newDispatcher(c *core, cluster string, policy *Policy) *dispatcher {
	d := &dispatcher{core: c, cluster: cluster, inbox: newMailbox[dispatchMsg](&c.activity)}
	d.fresh.shards, d.retries.shards = make([]shardOffers, len(c.shards)), make([]shardOffers, len(c.shards))
	d.timer = c.clock.NewTimer(func() { d.inbox.put(dispatchMsg{tick: true}) })
	d.setRate(policy)
	return d
}

func (d *dispatcher) run(ctx context.Context) error {
	defer d.timer.Stop()
	// A forgotten cluster's dispatcher ends before its core does.
	defer d.inbox.close()
	var spare []dispatchMsg
	for {
		msgs := d.inbox.take(ctx, spare)
		if msgs == nil {
			return nil
		}
		// What a barrier let loose waits for the clock's tick, so that all events
		// of the instant come first (D16).
		now, released := d.core.clock.Now(), false
		for i := range msgs {
			released = d.handle(&msgs[i]) || released
		}
		if released {
			d.releasing = true
			d.tickAfter(now)
		}
		if !d.releasing {
			d.grant(now)
		}
		n := len(msgs)
		clear(msgs)
		spare = msgs
		d.inbox.done(n)
	}
}

// handle applies a message and reports whether it ended a suspension.
func (d *dispatcher) handle(m *dispatchMsg) (released bool) {
	switch {
	case m.offer != nil:
		d.offersOf(m.offer.retry).push(m.offer)
	case m.withdraw != nil:
		d.offersOf(m.withdraw.retry).remove(m.withdraw)
	case m.behind != nil:
		d.offersOf(m.behind.retry).shards[m.behind.shard].more = m.behind.more
	case m.node != nil:
		d.nodes = append(d.nodes, m.node)
	case m.unnode != nil:
		d.nodes = slices.DeleteFunc(d.nodes, func(o *nodeOffer) bool { return o == m.unnode })
	case m.credit != nil:
		m.credit.outstanding--
	case m.attach != nil:
		d.links = append(d.links, m.attach)
	case m.detach != nil:
		d.detach(m.detach)
	case m.capacity != nil:
		m.capacity.link.capacity = m.capacity.capacity
	case m.answer != nil:
		d.answered(m.answer)
	case m.policy != nil:
		d.setRate(m.policy)
	case m.suspend != 0:
		d.suspended += m.suspend
		return d.suspended == 0
	case m.tick:
		d.tickAt, d.releasing = time.Time{}, false
	case m.task != nil:
		m.task(d)
	}
	return false
}

func (d *dispatcher) offersOf(retry bool) *offers {
	if retry {
		return &d.retries
	}
	return &d.fresh
}

func (d *dispatcher) detach(link *execLink) {
	link.detached = true
	for i, l := range d.links {
		if l == link {
			d.links = append(d.links[:i], d.links[i+1:]...)
			return
		}
	}
}

// setRate makes the limiters of a policy. Retries take at most half the rate.
func (d *dispatcher) setRate(p *Policy) {
	if p.UnlimitedRate {
		d.limiter, d.halved = nil, nil
		return
	}
	limit, burst := rate.Limit(p.RatePerSecond), max(p.Burst, 1)
	if d.limiter != nil {
		if d.limiter.Limit() == limit && d.limiter.Burst() == burst {
			return
		}
		// A change of the policy gives no new burst.
		now := d.core.clock.Now()
		d.limiter.SetLimitAt(now, limit)
		d.limiter.SetBurstAt(now, burst)
		d.halved.SetLimitAt(now, limit/2)
		d.halved.SetBurstAt(now, max(burst/2, 1))
		return
	}
	d.limiter = rate.NewLimiter(limit, burst)
	d.halved = rate.NewLimiter(limit/2, max(burst/2, 1))
}

// grant gives permits for as long as there is something due, credit and rate.
//
// What was kept back, by a barrier's gates, the rate or the executors' credit, is
// offered or known to be behind before the first grant: so it leaves oldest first
// (I8). What falls due with nothing in its way is offered by its shard's own timer.
// Of two shards the one that is awake later offers later, so an eviction due just
// after may be granted before. Neither was overdue when the other was offered, but
// by that shard's lateness. To ask all shards before each grant would mend the order
// and make every order as late as the busiest shard.
func (d *dispatcher) grant(now time.Time) {
	d.grantNodes()
	for {
		if d.suspended > 0 || len(d.fresh.heap) == 0 && len(d.retries.heap) == 0 {
			d.blocked.Store(uint32(HoldNone))
			return
		}
		if !d.fresh.complete() || !d.retries.complete() {
			// The shard is told of its permits and offers more.
			return
		}
		if !d.line.room() {
			d.blocked.Store(uint32(HoldNone))
			return
		}
		link := d.freest(func(*execLink) bool { return true })
		if link == nil {
			d.blocked.Store(uint32(HoldNoExecutor))
			return
		}
		o, wait := d.pick(now)
		if o == nil {
			d.blocked.Store(uint32(HoldRateLimited))
			d.tickAfter(now.Add(wait))
			return
		}
		d.offersOf(o.retry).remove(o)
		link.outstanding++
		p := &permit{offer: o, link: link}
		d.line.join(p)
		o.ev.pod.shard().inbox.put(shardMsg{permit: p})
	}
}

func (d *dispatcher) tickAfter(at time.Time) {
	if d.tickAt.IsZero() || at.Before(d.tickAt) {
		d.tickAt = at
		d.timer.Reset(at)
	}
}

// answered notes which executors are asked for nodes next. One whose order came to
// nothing is no better than those that answered STALE.
func (d *dispatcher) answered(a *nodeAnswer) {
	switch a.outcome {
	case OutcomeStale:
		a.link.stale = true
		return
	case OutcomeFailed, OutcomeDenied, OutcomeNoAnswer:
		for _, l := range d.links {
			l.stale = false
		}
	}
	a.link.stale = false
}

// grantNodes gives permits to orders for nodes. An executor that last answered STALE
// is asked only if no other can be: its view may be stuck, and one that answers at
// once always has most credit.
func (d *dispatcher) grantNodes() {
	for d.suspended == 0 && len(d.nodes) > 0 {
		link := d.freest(func(l *execLink) bool { return l.session.hello.NodeOrders && !l.stale })
		if link == nil {
			link = d.freest(func(l *execLink) bool { return l.session.hello.NodeOrders })
		}
		if link == nil {
			break
		}
		o := d.nodes[0]
		d.nodes = slices.Delete(d.nodes, 0, 1)
		if o.owner.inbox.put(healthMsg{permit: &healthPermit{offer: o, link: link}}) {
			link.outstanding++
		}
	}
	d.nodesWait.Store(len(d.nodes) > 0)
}

// freest is the executor with most free credit, of those that will do.
func (d *dispatcher) freest(will func(*execLink) bool) *execLink {
	var best *execLink
	for _, l := range d.links {
		if free := l.capacity - l.outstanding; free > 0 && will(l) && (best == nil || free > best.capacity-best.outstanding) {
			best = l
		}
	}
	return best
}

// pick takes the oldest offer that the rate allows, or says how long to wait.
func (d *dispatcher) pick(now time.Time) (*offer, time.Duration) {
	fresh, retry := d.fresh.heap.head(), d.retries.heap.head()
	if d.limiter == nil {
		return older(fresh, retry), 0
	}
	if wait := waitFor(d.limiter, now); wait > 0 {
		return nil, wait
	}
	if o := older(fresh, retry); o == fresh {
		d.limiter.AllowN(now, 1)
		return o, 0
	}
	wait := waitFor(d.halved, now)
	if wait == 0 {
		d.halved.AllowN(now, 1)
		d.limiter.AllowN(now, 1)
		return retry, 0
	}
	if fresh == nil {
		return nil, wait
	}
	d.limiter.AllowN(now, 1)
	return fresh, 0
}

// waitFor is how long until the limiter has a token; it takes none.
func waitFor(l *rate.Limiter, now time.Time) time.Duration {
	if l.TokensAt(now) >= 1 {
		return 0
	}
	r := l.ReserveN(now, 1)
	defer r.CancelAt(now)
	// At least a nanosecond: a wait of zero would be taken for leave.
	return max(r.DelayFrom(now), 1)
}

// older returns the offer that leaves first: by due instant, then sequence.
func older(a, b *offer) *offer {
	switch {
	case a == nil:
		return b
	case b == nil || a.before(b):
		return a
	}
	return b
}

func (o *offer) before(p *offer) bool {
	if o.grounds != p.grounds && !o.grounds.due.Equal(p.grounds.due) {
		return o.grounds.due.Before(p.grounds.due)
	}
	return o.ev.seq() < p.ev.seq()
}

func (o *offer) at() *int32 { return &o.place }

func (o *offer) dispatcher() *dispatcher { return o.grounds.node.sc.dispatcher }
