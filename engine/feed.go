package engine

import (
	"context"
	"fmt"
	"time"
	"unique"
)

// feedWindow is how many messages of a feed may be under way. Beyond it the
// feed's goroutine waits, which is the feed's back-pressure.
const feedWindow = 64

// FeedSession is one feed stream's hold on its cluster. Its methods are called
// by one goroutine, in the order of the stream's messages.
type FeedSession struct {
	cl     *cluster
	sink   FeedSink
	hello  FeedHello
	window chan struct{}

	// Guarded by cl.mu.
	listing, live bool
	over          error
	blocked       bool
	entries       []*feedEntry // under way, in order
	// told and toldHealth are the modes that the feed knows of.
	told       Mode
	toldHealth NodeHealth
}

// feedEntry is a message under way.
type feedEntry struct {
	sequence uint64
	at       time.Time
	// live: it came while the cluster was synced, so that it moves last_live_at.
	live, synced, done bool
	slot               bool // holds a place in the window
}

// openFeed gives the cluster to a feed, or says who has it.
func (c *core) openFeed(hello FeedHello, sink FeedSink) (*FeedSession, FeedWelcome, error) {
	cl, err := c.lock(hello.Cluster)
	if err != nil {
		// Its sessions have been told already.
		return nil, FeedWelcome{}, err
	}
	defer cl.mu.Unlock()
	now := c.clock.Now()
	if cl.rec.UID != "" && cl.rec.UID != hello.ClusterUID {
		return nil, FeedWelcome{}, fmt.Errorf("%w: %q is bound to %s, the feed is of %s", ErrClusterUID, cl.name, cl.rec.UID, hello.ClusterUID)
	}
	if err := cl.admit(&hello, now); err != nil {
		return nil, FeedWelcome{}, err
	}
	if cl.session != nil {
		cl.session.lose(ErrSuperseded)
	}
	f := &FeedSession{cl: cl, sink: sink, hello: hello, window: make(chan struct{}, feedWindow)}
	cl.session, cl.last, cl.lastMessage = f, hello, now
	cl.armSilence(now)
	f.tellMode()
	return f, FeedWelcome{HeartbeatInterval: c.opts.HeartbeatInterval, Mode: f.told, NodeHealth: f.toldHealth}, nil
}

// tellMode tells the feed of the modes in force, if it knows of others. cl.mu is held.
func (f *FeedSession) tellMode() {
	if mode := f.cl.conf.policy.NodeHealth; mode != f.toldHealth {
		f.toldHealth = mode
		f.sink.NodeHealth(mode)
	}
	if mode := f.cl.conf.policy.Mode; mode != f.told {
		f.told = mode
		f.sink.Mode(mode)
	}
}

// admit says whether a new feed may take the place of the last one: a higher
// epoch may, and the same feeder; a lower epoch, or another feeder with an
// equal one, may not while the holder is alive. mu is held.
func (cl *cluster) admit(hello *FeedHello, now time.Time) error {
	alive := cl.session != nil || cl.core.opts.FeedTimeout > 0 && now.Sub(cl.lastMessage) <= cl.core.opts.FeedTimeout && cl.last.Cluster != ""
	switch held := &cl.last; {
	case !alive, hello.Epoch > held.Epoch:
		return nil
	case hello.Epoch < held.Epoch:
		return fmt.Errorf("%w: %q by %q with epoch %d, higher than %d", ErrFeedHeld, cl.name, held.FeederID, held.Epoch, hello.Epoch)
	case hello.FeederID != held.FeederID && cl.session != nil:
		return fmt.Errorf("%w: %q by %q with the same epoch %d", ErrFeedHeld, cl.name, held.FeederID, held.Epoch)
	}
	return nil
}

// armSilence sets the timer that ends a silent feed. mu is held.
func (cl *cluster) armSilence(now time.Time) {
	if t := cl.core.opts.FeedTimeout; t > 0 {
		cl.silence.Reset(now.Add(t + time.Nanosecond))
	}
}

func (cl *cluster) checkSilence() {
	cl.core.activity.add(1)
	defer cl.core.activity.done(1)
	cl.mu.Lock()
	defer cl.mu.Unlock()
	f, now := cl.session, cl.core.clock.Now()
	switch {
	case f == nil:
	case f.blocked:
		// The service's own back-pressure is not the feed's silence.
		cl.armSilence(now)
	case now.Sub(cl.lastMessage) > cl.core.opts.FeedTimeout:
		f.lose(ErrFeedSilent)
	default:
		cl.armSilence(cl.lastMessage)
	}
}

