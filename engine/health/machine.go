package health

import (
	"fmt"
	"slices"
	"time"
)

const (
	// blindAfter without a word of the leases, or without being run, the machine
	// knows nothing of heartbeats.
	blindAfter = 5 * time.Second
	// settleAfter a stale watch has shown the heartbeat that it lacked, what else it
	// lacked has arrived too.
	settleAfter = 5 * time.Second
	// lookEvery is the time between two looks at who may have its NoExecute taint.
	lookEvery = time.Second
	// quietZone without a node is forgotten after this time since its last grant.
	quietZone = time.Hour
)

// Node is a node as the feed shows it.
type Node struct {
	Name, UID string
	// Zone is REGION/ZONE; empty without these labels.
	Zone string
	// Excluded nodes do not count in their zone (node.kubernetes.io/exclude-disruption).
	Excluded      bool
	Unschedulable bool
	Conditions    [conditions]Status
	// ReadyReason, Heartbeat and Transition are the reason, the lastHeartbeatTime and the
	// lastTransitionTime of condition Ready. The last is shown, and decides nothing: it is
	// by another clock.
	ReadyReason           string
	Heartbeat, Transition time.Time
	// Taints are those of its taints that follow from health.
	Taints TaintSet
}

// node is what the machine knows of a node.
type node struct {
	Node
	place
	// shown: the feed has shown it since the machine began; before that only its record is known.
	shown bool
	// heard is where its grace counts from: the arrival of its last heartbeat, or the
	// end of a time in which none could be seen. beatAt is the arrival itself.
	heard, beatAt time.Time
	// ever: it has sent a heartbeat, now or before it was first seen.
	ever   bool
	renew  time.Time
	silent bool
	// silentAt is when it was found silent; staleAt is when a live read was last said to
	// show a heartbeat that the feed has not shown since.
	silentAt, staleAt time.Time
	// ready is condition Ready as it is taken; since is when it became so, or with
	// sinceSeen was found to be so by a list.
	ready     Status
	since     time.Time
	sinceSeen bool
	zone      *zone
	tally     tally
	// queuedAt is since when it waits for a grant of its zone; grantedAt is when it
	// got it. At most one of the two is set.
	queuedAt, grantedAt time.Time
	// podsPending: its pods are yet to be marked not ready.
	podsPending bool
	// ordered is what the last order said; before is what the one before it said.
	ordered, before Ordered
	removals        uint32
	removedAt       time.Time
	dirty           bool
}

// Ordered is what the last order for a node said, or the one that is out.
type Ordered struct {
	Unknown, MarkPods bool
	Add, Remove       TaintSet
}

// Machine decides over the nodes of one cluster. Its methods are called by one
// goroutine with instants that do not decrease; an earlier one counts as the last.
type Machine struct {
	figures Figures
	acting  bool
	now     time.Time
	nodes   map[string]*node
	zones   map[string]*zone
	// heard and unheard have the nodes that are not silent, by heard: those that have
	// sent a heartbeat and those that never did.
	heard, unheard queue
	dirty          []*node
	// lookedAt is when it was last looked who may have its NoExecute taint.
	lookedAt time.Time

	// live: the feed is synced. leasesAt is when it last told of leases.
	live     bool
	leasesAt time.Time
	// blindSince, heldSince, staleSince, disruptedSince and doubtedSince are zero while it is not so.
	blindSince, heldSince, staleSince, disruptedSince time.Time
	// staleNode is the node whose heartbeat the feed lacks; empty if it has come.
	// staleBy is who read it.
	staleNode, staleBy string
	staleUntil         time.Time
	// doubtedSince: the feed never showed what a live read was said to show. Until it
	// does so once, such a word counts for its own node alone.
	doubtedSince time.Time

	other   string
	otherAt time.Time
}

// New returns a machine that is blind: it has seen no feed. acting says whether
// what it wants is carried out.
func New(figures Figures, acting bool, now time.Time) *Machine {
	return &Machine{figures: figures, acting: acting, now: now, blindSince: now, nodes: map[string]*node{}, zones: map[string]*zone{}}
}

// SetPolicy changes the figures, and whether what is wanted is carried out. What
// was granted while nothing was carried out is granted anew, at the zone's rate.
func (m *Machine) SetPolicy(now time.Time, figures Figures, acting bool) {
	m.advance(now)
	begins := acting && !m.acting
	m.figures, m.acting = figures, acting
	if begins {
		for _, z := range m.zones {
			z.last = m.now
		}
		for _, n := range m.nodes {
			if !n.grantedAt.IsZero() && n.Taints&noExecute == 0 {
				n.grantedAt = time.Time{}
				n.await(m.now)
			}
			m.touch(n)
		}
	}
	m.settle()
}

