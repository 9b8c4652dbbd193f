package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Change says what is to happen to a taint.
type Change uint8

// The changes.
const (
	ChangeNone Change = iota
	ChangeAdd
	ChangeRemove
)

// Hold says what keeps a change back.
type Hold uint8

// The holds that the machine knows of.
const (
	HoldNone Hold = iota
	// HoldNotSynced: the feed is not live.
	HoldNotSynced
	// HoldDisruption: nearly all nodes are silent, all zones are disrupted, or heartbeats
	// are not seen or known to be behind.
	HoldDisruption
	// HoldRate: the zone's rate.
	HoldRate
)

// TaintView is a taint that a node has, or is to have.
type TaintView struct {
	Taint   Taint
	Present bool
	Change  Change
	Reason  string
	// Since is since when the reason for it stands; zero if unknown.
	Since time.Time
	// At is when it changes, if that is known and not now.
	At   time.Time
	Hold Hold
}

// NodeView is what is known and wanted of a node.
type NodeView struct {
	Ready Status
	// Since is when condition Ready became so, as far as known. SinceSeen: that is only
	// when it was first seen so.
	Since     time.Time
	SinceSeen bool
	Reason    string
	// HeardAt is when the last heartbeat arrived; zero if none did.
	HeardAt time.Time
	// SilentAt is when it was found silent, or will be if it sends nothing more;
	// zero while nothing is known of heartbeats.
	SilentAt    time.Time
	Silent      bool
	Zone        string
	Excluded    bool
	Taints      []TaintView
	PodsPending bool
	// Observed: nobody carries out what is to change.
	Observed  bool
	Removals  uint32
	RemovedAt time.Time
	// Changes is what would change its taints, for people.
	Changes []string
}

// View is what is known and wanted of a node; false for one that is not known.
func (m *Machine) View(name string) (NodeView, bool) {
	n := m.nodes[name]
	if n == nil || !n.shown {
		return NodeView{}, false
	}
	v := NodeView{
		Ready: n.ready, Reason: m.reason(n), HeardAt: n.beatAt, Silent: n.silent, SilentAt: m.silentAt(n),
		Zone: n.Zone, Excluded: n.Excluded, PodsPending: n.podsPending, Observed: !m.acting, Removals: n.removals, RemovedAt: n.removedAt,
	}
	v.Since, v.SinceSeen = n.readySince()
	wanted := m.wanted(n)
	for _, t := range (wanted | n.Taints | m.coming(n)).List() {
		v.Taints = append(v.Taints, m.taintView(n, t, wanted))
	}
	v.Changes = m.whatWouldChange(n)
	return v, true
}

// readySince is since when condition Ready is as it is taken. seen: it was so when it
// was first seen, and does not say since when. What the condition says is taken where
// that is earlier, so that a restart, which keeps nothing of healthy nodes, does not
// begin the count again.
func (n *node) readySince() (since time.Time, seen bool) {
	if t := n.Transition; !t.IsZero() && n.Conditions[CondReady] == n.ready && t.Before(n.since) {
		return t, false
	}
	return n.since, n.sinceSeen
}

// silentAt is when a node was found silent, or will be.
func (m *Machine) silentAt(n *node) time.Time {
	switch {
	case n.silent:
		return n.silentAt
	case !m.blindSince.IsZero() || !m.heldSince.IsZero() || m.stale():
		return time.Time{}
	case n.ever:
		return n.heard.Add(m.figures.Grace)
	}
	return n.heard.Add(m.figures.StartupGrace)
}

// coming are the taints that a node waits for.
func (m *Machine) coming(n *node) TaintSet {
	switch {
	case n.queuedAt.IsZero():
		return 0
	case n.ready == StatusFalse:
		return Set(NotReadyNoExecute)
	}
	return Set(UnreachableNoExecute)
}

func (m *Machine) taintView(n *node, t Taint, wanted TaintSet) TaintView {
	v := TaintView{Taint: t, Present: n.Taints.Has(t), Reason: m.taintReason(n, t, wanted)}
	if t <= UnreachableNoExecute {
		v.Since, _ = n.readySince()
	}
	switch {
	case wanted.Has(t) && !v.Present:
		v.Change = ChangeAdd
	case v.Present && !wanted.Has(t):
		v.Change = ChangeRemove
	case !v.Present:
		v.Change, v.Hold = ChangeAdd, HoldRate
		v.At = m.grantAt(n)
		if !m.heldSince.IsZero() || !m.disruptedSince.IsZero() {
			v.Hold = HoldDisruption
		}
	}
	switch {
	case v.Change == ChangeNone:
	case !m.live:
		v.Hold = HoldNotSynced
	case m.withheld(n), noExecute.Has(t) && v.Change == ChangeAdd && m.heldBack(n):
		v.Hold = HoldDisruption
	}
	return v
}

// grantAt is when a waiting node gets its NoExecute taint as things stand; zero if
// never, or not within a year.
func (m *Machine) grantAt(n *node) time.Time {
	at, ok := m.nextGrant(n.zone)
	if !ok {
		return time.Time{}
	}
	if at.Before(m.now) {
		at = m.now
	}
	before, interval := slices.Index(n.zone.waiting(), n), m.interval(n.zone)
	if before > int(longestInterval/interval) {
		return time.Time{}
	}
	return at.Add(time.Duration(before) * interval)
}