// lose ends the session: the cluster is in a gap from its last message. mu is held.
func (f *FeedSession) lose(cause error) {
	if f.over != nil {
		return
	}
	cl := f.cl
	f.over = cause
	cl.session = nil
	cl.silence.Stop()
	f.unsync(SyncLost)
	f.sink.Ended(cause)
}

// relist asks for a whole list anew, on the same stream. mu is held.
func (f *FeedSession) relist(reason string) {
	f.over = ErrUnavailable
	f.cl.session = nil
	f.cl.silence.Stop()
	f.unsync(SyncLost)
	f.sink.Resync(reason)
}

// unsync holds everything until the next whole list has ended. mu is held.
func (f *FeedSession) unsync(state SyncState) {
	cl := f.cl
	lastLive := cl.rec.LastLiveAt
	if f.live && cl.lastMessage.After(lastLive) {
		lastLive = cl.lastMessage
	}
	f.listing, f.live = false, false
	if cl.rec.AdoptedAt.IsZero() && state == SyncLost && !cl.damaged {
		state = SyncNever
	}
	cl.sync = state
	cl.reconfigure(reconfiguration{
		edit: func(c *clusterConf) { c.live, c.released, c.lastLive = false, false, lastLive },
		each: func(s *shard, sc *shardCluster) { s.regate(sc, RecallNone) },
	})
}

// enter begins a message: it waits for room in the window, takes the lock and
// returns with it held unless it fails.
func (f *FeedSession) enter(ctx context.Context, sequence uint64) (*feedEntry, error) {
	if err := f.waitRoom(ctx); err != nil {
		return nil, err
	}
	f.cl.mu.Lock()
	if f.over != nil {
		f.cl.mu.Unlock()
		return nil, f.over
	}
	f.cl.lastMessage = f.cl.core.clock.Now()
	return &feedEntry{sequence: sequence, at: f.cl.lastMessage, live: f.live, slot: true}, nil
}

func (f *FeedSession) waitRoom(ctx context.Context) error {
	select {
	case f.window <- struct{}{}:
		return nil
	default:
	}
	f.setBlocked(true)
	defer f.setBlocked(false)
	select {
	case f.window <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-f.cl.core.ctx.Done():
		return ErrUnavailable
	}
}

func (f *FeedSession) setBlocked(blocked bool) {
	f.cl.mu.Lock()
	defer f.cl.mu.Unlock()
	f.blocked = blocked
}

// complete marks a message as processed by all shards. When all before it are
// too, what follows from them is written and they are acknowledged.
func (f *FeedSession) complete(e *feedEntry) {
	cl := f.cl
	cl.mu.Lock()
	defer cl.mu.Unlock()
	e.done = true
	n, live := 0, false
	var last *feedEntry
	for n < len(f.entries) && f.entries[n].done {
		last = f.entries[n]
		if last.live && last.at.After(cl.rec.LastLiveAt) {
			cl.rec.LastLiveAt, live = last.at, true
		}
		n++
	}
	if n == 0 {
		return
	}
	finished := f.entries[:n:n]
	f.entries = f.entries[n:]
	change := Change{Cluster: cl.name}
	if live {
		change = cl.record()
	}
	cl.core.commit(func() { f.acknowledge(finished) }, change)
}

func (f *FeedSession) acknowledge(done []*feedEntry) {
	for _, e := range done {
		if e.slot {
			<-f.window
		}
	}
	f.cl.mu.Lock()
	defer f.cl.mu.Unlock()
	if f.over != nil {
		return
	}
	for _, e := range done {
		if e.synced {
			f.sink.Ack(e.sequence, true)
		}
	}
	if last := done[len(done)-1]; !last.synced {
		f.sink.Ack(last.sequence, false)
	}
}

// SyncBegin begins a whole list. Until its end nothing of the cluster is sent.
func (f *FeedSession) SyncBegin(ctx context.Context, sequence uint64) error {
	e, err := f.enter(ctx, sequence)
	if err != nil {
		return err
	}
	defer f.cl.mu.Unlock()
	f.cl.gen++
	f.entries = append(f.entries, e)
	f.unsync(SyncListing)
	f.listing = true
	f.fence(e)
	return nil
}

// fence completes e once all shards have handled what was sent to them before.
func (f *FeedSession) fence(e *feedEntry) {
	f.cl.core.onShards(func(s *shard) {
		if sc := s.clusters[f.cl.name]; sc != nil {
			s.stirQuiet(sc)
			sc.forgetLate(s.now)
			sc.forgetLoops(s.now)
		}
	}, func() { f.complete(e) })
}

