package health

import (
	"fmt"
	"time"
)

// Want is what must change on a node, and what that rests on.
type Want struct {
	UID string
	Ordered
	// Ready, Heartbeat and Renew are as the feed last told them.
	Ready            Status
	Heartbeat, Renew time.Time
	// Reason is for people.
	Reason string
}

// wanted are the taints that a node should have.
func (m *Machine) wanted(n *node) (s TaintSet) {
	switch n.ready {
	case StatusNone:
		// It may still say how it is: what it has, it keeps.
		s = n.Taints & Set(NotReadyNoSchedule, NotReadyNoExecute, UnreachableNoSchedule, UnreachableNoExecute)
		if !m.disruptedSince.IsZero() {
			s &^= noExecute
		}
	case StatusFalse:
		s = Set(NotReadyNoSchedule)
		if !n.grantedAt.IsZero() {
			s |= Set(NotReadyNoExecute)
		}
	case StatusUnknown:
		s = Set(UnreachableNoSchedule)
		if !n.grantedAt.IsZero() {
			s |= Set(UnreachableNoExecute)
		}
	}
	for c, t := range pressures {
		if n.Conditions[c] == StatusTrue && (!n.silent || c >= CondNetworkUnavailable) {
			s |= Set(t)
		}
	}
	if n.Unschedulable {
		s |= Set(Unschedulable)
	}
	return s
}

// lacksUnknown reports whether a silent node has conditions that are yet to become Unknown.
func (n *node) lacksUnknown() bool {
	if !n.silent {
		return false
	}
	for c := CondReady; c < CondNetworkUnavailable; c++ {
		if n.Conditions[c] != StatusUnknown {
			return true
		}
	}
	return false
}

// withheld reports whether a silence is not to be acted on now: heartbeats are not
// seen, the feed is known to be behind, or nearly all nodes are silent.
func (m *Machine) withheld(n *node) bool {
	return n.lacksUnknown() && (!m.blindSince.IsZero() || m.stale() || !m.heldSince.IsZero())
}

// heldBack reports whether a silence of nearly all keeps a node from getting a
// NoExecute taint. One that has one may have it swapped.
func (m *Machine) heldBack(n *node) bool {
	return !m.heldSince.IsZero() && n.Taints&noExecute == 0
}

// Want is what must change on a node now; false if nothing must, or nothing is
// known well enough.
func (m *Machine) Want(name string) (Want, bool) {
	n := m.nodes[name]
	if n == nil || !m.live || !n.shown {
		return Want{}, false
	}
	wanted := m.wanted(n)
	w := Want{UID: n.UID, Ready: n.Conditions[CondReady], Heartbeat: n.Heartbeat, Renew: n.renew}
	switch {
	case !m.withheld(n):
		w.Unknown, w.MarkPods = n.lacksUnknown(), n.podsPending && n.bad()
		w.Add, w.Remove = wanted&^n.Taints, n.Taints&^wanted
	case !m.disruptedSince.IsZero():
		// Whether it is silent is not known well enough; that it keeps its pods is.
		w.Remove = n.Taints & noExecute
	}
	if m.heldBack(n) {
		w.Add &^= noExecute
	}
	if w.Ordered == (Ordered{}) {
		return Want{}, false
	}
	w.Reason = m.orderReason(n, w.Ordered, wanted)
	return w, true
}

// orderReason says why an order is given: of one that changes taints alone, the first taint's reason.
func (m *Machine) orderReason(n *node, o Ordered, wanted TaintSet) string {
	if changed := (o.Add | o.Remove).List(); len(changed) > 0 && !o.Unknown && !o.MarkPods {
		return m.taintReason(n, changed[0], wanted)
	}
	return m.reason(n)
}

// Knows reports whether the feed shows the node of that name and UID; an empty UID is any.
func (m *Machine) Knows(name, uid string) bool {
	n := m.nodes[name]
	return n != nil && (uid == "" || n.UID == uid)
}

// Shows reports whether the feed shows a node as an order leaves it.
func (m *Machine) Shows(name string, o Ordered) bool {
	n := m.nodes[name]
	return n != nil && o.Add&^n.Taints == 0 && o.Remove&n.Taints == 0 && (!o.Unknown || n.Conditions[CondReady] == StatusUnknown)
}