func (m *Machine) taintReason(n *node, t Taint, wanted TaintSet) string {
	switch {
	case noExecute.Has(t) && !wanted.Has(t) && n.bad() && !m.disruptedSince.IsZero():
		return "all zones are fully disrupted: no node has it until one is ready"
	case noExecute.Has(t) && n.bad() && m.heldBack(n):
		return m.reason(n) + "; nearly all nodes are silent, so that no node has it until more than a few are heard again"
	case noExecute.Has(t) && !wanted.Has(t) && m.coming(n).Has(t):
		rate := m.rate(n.zone)
		lets := fmt.Sprintf("%.3g nodes a second have it", rate)
		if rate == 0 {
			lets = "no node have it as long as it is"
		}
		return fmt.Sprintf("%s; zone %q is %s and lets %s", m.reason(n), n.Zone, n.zone.state(&m.figures), lets)
	case t == Unschedulable:
		return fmt.Sprintf("spec.unschedulable is %t", n.Unschedulable)
	}
	for c, p := range pressures {
		if p == t {
			status := n.Conditions[c]
			if n.silent && c < CondNetworkUnavailable {
				status = StatusUnknown
			}
			return fmt.Sprintf("condition %s is %s", c, orAbsent(status))
		}
	}
	return m.reason(n)
}

func orAbsent(s Status) string {
	if s == StatusNone {
		return "absent"
	}
	return s.String()
}

// whatWouldChange says what would change a node's taints.
func (m *Machine) whatWouldChange(n *node) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	// What is only observed would happen.
	taintsGo, becomes, gets := "go", "becomes", "gets"
	if !m.acting {
		taintsGo, becomes, gets = "would go", "would become", "would get"
	}
	switch {
	case n.silent:
		add("a heartbeat of the node, and its condition Ready True: its not-ready and unreachable taints %s at once", taintsGo)
	case n.bad():
		add("condition Ready True: its not-ready and unreachable taints %s at once", taintsGo)
	case !m.blindSince.IsZero():
		add("heartbeats are not known: the node has its whole grace when they are again")
	case !m.heldSince.IsZero():
		add("nearly all nodes are silent, so that none is taken for dead: each has its whole grace when more than a few are heard again")
	case m.stale():
		add("the leases that are fed are behind: no node becomes Unknown until they have caught up, for a grace at most")
	default:
		add("no heartbeat for %s: its condition Ready %s Unknown, and it %s the taint %s", m.graceOf(n), becomes, gets, UnreachableNoSchedule)
	}
	if !n.queuedAt.IsZero() {
		if ahead := slices.Index(n.zone.waiting(), n); ahead > 0 {
			add("nodes of its zone that wait for their NoExecute taint before it: %d", ahead)
		}
	}
	return list
}

func (m *Machine) graceOf(n *node) time.Duration {
	if n.ever {
		return m.figures.Grace
	}
	return m.figures.StartupGrace
}

// ZoneView is a zone as it stands.
type ZoneView struct {
	Name                     string
	State                    ZoneState
	Nodes, NotReady, Waiting int
	Rate                     float64
	// Next is when the next node gets its NoExecute taint; zero if none waits, or none will.
	Next time.Time
}

// ClusterView is the cluster as it stands. Instants are zero while it is not so.
type ClusterView struct {
	Zones []ZoneView
	// BlindSince: nothing is known of heartbeats. HeldSince: nearly all nodes are
	// silent, Silent of them. StaleSince: the feed is known to be behind.
	// DisruptedSince: all zones are fully disrupted. DoubtedSince: the feed never
	// showed what a live read was said to show, so that such a word counts for its
	// own node alone. StaleBy is the executor whose word the feed was last waited for
	// to show, empty if there was none.
	BlindSince, HeldSince, StaleSince, DisruptedSince, DoubtedSince time.Time
	Silent                                                          int
	StaleBy                                                         string
	// Other says what showed that another controller works on the nodes, OtherAt when.
	Other   string
	OtherAt time.Time
}

// Names are those of all nodes that were shown, in no order.
func (m *Machine) Names() []string {
	names := make([]string, 0, len(m.nodes))
	for name, n := range m.nodes {
		if n.shown {
			names = append(names, name)
		}
	}
	return names
}

// Bad counts the nodes whose condition Ready is taken for False, and for Unknown.
func (m *Machine) Bad() (notReady, unknown int) {
	for _, n := range m.nodes {
		switch n.ready {
		case StatusFalse:
			notReady++
		case StatusUnknown:
			unknown++
		}
	}
	return notReady, unknown
}

func (m *Machine) sortedZones() []*zone {
	return slices.SortedFunc(maps.Values(m.zones), func(a, b *zone) int { return strings.Compare(a.name, b.name) })
}

// ClusterView is the cluster as it stands.
func (m *Machine) ClusterView() ClusterView {
	v := ClusterView{
		BlindSince: m.blindSince, HeldSince: m.heldSince, StaleSince: m.staleSince, DisruptedSince: m.disruptedSince,
		DoubtedSince: m.doubtedSince, StaleBy: m.staleBy,
		Other: m.other, OtherAt: m.otherAt,
	}
	if !m.heldSince.IsZero() {
		v.Silent = m.underHold()
	}
	for _, z := range m.sortedZones() {
		if len(z.nodes) == 0 {
			continue
		}
		zv := ZoneView{Name: z.name, State: z.state(&m.figures), Nodes: z.counted, NotReady: z.notReady, Waiting: len(z.queue), Rate: m.rate(z)}
		if zv.Waiting > 0 {
			if at, ok := m.nextGrant(z); ok {
				zv.Next = at
			}
		}
		v.Zones = append(v.Zones, zv)
	}
	return v
}
