package health

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// ZoneState says how many of a zone's nodes are ready.
type ZoneState uint8

// The states of a zone.
const (
	ZoneUnspecified ZoneState = iota
	ZoneNormal
	ZonePartial
	ZoneFull
)

// String is the state's name.
func (s ZoneState) String() string {
	return [...]string{"UNSPECIFIED", "NORMAL", "PARTIAL_DISRUPTION", "FULL_DISRUPTION"}[s]
}

// zone is the nodes of one region and zone.
type zone struct {
	name string
	// nodes are all of them; of the counted ones so many are not ready.
	nodes             map[*node]struct{}
	counted, notReady int
	// queue has the nodes that wait for a grant, sorted the same in order; nil if that has changed.
	queue  map[*node]struct{}
	sorted []*node
	// last is when its limiter last let a node pass.
	last time.Time
}

// count takes a node's readiness into its zone's numbers. Whether it was and is
// counted is kept in the node itself.
func (z *zone) count(n *node, excluded bool) {
	z.discount(n)
	if excluded {
		return
	}
	n.tally = tallyReady
	z.counted++
	if n.ready != StatusTrue {
		n.tally = tallyNotReady
		z.notReady++
	}
}

func (z *zone) discount(n *node) {
	if n.tally == tallyNone {
		return
	}
	z.counted--
	if n.tally == tallyNotReady {
		z.notReady--
	}
	n.tally = tallyNone
}

// tally is how a node counts in its zone.
type tally uint8

const (
	tallyNone tally = iota
	tallyReady
	tallyNotReady
)

// place puts a node into its zone.
func (m *Machine) place(n *node) {
	if n.zone == nil || n.zone.name != n.Zone {
		m.leave(n)
		n.zone = m.zoneNamed(n.Zone)
		n.zone.nodes[n] = struct{}{}
		n.await(n.queuedAt)
	}
	n.zone.count(n, n.Excluded)
}

// leave takes a node out of its zone. A zone is kept for its limiter's sake.
func (m *Machine) leave(n *node) {
	if z := n.zone; z != nil {
		z.discount(n)
		delete(z.nodes, n)
		delete(z.queue, n)
		z.sorted, n.zone = nil, nil
	}
}

// await puts a node into its zone's queue, or with the zero time takes it out.
func (n *node) await(since time.Time) {
	n.queuedAt = since
	if n.zone == nil {
		return
	}
	n.zone.sorted = nil
	if since.IsZero() {
		delete(n.zone.queue, n)
	} else {
		n.zone.queue[n] = struct{}{}
	}
}

// zoneNamed returns a zone. One that appears while the feed is live has used up
// its grant, so that changing labels is no way round the limit.
func (m *Machine) zoneNamed(name string) *zone {
	z := m.zones[name]
	if z == nil {
		z = &zone{name: name, nodes: map[*node]struct{}{}, queue: map[*node]struct{}{}}
		if m.live {
			z.last = m.now
		}
		m.zones[name] = z
	}
	return z
}

func (z *zone) state(f *Figures) ZoneState {
	switch {
	case z.counted > 0 && z.notReady == z.counted:
		return ZoneFull
	case z.notReady >= f.UnhealthyNodes && float64(z.notReady) >= f.UnhealthyShare*float64(z.counted):
		return ZonePartial
	}
	return ZoneNormal
}

// rate is how many nodes a second get their NoExecute taint.
func (m *Machine) rate(z *zone) float64 {
	switch f := &m.figures; z.state(f) {
	case ZoneFull:
		if !m.disruptedSince.IsZero() {
			return 0
		}
		return f.FullRate
	case ZonePartial:
		if z.counted > f.LargeZone {
			return f.PartialRate
		}
		return f.SmallRate
	default:
		if !m.disruptedSince.IsZero() {
			return 0
		}
		return f.Rate
	}
}