// Contradicts reports whether an order for a node says what is not wanted now: the
// node is another, is heard again, or has another condition.
func (m *Machine) Contradicts(name, uid string, o Ordered) bool {
	n := m.nodes[name]
	if !m.Knows(name, uid) || m.withheld(n) && o.Unknown {
		return true
	}
	wanted := m.wanted(n)
	return o.Unknown && !n.silent || o.MarkPods && !n.bad() || o.Add&^wanted != 0 || o.Remove&wanted != 0
}

// reason says why condition Ready is taken as it is.
func (m *Machine) reason(n *node) string {
	switch {
	case n.silent && n.ever:
		return fmt.Sprintf("no heartbeat for %s", m.figures.Grace)
	case n.silent:
		return fmt.Sprintf("no heartbeat ever, for %s", m.figures.StartupGrace)
	case n.ready == StatusNone:
		return "the node has no condition Ready yet"
	case n.ReadyReason == "":
		return fmt.Sprintf("condition Ready is %s", n.ready)
	}
	return fmt.Sprintf("condition Ready is %s (%s)", n.ready, n.ReadyReason)
}

// Record is what must be remembered of a node.
type Record struct {
	Name, UID string
	// SilentAt is when it was found silent; zero if it is not.
	SilentAt time.Time
	// Ready is condition Ready as it is taken, Since when it became so.
	Ready Status
	Since time.Time
	// QueuedAt is since when it waits for its NoExecute taint, GrantedAt when it got it.
	QueuedAt, GrantedAt time.Time
	// PodsPending: its pods are yet to be marked not ready.
	PodsPending bool
	// Heartbeat and Renew are the last ones that the feed told of a silent node.
	Heartbeat, Renew time.Time
	// Ordered is what the last order said.
	Ordered   Ordered
	Removals  uint32
	RemovedAt time.Time
}

// Record is what must be remembered of a node; false if nothing.
func (m *Machine) Record(name string) (Record, bool) {
	n := m.nodes[name]
	if n == nil || !n.silent && !n.bad() {
		return Record{}, false
	}
	r := Record{
		Name: n.Name, UID: n.UID, SilentAt: n.silentAt, Ready: n.ready, Since: n.since,
		QueuedAt: n.queuedAt, GrantedAt: n.grantedAt, PodsPending: n.podsPending,
		Ordered: n.ordered, Removals: n.removals, RemovedAt: n.removedAt,
	}
	if n.silent {
		// By these it shows whether it was heard over a restart. Of others each renewal would be a write.
		r.Heartbeat, r.Renew = n.Heartbeat, n.renew
	}
	if !m.acting && !r.GrantedAt.IsZero() && n.Taints&noExecute == 0 {
		// A grant that nobody carried out is none for whom it will be carried out.
		r.QueuedAt, r.GrantedAt = r.GrantedAt, time.Time{}
	}
	return r, true
}

// Restore takes what was remembered of a node, before the first list.
func (m *Machine) Restore(r Record) {
	n := &node{
		Node: Node{Name: r.Name, UID: r.UID, Heartbeat: r.Heartbeat}, renew: r.Renew,
		silent: !r.SilentAt.IsZero(), silentAt: r.SilentAt, ready: r.Ready, since: r.Since,
		queuedAt: r.QueuedAt, grantedAt: r.GrantedAt, podsPending: r.PodsPending,
		ever:    !r.Heartbeat.IsZero() || !r.Renew.IsZero(),
		ordered: r.Ordered, removals: r.Removals, removedAt: r.RemovedAt,
	}
	m.nodes[r.Name] = n
}

// Grant is when a zone's limiter last let a node pass.
type Grant struct {
	Zone string
	At   time.Time
}

// ClusterRecord is what must be remembered besides the nodes.
type ClusterRecord struct {
	// Grants are those of all zones, by name.
	Grants []Grant
	// Other says what showed that another controller works on the nodes; empty if nothing did.
	Other   string
	OtherAt time.Time
}

// Cluster is what must be remembered besides the nodes.
func (m *Machine) Cluster() ClusterRecord {
	r := ClusterRecord{Other: m.other, OtherAt: m.otherAt}
	for _, z := range m.sortedZones() {
		if !z.last.IsZero() {
			r.Grants = append(r.Grants, Grant{Zone: z.name, At: z.last})
		}
	}
	return r
}

// RestoreCluster takes what was remembered, before the first list.
func (m *Machine) RestoreCluster(r ClusterRecord) {
	m.other, m.otherAt = r.Other, r.OtherAt
	for _, g := range r.Grants {
		m.zoneNamed(g.Zone).last = g.At
	}
}
