package engine

import (
	"context"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

const (
	// healthTick is how often the owner looks at the time.
	healthTick = time.Second
	// healthSettle is how long the feed has to show what an order did.
	healthSettle = 3 * time.Second
	// healthStaleBackOff is the wait after an order that rested on old knowledge.
	healthStaleBackOff = 2 * time.Second
	// healthGoneBackOff is the wait after an order for a node that is not there.
	healthGoneBackOff = 10 * time.Second
	// maxHealthBackOff is the longest wait after orders that failed, the first is firstBackOff.
	maxHealthBackOff = 10 * time.Second
)

// healthMsg is a message to an owner of node health: exactly one of its parts is
// set, and done, which is called when it has been handled and what follows from it
// is with the committer.
type healthMsg struct {
	events    []Event
	at        time.Time // of events
	conf      *clusterConf
	tick      bool
	permit    *healthPermit
	committed *healthNode
	result    *resultMsg
	adopted   *adoption
	lost      string // token of an ended stream
	// stop ends the owner; what is out leaves with the rest of the cluster.
	stop *leaving
	task func(*healthOwner)
	done func()
}

// healthPermit lets an order for a node leave.
type healthPermit struct {
	offer *nodeOffer
	link  *execLink
}

// nodeOffer is an order for a node that its owner has put before the dispatcher.
type nodeOffer struct {
	owner *healthOwner
	node  *healthNode
}

// adoption is a live order that an executor has brought back.
type adoption struct {
	token string
	link  *execLink
}

// healthOwner runs the node health of a cluster that wants it: one goroutine,
// beside the shards, which alone has the machine and the orders for nodes.
type healthOwner struct {
	core  *core
	cl    *cluster
	inbox *mailbox[healthMsg]
	timer clock.Timer

	// Owned by the goroutine.
	machine *health.Machine
	conf    *clusterConf
	now     time.Time
	nodes   map[string]*healthNode
	tokens  map[string]*healthNode // of live orders
	cluster health.ClusterRecord   // as stored
	out     []pending
	log     healthLog
}

// healthNode is the orders of a node: those have one whose health is stored, or of
// which something is wanted.
type healthNode struct {
	name string
	// stored is what is on disk, or on its way; nil if nothing is.
	stored *NodeHealthRecord
	offer  *nodeOffer
	// delivery is the order that is out, or about to be: then sent is false.
	delivery *Delivery
	want     health.Want
	link     *execLink
	sent     bool
	// shown: the feed has shown what that order, or the last one, says.
	shown bool
	// settleAt is until when the feed may lack what the last order did.
	settleAt    time.Time
	attempts    uint32
	notBefore   time.Time
	lastOutcome Outcome
	lastMessage string
}

func newHealthOwner(cl *cluster, conf *clusterConf) *healthOwner {
	c := cl.core
	h := &healthOwner{
		core: c, cl: cl, inbox: newMailbox[healthMsg](&c.activity), conf: conf, now: c.clock.Now(), nodes: map[string]*healthNode{},
		tokens: map[string]*healthNode{}, cluster: cl.rec.Health,
		machine: health.New(conf.policy.HealthFigures, conf.policy.actsOnHealth(), c.clock.Now()),
	}
	h.machine.RestoreCluster(cl.rec.Health)
	h.log = newHealthLog(h.now)
	h.timer = c.newTimer(func() { h.inbox.put(healthMsg{tick: true}) })
	return h
}

// restore takes what the store remembers of a node. Nothing runs yet.
func (h *healthOwner) restore(r *NodeHealthRecord) {
	h.machine.Restore(r.Record)
	n := &healthNode{
		name: r.Name, stored: r, delivery: r.Delivery, sent: true,
		attempts: r.Attempts, notBefore: r.NotBefore, lastOutcome: r.LastOutcome, lastMessage: r.LastMessage,
	}
	h.nodes[r.Name] = n
	if r.Delivery != nil {
		n.want.UID, n.want.Ordered = r.UID, r.Ordered
		h.tokens[r.Delivery.Token] = n
		h.core.deliveries.add(r.Delivery.Token, deliveryRef{health: h, cluster: h.cl.name})
	}
}

func (h *healthOwner) run(ctx context.Context) error {
	defer h.end()
	h.timer.Reset(h.core.clock.Now().Add(healthTick))
	var spare []healthMsg
	for {
		msgs := h.inbox.take(ctx, spare)
		if msgs == nil {
			return nil
		}
		stop := false
		for i := range msgs {
			if stop = h.handle(&msgs[i]); stop {
				h.refuse(msgs[i+1:])
				break
			}
		}
		n := len(msgs)
		clear(msgs)
		spare = msgs
		h.inbox.done(n)
		if stop {
			return nil
		}
	}
}

// end takes back what is out and lets nobody wait for what is not handled any more.
func (h *healthOwner) end() {
	h.timer.Stop()
	l := &leaving{}
	h.takeBack(l)
	h.refuse(h.inbox.seal())
	h.core.commit(func() { h.core.deliveries.gone(l) }, Change{Cluster: h.cl.name})
}

// takeBack withdraws what is offered and calls back what is out.
func (h *healthOwner) takeBack(l *leaving) {
	for _, n := range h.nodes {
		if n.delivery != nil {
			h.core.deliveries.leave(n.delivery.Token, l)
			h.returnCredit(n.link)
			n.delivery, n.link, n.sent = nil, nil, false
		}
		h.withdraw(n)
	}
	clear(h.tokens)
}

// refuse answers messages that came too late: nothing may be written any more.
func (h *healthOwner) refuse(msgs []healthMsg) {
	for i := range msgs {
		switch m := &msgs[i]; {
		case m.result != nil:
			h.refuseResult(m.result)
		case m.permit != nil:
			h.returnCredit(m.permit.link)
		case m.adopted != nil:
			h.returnCredit(m.adopted.link)
		}
		if msgs[i].done != nil {
			msgs[i].done()
		}
	}
}

// refuseResult answers for an order that ended with its owner, whose end is on
// disk, or with the committer.
func (h *healthOwner) refuseResult(m *resultMsg) {
	h.core.observer.UnknownToken()
	if !h.core.deliveries.defers(m) {
		h.core.commit(func() { m.reply(0, false) }, Change{Cluster: h.cl.name})
	}
}

// handle applies a message and reports whether it was the last.
func (h *healthOwner) handle(m *healthMsg) (stop bool) {
	h.now = h.core.clock.Now()
	switch {
	case m.events != nil:
		h.apply(m.events, m.at)
	case m.conf != nil:
		stop = h.reconfigure(m.conf)
	case m.tick:
		h.tick()
	case m.permit != nil:
		h.permitted(m.permit)
	case m.committed != nil:
		h.saved(m.committed)
	case m.result != nil:
		h.answered(m.result)
	case m.adopted != nil:
		h.adopt(m.adopted)
	case m.lost != "":
		h.noAnswer(m.lost, "the executor's stream ended")
	case m.task != nil:
		m.task(h)
	case m.stop != nil:
		h.takeBack(m.stop)
		stop = true
	}
	if !stop {
		h.followUp()
	}
	h.flush()
	if m.done != nil {
		m.done()
	}
	return stop
}

// apply takes what a feed sent at one instant.
func (h *healthOwner) apply(events []Event, at time.Time) {
	blind := h.machine.Blind()
	for i := range events {
		switch ev := &events[i]; {
		case ev.Leases != nil:
			h.machine.Renewed(at, ev.Leases.Nodes, ev.Leases.Times)
		case ev.Type == EventDelete:
			h.machine.Gone(at, ev.Node.Name)
		case ev.Node.Health != nil:
			h.machine.Node(at, *ev.Node.Health)
			h.showed(ev.Node.Name)
		}
	}
	h.machine.Settle(at)
	if blind && !h.machine.Blind() {
		h.tryAgain()
	}
}

// tryAgain lets the orders that failed leave at once: the API server that could not
// tell of heartbeats failed them too, and is back.
func (h *healthOwner) tryAgain() {
	for _, n := range h.byName() {
		if n.attempts > 0 {
			n.attempts, n.notBefore = 0, time.Time{}
			h.review(n)
			h.store(n)
		}
	}
}

// showed notes whether the feed shows what a node's order says: what differs from
// then on is news.
func (h *healthOwner) showed(name string) {
	if n := h.nodes[name]; n != nil && h.machine.Shows(name, n.want.Ordered) {
		n.shown, n.settleAt = true, time.Time{}
	}
}

// reconfigure takes a new conf. What a closed gate concerns is called back before
// it is acknowledged (I7). It reports whether node health is off now.
func (h *healthOwner) reconfigure(conf *clusterConf) (off bool) {
	was := h.conf
	h.conf = conf
	switch {
	case !conf.policy.watchesHealth():
		h.forget()
		return true
	case was.live && !conf.live:
		h.machine.FeedLost(h.now)
	case !was.live && conf.live:
		h.machine.FeedLive(h.now)
	}
	if was.policy.HealthFigures != conf.policy.HealthFigures || was.policy.actsOnHealth() != conf.policy.actsOnHealth() {
		h.machine.SetPolicy(h.now, conf.policy.HealthFigures, conf.policy.actsOnHealth())
	}
	for _, n := range h.byName() {
		h.review(n)
	}
	return false
}

// forget removes all that is stored of the nodes' health.
func (h *healthOwner) forget() {
	for _, n := range h.byName() {
		if n.stored != nil {
			h.put(deleteHealth(h.cl.name, n.name), nil)
		}
	}
}

func deleteHealth(cluster, node string) Change {
	return Change{Kind: ChangeDeleteHealth, Cluster: cluster, Health: &NodeHealthRecord{Cluster: cluster, Record: health.Record{Name: node}}}
}

func (h *healthOwner) byName() []*healthNode {
	nodes := make([]*healthNode, 0, len(h.nodes))
	for _, n := range h.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *healthNode) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return nodes
}