// nextGrant is when the zone's limiter lets the next node pass; false if it lets none.
func (m *Machine) nextGrant(z *zone) (time.Time, bool) {
	interval := m.interval(z)
	if interval == 0 || !m.heldSince.IsZero() || !m.disruptedSince.IsZero() {
		return time.Time{}, false
	}
	if z.last.IsZero() {
		return m.now, true
	}
	return z.last.Add(interval), true
}

// longestInterval is that of a rate so low that it is taken for none.
const longestInterval = 365 * 24 * time.Hour

// interval is the time between two nodes that the zone's limiter lets pass; 0 if it lets none.
func (m *Machine) interval(z *zone) time.Duration {
	rate := m.rate(z)
	if rate <= 0 {
		return 0
	}
	interval := float64(time.Second) / rate
	if interval > float64(longestInterval) {
		return 0
	}
	return time.Duration(interval)
}

// waiting are the nodes that wait for a grant, longest first.
func (z *zone) waiting() []*node {
	if z.sorted == nil {
		z.sorted = slices.SortedFunc(maps.Keys(z.queue), func(a, b *node) int {
			return cmp.Or(a.queuedAt.Compare(b.queuedAt), cmp.Compare(a.Name, b.Name))
		})
	}
	return z.sorted
}

// disrupt notices that all zones are fully disrupted, or no longer. Then the
// control plane is cut off from the nodes rather than they are dead: their
// NoExecute taints go, and none is granted until that ends.
func (m *Machine) disrupt() {
	switch all := m.allDisrupted(); {
	case all && m.disruptedSince.IsZero():
		m.disruptedSince = m.now
		for _, n := range m.nodes {
			if !n.grantedAt.IsZero() {
				n.grantedAt = time.Time{}
				n.await(m.now)
			}
			m.touch(n)
		}
	case !all && !m.disruptedSince.IsZero():
		m.disruptedSince = time.Time{}
		if m.heldSince.IsZero() {
			m.amnesty()
		}
		for _, z := range m.zones {
			z.last = m.now
		}
		for _, n := range m.nodes {
			if !n.queuedAt.IsZero() {
				n.await(m.now)
				// It may still have its taint.
				m.queueForTaint(n)
			}
			m.touch(n)
		}
	}
}

// allDisrupted reports whether no counted node is known to be ready. While a
// silence is held, those silent for half the grace are not: of a cluster that was
// lost piece by piece the last piece is held, and the others must lose their taints
// all the same.
func (m *Machine) allDisrupted() bool {
	counted, ready := 0, 0
	for _, z := range m.zones {
		counted += z.counted
		ready += z.counted - z.notReady
	}
	if !m.heldSince.IsZero() {
		for n := m.heard.first; n != nil && m.now.Sub(n.heard) >= m.figures.Grace/2; n = n.next {
			if n.tally == tallyReady {
				ready--
			}
		}
	}
	return counted > 0 && ready == 0
}

// grant lets nodes have their NoExecute taint, at most as fast as their zone's rate.
func (m *Machine) grant() {
	lookedAt := m.now.Add(-min(m.now.Sub(m.lookedAt), lookEvery))
	m.lookedAt = m.now
	for name, z := range m.zones {
		if len(z.nodes) == 0 {
			if m.now.Sub(z.last) > quietZone {
				delete(m.zones, name)
			}
			continue
		}
		if len(z.queue) == 0 {
			continue
		}
		at, ok := m.nextGrant(z)
		if !ok || at.After(m.now) {
			continue
		}
		for _, n := range z.waiting() {
			z.last = m.now
			if m.interval(z) < lookEvery {
				// Several pass between two looks: each when its turn came, so that the
				// rate is kept, and none for a time in which it did not wait or none might.
				z.last = latest(at, lookedAt, n.queuedAt)
			}
			n.await(time.Time{})
			n.grantedAt = m.now
			m.touch(n)
			if at, ok = m.nextGrant(z); !ok || at.After(m.now) {
				break
			}
		}
	}
}

func latest(at time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(at) {
			at = t
		}
	}
	return at
}