// advance moves the machine's time and notices that it was not run.
func (m *Machine) advance(now time.Time) {
	if now.Before(m.now) {
		return
	}
	if now.Sub(m.now) > blindAfter {
		m.goBlind(m.now)
	}
	m.now = now
	if m.blindSince.IsZero() && now.Sub(m.leasesAt) > blindAfter {
		m.goBlind(m.leasesAt)
	}
}

// Blind reports whether nothing is known of heartbeats.
func (m *Machine) Blind() bool { return !m.blindSince.IsZero() }

func (m *Machine) goBlind(since time.Time) {
	if m.blindSince.IsZero() {
		// What the feed did not show is no executor's fault from here on.
		m.blindSince, m.doubtedSince = since, time.Time{}
	}
}

// Tick looks at the time: it must be called every second.
func (m *Machine) Tick(now time.Time) {
	m.advance(now)
	m.settle()
}

// FeedLost says that the feed is not synced any more, or that a list has begun.
func (m *Machine) FeedLost(now time.Time) {
	m.advance(now)
	m.goBlind(m.now)
	m.live = false
}

// FeedLive says that a whole list has ended: the nodes are as they were shown.
// Heartbeats are known from the first word of leases on.
func (m *Machine) FeedLive(now time.Time) {
	m.advance(now)
	m.live, m.lookedAt = true, m.now
	for _, n := range m.nodes {
		if !n.shown {
			m.remove(n)
		}
	}
	m.doubtSilence()
	// What the list showed was wanted by nobody before.
	m.touchAll()
	m.settle()
}

// Renewed says which nodes' Leases were renewed. times are the Leases' renewTimes,
// or nil. The first word of leases in a live feed ends blindness.
func (m *Machine) Renewed(now time.Time, names []string, times []time.Time) {
	m.advance(now)
	m.leasesAt = m.now
	if m.live && !m.blindSince.IsZero() {
		m.blindSince = time.Time{}
		m.staleNode, m.staleSince, m.staleUntil = "", time.Time{}, time.Time{}
		m.doubtSilence()
		m.amnesty()
	}
	for i, name := range names {
		n := m.nodes[name]
		if n == nil {
			continue
		}
		if times != nil {
			if times[i].Equal(n.renew) {
				continue
			}
			n.renew = times[i]
		}
		m.beat(n)
	}
	m.settle()
}

// doubtSilence gives up every silence that the nodes themselves do not show yet:
// while the machine was blind they may have been heard. One whose condition Ready is
// Unknown stays silent until its kubelet says otherwise.
func (m *Machine) doubtSilence() {
	for _, n := range m.nodes {
		if n.silent && n.Conditions[CondReady] != StatusUnknown {
			m.unsilence(n)
		}
	}
}

// unsilence gives a node that was found silent its whole grace again.
func (m *Machine) unsilence(n *node) {
	n.silent, n.silentAt = false, time.Time{}
	m.listen(n)
	m.judge(n)
	m.touch(n)
}

// amnesty gives every node that is not silent its whole grace from now.
func (m *Machine) amnesty() {
	for _, q := range []*queue{&m.heard, &m.unheard} {
		for n := q.first; n != nil; n = n.next {
			n.heard = m.now
		}
	}
	m.heldSince = time.Time{}
}

// beat takes a heartbeat.
func (m *Machine) beat(n *node) {
	n.beatAt, n.ever = m.now, true
	m.listen(n)
	if n.silent {
		n.silent, n.silentAt = false, time.Time{}
		m.judge(n)
	}
	if !n.staleAt.IsZero() {
		// Later than that it proves nothing: the node may have come back since.
		if m.now.Sub(n.staleAt) <= m.figures.Grace {
			m.doubtedSince = time.Time{}
		}
		n.staleAt = time.Time{}
	}
	if m.staleNode == n.Name {
		m.staleNode, m.staleUntil = "", m.now.Add(settleAfter)
	}
}

// listen begins a node's grace.
func (m *Machine) listen(n *node) {
	n.heard = m.now
	if n.ever {
		m.heard.push(n)
	} else {
		m.unheard.push(n)
	}
}