// tick looks at the time: silence, grants, deadlines and back-offs, and what the log is to be told.
func (h *healthOwner) tick() {
	h.timer.Reset(h.now.Add(healthTick))
	h.machine.Tick(h.now)
	for _, n := range h.byName() {
		if d := n.delivery; d != nil && n.sent && !d.Deadline.After(h.now) {
			h.noAnswer(d.Token, "no answer by the deadline")
			continue
		}
		h.review(n)
		h.store(n)
	}
	h.tellLog()
}

// followUp looks at the nodes of which something may be wanted now, and writes
// what is to be remembered of them.
func (h *healthOwner) followUp() {
	for _, name := range h.machine.Changed() {
		n := h.nodes[name]
		if n == nil {
			n = &healthNode{name: name}
			h.nodes[name] = n
		}
		h.review(n)
		h.store(n)
	}
	if r := h.machine.Cluster(); r.Other != h.cluster.Other || !r.OtherAt.Equal(h.cluster.OtherAt) || !slices.Equal(r.Grants, h.cluster.Grants) {
		h.cluster = r
		h.storeCluster(r)
	}
}

// storeCluster makes the machine's part of the cluster's record durable.
func (h *healthOwner) storeCluster(r health.ClusterRecord) {
	h.cl.mu.Lock()
	defer h.cl.mu.Unlock()
	if h.cl.over() != nil {
		return
	}
	h.cl.rec.Health = r
	h.put(h.cl.record(), nil)
	// With mu held: a record made later must not reach the disk before this one.
	h.flush()
}