// Heartbeat says that the feed is alive and everything before it was sent.
func (f *FeedSession) Heartbeat(ctx context.Context, sequence uint64) error {
	e, err := f.enter(ctx, sequence)
	if err != nil {
		return err
	}
	defer f.cl.mu.Unlock()
	f.entries = append(f.entries, e)
	f.fence(e)
	return nil
}

// NodeLifecycle says what the feeder knows by now of another controller of the
// nodes' health, in place of what its hello said; empty for none. It changes what
// is shown and whether a policy is refused, and no decision.
func (f *FeedSession) NodeLifecycle(what string) {
	cl := f.cl
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.session != f || cl.last.NodeLifecycle == what {
		return
	}
	f.hello.NodeLifecycle, cl.last.NodeLifecycle = what, what
}

// Batch applies events. An event that contradicts what is known (one UID under
// two names) refuses the batch as a whole.
func (f *FeedSession) Batch(ctx context.Context, sequence uint64, events []Event) error {
	e, err := f.enter(ctx, sequence)
	if err != nil {
		return err
	}
	defer f.cl.mu.Unlock()
	if !f.listing && !f.live {
		<-f.window
		return fmt.Errorf("%w: a batch needs a list to be begun first (sync_begin)", ErrFeedOrder)
	}
	if err := f.cl.checkUIDs(events); err != nil {
		<-f.window
		return err
	}
	f.entries = append(f.entries, e)
	f.cl.route(events, e.at, func() { f.complete(e) })
	return nil
}

// SyncEnd ends a whole list: what it did not contain is gone, everything is
// decided again, and after that is on disk what is due may leave.
func (f *FeedSession) SyncEnd(ctx context.Context, sequence uint64) error {
	e, err := f.enter(ctx, sequence)
	if err != nil {
		return err
	}
	cl := f.cl
	defer cl.mu.Unlock()
	if !f.listing {
		<-f.window
		return fmt.Errorf("%w: the end of a list that was not begun (sync_end without sync_begin)", ErrFeedOrder)
	}
	f.listing, f.live = false, true
	e.live, e.synced = true, true
	f.entries = append(f.entries, e)
	cl.route(cl.unlisted(), e.at, func() {})
	guards := cl.settleGuards(cl.rec.AdoptedAt.IsZero() && !cl.damaged)
	gap := e.at.Sub(cl.rec.LastLiveAt)
	adopt := cl.rec.AdoptedAt.IsZero() || gap > cl.core.opts.MaxGap
	cl.reconfigure(reconfiguration{
		edit: func(c *clusterConf) { c.live = true },
		each: func(s *shard, sc *shardCluster) {
			s.reguard(sc, guards)
			s.listed(sc, adopt, e.at)
		},
		save: func(r *ClusterRecord) {
			r.UID, r.LastLiveAt = f.hello.ClusterUID, e.at
			if adopt {
				r.AdoptedAt = e.at
			}
		},
		then: func() { f.release(e) },
	})
	return nil
}

// release opens the gates after a list: all shards have decided again.
func (f *FeedSession) release(e *feedEntry) {
	cl := f.cl
	cl.mu.Lock()
	if f.over == nil && !f.live {
		// Another list has begun meanwhile: the gates wait for its end, and what was
		// sent behind this one waits for its acknowledgement.
		e.synced = false
		cl.mu.Unlock()
		f.complete(e)
		return
	}
	defer cl.mu.Unlock()
	if f.over != nil {
		return
	}
	cl.sync = SyncLive
	cl.reconfigure(reconfiguration{
		edit: func(c *clusterConf) { c.released = true },
		each: func(s *shard, sc *shardCluster) {
			sc.saidBefore = nil
			s.regate(sc, RecallNone)
		},
		then: func() { f.complete(e) },
	})
}

// Close ends the feed from its own side.
func (f *FeedSession) Close() {
	f.cl.mu.Lock()
	defer f.cl.mu.Unlock()
	if f.over == nil {
		f.lose(ErrStopped)
	}
}

// checkUIDs refuses events of one UID under two names. mu is held.
func (cl *cluster) checkUIDs(events []Event) error {
	fresh := map[string]podName{} // UIDs that the batch shows first
	for i := range events {
		ev := events[i].Pod
		if ev == nil || events[i].Type == EventDelete {
			continue
		}
		name := podName{ev.Namespace, ev.Name}
		was, seen := fresh[ev.UID]
		if p := cl.pods.byUID(ev.UID); p != nil {
			was, seen = p.fullName(), true
		}
		if seen && was != name {
			return fmt.Errorf("%w: event %d: UID %s is pod %s/%s and pod %s/%s", ErrUIDConflict, i, ev.UID, was.namespace, was.name, name.namespace, name.name)
		}
		if !seen {
			fresh[ev.UID] = name
		}
	}
	return nil
}