// Node shows a node. changed conditions and taints are compared with what was
// known; another UID is another node.
func (m *Machine) Node(now time.Time, seen Node) {
	m.advance(now)
	n := m.nodes[seen.Name]
	if n != nil && n.UID != seen.UID {
		m.remove(n)
		n = nil
	}
	if n == nil {
		n = &node{Node: Node{Name: seen.Name, UID: seen.UID}}
		m.nodes[seen.Name] = n
	}
	first := !n.shown
	before := n.Node
	n.Node, n.shown = seen, true
	m.place(n)
	switch {
	case seen.beats(&before) && (!first || !before.Heartbeat.IsZero()):
		m.beat(n)
	case first && !n.silent:
		n.ever = n.ever || seen.Conditions[CondReady] != StatusNone
		m.listen(n)
	}
	m.judge(n)
	if !first && m.live {
		m.compare(n, &before)
	}
	if before.Conditions[CondReady] == StatusUnknown && n.Conditions[CondReady] != StatusUnknown {
		// What was ordered has been shown: the next time it is somebody else's. A node
		// that is heard again while the order is out may yet be set so.
		n.ordered.Unknown, n.before.Unknown = false, false
	}
	m.queueForTaint(n)
	m.touch(n)
}

// beats reports whether the kubelet has said something since: it never says
// Unknown, so what comes with that is a controller's.
func (n *Node) beats(before *Node) bool {
	return n.Conditions[CondReady] != StatusUnknown && !n.Heartbeat.IsZero() && !n.Heartbeat.Equal(before.Heartbeat)
}

// compare notices what somebody else did to a node.
func (m *Machine) compare(n *node, before *Node) {
	if m.acting {
		if lost := before.Taints &^ n.Taints & m.wanted(n) &^ n.ordered.Remove; lost != 0 {
			n.removals++
			n.removedAt = m.now
		}
	}
	turned := n.Conditions[CondReady] == StatusUnknown && before.Conditions[CondReady] != StatusUnknown
	if turned && !n.ordered.Unknown && (n.ReadyReason == "NodeStatusUnknown" || n.ReadyReason == "NodeStatusNeverUpdated") {
		m.other, m.otherAt = fmt.Sprintf("condition Ready of node %s became Unknown (%s) by another hand", n.Name, n.ReadyReason), m.now
	}
}

// Gone says that a node object is gone.
func (m *Machine) Gone(now time.Time, name string) {
	m.advance(now)
	if n := m.nodes[name]; n != nil {
		m.remove(n)
		m.settle()
	}
}

func (m *Machine) remove(n *node) {
	m.leave(n)
	n.unlink()
	delete(m.nodes, n.Name)
	if m.staleNode == n.Name {
		m.staleNode, m.staleUntil = "", m.now
	}
	m.touch(n)
}

// Settle applies what the nodes shown since mean for zones and grants. The nodes
// of one batch are shown before it.
func (m *Machine) Settle(now time.Time) {
	m.advance(now)
	m.settle()
}

// settle decides what depends on more than one node: silence, zones, grants.
// Without a live feed nothing is decided.
func (m *Machine) settle() {
	if !m.live {
		return
	}
	if m.stale() && !m.now.Before(m.staleUntil) {
		if m.staleNode != "" && m.doubtedSince.IsZero() && m.blindSince.IsZero() {
			m.doubtedSince = m.now
		}
		m.staleNode, m.staleSince = "", time.Time{}
		m.touchSilent()
	}
	if m.blindSince.IsZero() {
		m.endHold()
		m.findSilent()
	}
	m.disrupt()
	m.grant()
}

// touchSilent has the silent nodes looked at again.
func (m *Machine) touchSilent() {
	for _, n := range m.nodes {
		if n.silent {
			m.touch(n)
		}
	}
}

// findSilent finds the nodes whose grace is over.
func (m *Machine) findSilent() {
	if !m.heldSince.IsZero() || m.stale() {
		return
	}
	for n := m.heard.first; n != nil && m.now.Sub(n.heard) > m.figures.Grace; n = m.heard.first {
		if m.massSilence(n.heard) {
			m.heldSince = m.now
			m.touchAll()
			return
		}
		m.fallSilent(n)
	}
	for n := m.unheard.first; n != nil && m.now.Sub(n.heard) > m.figures.StartupGrace; n = m.unheard.first {
		m.fallSilent(n)
	}
}

func (m *Machine) fallSilent(n *node) {
	n.unlink()
	n.silent, n.silentAt = true, m.now
	m.judge(n)
	m.touch(n)
}

// massSilence reports whether nearly all nodes that are heard were last heard
// within the window from the given instant, which is that of the first of them, and
// have been silent for half the grace at least.
func (m *Machine) massSilence(from time.Time) bool {
	if m.figures.DisableSilenceHold {
		return false
	}
	end := from.Add(m.figures.SilenceWindow)
	if half := m.now.Add(-m.figures.Grace / 2); half.Before(end) {
		end = half
	}
	count := 0
	for n := m.heard.first; n != nil && !n.heard.After(end); n = n.next {
		count++
	}
	return float64(count) >= m.figures.SilenceShare*float64(m.heard.len)
}