// store writes what is to be remembered of a node, if that has changed, and
// forgets a node of which nothing is.
func (h *healthOwner) store(n *healthNode) {
	h.storeThen(n, nil)
}

func (h *healthOwner) storeThen(n *healthNode, then func()) {
	rec, ok := h.machine.Record(n.name)
	if !ok && n.delivery == nil && !n.notBefore.After(h.now) {
		if n.stored != nil {
			h.put(deleteHealth(h.cl.name, n.name), then)
			n.stored = nil
		}
		if _, wanted := h.machine.Want(n.name); !wanted && n.offer == nil && !n.settleAt.After(h.now) {
			delete(h.nodes, n.name)
		}
		return
	}
	rec.Name = n.name
	r := &NodeHealthRecord{
		Cluster: h.cl.name, Record: rec, Delivery: n.delivery, Attempts: n.attempts, NotBefore: n.notBefore,
		LastOutcome: n.lastOutcome, LastMessage: n.lastMessage,
	}
	if !ok {
		r.UID, r.Ordered = n.want.UID, n.want.Ordered
	}
	if then == nil && n.stored != nil && *n.stored == *r {
		return
	}
	n.stored = r
	h.put(Change{Kind: ChangePutHealth, Cluster: h.cl.name, Health: r}, then)
}

func (h *healthOwner) put(c Change, then func()) {
	h.out = append(h.out, pending{kind: c.Kind, cluster: c.Cluster, other: &c, then: then})
}

// flush hands what was changed to the committer.
func (h *healthOwner) flush() {
	if len(h.out) > 0 {
		h.core.committer.put(h.out...)
		h.out = nil
	}
}

// tellHealth sends events to the owner of node health, and returns what is to be
// called when the shards have applied theirs. mu is held.
func (cl *cluster) tellHealth(events []Event, at time.Time, then func()) func() {
	if len(events) == 0 {
		return then
	}
	left := newCountdown(2, then)
	cl.health.inbox.put(healthMsg{events: events, at: at, done: left.done})
	return left.done
}

// healthToo has the owner of node health take part in a barrier: then is called
// when it and the shards have the new conf. mu is held.
func (cl *cluster) healthToo(conf *clusterConf, then func()) func() {
	h := cl.health
	if h == nil {
		return then
	}
	left := newCountdown(2, then)
	h.inbox.put(healthMsg{conf: conf, done: left.done})
	return left.done
}

// switchHealth begins node health where a policy wants it and it is not there.
// The feed is asked for a new list, with all that is wanted of the nodes. mu is held.
func (cl *cluster) switchHealth(policy *Policy) {
	if cl.health != nil || !policy.watchesHealth() {
		return
	}
	if f := cl.session; f != nil {
		f.toldHealth = policy.NodeHealth
		f.sink.NodeHealth(policy.NodeHealth)
		f.relist("node health was switched on; the list must show what it looks at")
	}
	conf := *cl.conf
	conf.policy = *policy
	cl.health = newHealthOwner(cl, &conf)
	cl.core.mu.RLock()
	defer cl.core.mu.RUnlock()
	if !cl.core.stopped {
		cl.core.spawnHealth(cl)
	}
}