// route sends events to the shards that own their nodes and calls then when all
// have applied them. mu is held.
func (cl *cluster) route(events []Event, at time.Time, then func()) {
	var forHealth []Event
	parts := make(map[*shard]*batch, len(cl.core.shards))
	part := func(s *shard) *batch {
		b := parts[s]
		if b == nil {
			b = &batch{cluster: cl, at: at}
			parts[s] = b
		}
		return b
	}
	for i := range events {
		switch ev := &events[i]; {
		case ev.Node != nil:
			if cl.routeNode(ev, at, part) && cl.health != nil {
				forHealth = append(forHealth, *ev)
			}
		case ev.Pod != nil && ev.Type == EventDelete:
			cl.routePodGone(ev.Pod, part)
		case ev.Pod != nil:
			cl.routePod(ev.Pod, part)
		case ev.Leases != nil && cl.health != nil:
			forHealth = append(forHealth, *ev)
		default:
			cl.ignored.unknownKind.Add(1)
		}
	}
	then = cl.tellHealth(forHealth, at, then)
	if len(parts) == 0 {
		// then must not run here: mu is held.
		cl.core.onShards(func(*shard) {}, then)
		return
	}
	left := newCountdown(len(parts), then)
	for s, b := range parts {
		b.done = left.done
		s.inbox.put(shardMsg{batch: b})
	}
}

// routeNode sends a node's event to its shard, and reports whether it changes anything.
func (cl *cluster) routeNode(ev *Event, at time.Time, part func(*shard) *batch) bool {
	op := nodeOp{Event: *ev}
	if ev.Type == EventDelete {
		known := cl.nodes[ev.Node.Name]
		if known == nil || ev.Node.UID != "" && known.uid != "" && known.uid != ev.Node.UID {
			// Another node's end, or one never seen: it changes nothing (D14, D15).
			cl.ignored.unknownUID.Add(1)
			return false
		}
		cl.unsight(known)
		delete(cl.nodes, ev.Node.Name)
	} else {
		op.guards = cl.sight(ev.Node, at)
	}
	b := part(cl.core.shardOf(cl.name, ev.Node.Name))
	b.nodes = append(b.nodes, op)
	return true
}

func (cl *cluster) routePodGone(seen *Pod, part func(*shard) *batch) {
	p := cl.pods.byUID(seen.UID)
	if p == nil {
		cl.ignored.unknownUID.Add(1)
		return
	}
	cl.forget(p, false, part).marked = seen.marked()
}

// forget takes a pod out of the router and sends its end to its shard. What it
// returns is valid until the next event is routed.
func (cl *cluster) forget(p *pod, superseded bool, part func(*shard) *batch) *podOp {
	cl.pods.remove(p)
	b := part(p.shard())
	b.pods = append(b.pods, podOp{pod: p, superseded: superseded})
	return &b.pods[len(b.pods)-1]
}

func (cl *cluster) routePod(seen *Pod, part func(*shard) *batch) {
	p := cl.pods.byUID(seen.UID)
	if p != nil && p.nodeName() != seen.Node {
		// It was bound since. Its place is with the shard of its node.
		cl.forget(p, false, part)
		p = nil
	}
	if p == nil {
		if old := cl.pods.byName(seen.Namespace, seen.Name); old != nil {
			cl.forget(old, true, part)
		}
		p = &pod{
			namespace: unique.Make(seen.Namespace), name: seen.Name, uid: seen.UID,
			home: unique.Make(home{node: seen.Node, shard: cl.core.shardOf(cl.name, seen.Node)}),
		}
		cl.pods.add(p)
	}
	p.gen = cl.gen
	b := part(p.shard())
	b.pods = append(b.pods, podOp{pod: p, seen: seen, marked: seen.marked()})
}

// unlisted are deletions of all that the list now ending did not contain. mu is held.
func (cl *cluster) unlisted() []Event {
	var gone []Event
	for name, n := range cl.nodes {
		if n.gen != cl.gen {
			gone = append(gone, Event{Type: EventDelete, Node: &Node{Name: name, UID: n.uid}})
		}
	}
	for _, p := range cl.pods.pods {
		if p != nil && p.gen != cl.gen {
			gone = append(gone, Event{Type: EventDelete, Pod: &Pod{Namespace: p.namespace.Value(), Name: p.name, UID: p.uid}})
		}
	}
	return gone
}