// endHold ends the hold over a silence of nearly all once enough are heard again.
func (m *Machine) endHold() {
	if m.heldSince.IsZero() || !m.figures.DisableSilenceHold && m.held() {
		return
	}
	m.amnesty()
	m.touchAll()
}

// held reports whether the nodes under the hold are still silent.
func (m *Machine) held() bool {
	return m.heard.len > 0 && float64(m.underHold()) >= m.figures.SilenceShare*float64(m.heard.len)
}

// underHold counts nodes that were not heard since the hold began.
func (m *Machine) underHold() int {
	again := 0
	for n := m.heard.last; n != nil && n.heard.After(m.heldSince); n = n.prev {
		again++
	}
	return m.heard.len - again
}

func (m *Machine) touchAll() {
	for _, n := range m.nodes {
		m.touch(n)
	}
}

func (m *Machine) stale() bool { return !m.staleSince.IsZero() }

// Stale says that a live read has shown a later heartbeat of a silent node than
// the feed: the feed is behind, and nothing becomes Unknown until it has caught up,
// or the node's grace is over. If it does not catch up, the reader may be the one that
// is behind: from then on its word keeps nobody else alive, until one is borne out.
// No node becomes Unknown by that alone: each order has a live read of its own. by is
// the reader, for people.
func (m *Machine) Stale(now time.Time, name, by string) {
	m.advance(now)
	n := m.nodes[name]
	if n == nil || !n.silent {
		return
	}
	n.ordered, n.before = Ordered{}, Ordered{}
	m.unsilence(n)
	n.staleAt = m.now
	if !m.doubtedSince.IsZero() {
		return
	}
	if m.staleSince.IsZero() {
		m.staleSince = m.now
	}
	// If the feed does not show it within the node's grace, the executor reads again.
	m.staleNode, m.staleBy, m.staleUntil = name, by, m.now.Add(m.figures.Grace)
	m.touchSilent()
}

// Ordered says that an order for a node is on its way to the disk.
func (m *Machine) Ordered(name string, o Ordered) {
	if n := m.nodes[name]; n != nil {
		n.ordered, n.before = o, n.ordered
	}
}

// NotDone says that nothing of the last order for a node was done, or will be: what
// happens to the node is not by it.
func (m *Machine) NotDone(name string) {
	if n := m.nodes[name]; n != nil {
		n.ordered = n.before
	}
}

// Applied says that an order for a node, sent at that instant, was carried out.
// One that was sent before the node last turned not ready says nothing of its pods
// since.
func (m *Machine) Applied(name string, sent time.Time, o Ordered) {
	n := m.nodes[name]
	if n != nil && n.podsPending && o.MarkPods && !sent.Before(n.since) {
		n.podsPending = false
		m.touch(n)
	}
}

// judge takes a node's condition Ready, and what follows for its zone and its pods.
func (m *Machine) judge(n *node) {
	ready := n.Conditions[CondReady]
	if n.silent {
		ready = StatusUnknown
	}
	if !n.shown || ready == n.ready && !n.since.IsZero() {
		return
	}
	was := n.ready
	n.ready, n.since, n.sinceSeen = ready, m.now, !m.live
	n.zone.count(n, n.Excluded)
	switch {
	case ready == StatusTrue, ready == StatusNone:
		n.podsPending = false
		n.grantedAt = time.Time{}
		n.await(time.Time{})
	case was == StatusTrue || was == StatusNone:
		n.podsPending = true
		m.queueForTaint(n)
	}
	m.touch(n)
}

// queueForTaint puts a node that is not ready into its zone's queue, unless it has its NoExecute taint already.
func (m *Machine) queueForTaint(n *node) {
	switch {
	case !n.bad() || !n.grantedAt.IsZero():
	case n.Taints&noExecute != 0 && m.disruptedSince.IsZero():
		n.grantedAt = m.now
		n.await(time.Time{})
	case n.queuedAt.IsZero():
		n.await(m.now)
	}
}

// bad reports whether the node should have a taint for its condition Ready.
func (n *node) bad() bool { return n.ready == StatusFalse || n.ready == StatusUnknown }

func (m *Machine) touch(n *node) {
	if !n.dirty {
		n.dirty = true
		m.dirty = append(m.dirty, n)
	}
}

// Changed are the names of the nodes of which something may be wanted, or is to
// be remembered, other than before, in order; gone ones too. It empties the list.
func (m *Machine) Changed() []string {
	names := make([]string, len(m.dirty))
	for i, n := range m.dirty {
		n.dirty = false
		names[i] = n.Name
	}
	m.dirty = m.dirty[:0]
	slices.Sort(names)
	return slices.Compact(names)
}
