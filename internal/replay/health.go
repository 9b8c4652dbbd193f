package replay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
)

const (
	// leasesEvery is how often a feed tells of leases, also of none that was renewed.
	leasesEvery = 2 * time.Second
	// quietAfter nothing has happened for so long, a replay without an end is over.
	quietAfter = 15 * time.Minute
)

// HealthEvent is something that happened to a node, or to the node health of a
// cluster. Of a node the event's kind is
//
//   - ready, not-ready or unknown: condition Ready is taken so from now on;
//   - tainted or untainted: the node got or lost Taint; while node health only
//     observes, it would have;
//   - pods-not-ready: the executor has marked the node's pods so;
//   - waits: it is to have Taint, a NoExecute one, and Reason says what keeps that back;
//     again when the reason is another. Only with Driver.TellWaits.
//
// Of a cluster, with Node empty, it is blind, silence-hold, stale or all-disrupted,
// and the same with -over when that ends.
type HealthEvent struct {
	Cluster, Node string
	// Taint is KEY:EFFECT.
	Taint string
	// Reason is for people.
	Reason string
}

// healthSeen is what was last told of a cluster's node health.
type healthSeen struct {
	nodes map[string]nodeSeen
	// states are the cluster's kinds of event that stand.
	states map[string]bool
	// acts: node health acted, so that taints are those that are there.
	acts bool
}

type nodeSeen struct {
	ready  health.Status
	taints health.TaintSet
	// reasons are why it has its taints, or is to lose one.
	reasons map[health.Taint]string
	// waits is what was last told of why it does not have its NoExecute taint.
	waits string
}

// shown is an object as a feed last showed it; serial orders objects by when they first came.
type shown struct {
	engine.Event
	serial int
}

// key is under what an object is kept.
func key(ev *engine.Event) string {
	switch {
	case ev.Node != nil:
		return "node/" + ev.Node.Name
	case ev.Pod != nil:
		return "pod/" + ev.Pod.Namespace + "/" + ev.Pod.Name
	}
	return ""
}

// keep remembers an object as the feed shows it, for another list.
func (f *feed) keep(ev engine.Event) {
	k := key(&ev)
	switch {
	case k == "":
	case ev.Type == engine.EventDelete:
		delete(f.objects, k)
	default:
		if f.objects == nil {
			f.objects = map[string]shown{}
		}
		o, known := f.objects[k]
		if !known {
			f.serial++
			o.serial = f.serial
		}
		o.Event = ev
		f.objects[k] = o
	}
}

// list is all that the feed shows.
func (f *feed) list() []engine.Event {
	all := slices.SortedFunc(maps.Values(f.objects), func(a, b shown) int { return cmp.Compare(a.serial, b.serial) })
	events := make([]engine.Event, len(all))
	for i := range all {
		events[i] = all[i].Event
	}
	return events
}

// setHealth notes whether the service watches the health of a feed's nodes.
func (d *Driver) setHealth(f *feed, mode engine.NodeHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f.health = mode
}

// watches reports whether the service watches the health of a feed's nodes.
func (d *Driver) watches(f *feed) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f.health == engine.NodeHealthObserve || f.health == engine.NodeHealthEnforce
}

// relist lists anew where the service has asked for it, and reports whether it has.
func (d *Driver) relist(ctx context.Context) (any bool, err error) {
	for _, name := range slices.Sorted(maps.Keys(d.feeds)) {
		f := d.feeds[name]
		d.mu.Lock()
		asked := f.relist
		f.relist = false
		d.mu.Unlock()
		if !asked || f.session == nil {
			continue
		}
		whole := f.synced
		if err := d.open(ctx, name, f); err != nil {
			return any, err
		}
		f.sequence++
		if err := f.session.Batch(ctx, f.sequence, f.list()); err != nil {
			return any, fmt.Errorf("cluster %s: %w", name, err)
		}
		any = true
		if !whole {
			continue // The timeline says when the list ends.
		}
		f.sequence++
		f.synced = true
		if err := f.session.SyncEnd(ctx, f.sequence); err != nil {
			return any, fmt.Errorf("cluster %s: %w", name, err)
		}
		f.tickAt = d.clock.Now()
		if err := d.tellOfLeases(ctx); err != nil {
			return any, err
		}
	}
	return any, nil
}

// next is the next instant at which something happens by itself.
func (d *Driver) next() (time.Time, bool) {
	next, ok := d.clock.Next()
	for _, f := range d.feeds {
		if at, ticks := d.nextTick(f); ticks && (!ok || at.Before(next)) {
			next, ok = at, true
		}
	}
	return next, ok
}

func (d *Driver) nextTick(f *feed) (time.Time, bool) {
	if f.session == nil || !f.synced || !d.watches(f) || f.tickAt.After(d.start.Add(d.LeasesUntil)) {
		return time.Time{}, false
	}
	return f.tickAt, true
}

// tellOfLeases tells, where it is time, that leases are seen.
func (d *Driver) tellOfLeases(ctx context.Context) error {
	now := d.clock.Now()
	for _, name := range slices.Sorted(maps.Keys(d.feeds)) {
		f := d.feeds[name]
		if at, ticks := d.nextTick(f); !ticks || at.After(now) {
			continue
		}
		f.tickAt = now.Add(leasesEvery)
		f.sequence++
		if err := f.session.Batch(ctx, f.sequence, []engine.Event{{Type: engine.EventUpsert, Leases: &engine.LeaseRenewals{}}}); err != nil {
			return fmt.Errorf("cluster %s: %w", name, err)
		}
	}
	return nil
}

// over reports whether a replay without an end has come to it.
func (d *Driver) over() bool {
	if d.Now() < d.lastNews+quietAfter {
		return false
	}
	watched := false
	for _, f := range d.feeds {
		watched = watched || d.watches(f)
	}
	for _, r := range d.seen {
		if r.State == engine.StateWaiting {
			return false
		}
	}
	return watched
}

// SetNodeOutcome sets the executor's answer to orders for a node from now on.
func (d *Driver) SetNodeOutcome(cluster, node string, o engine.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodeOutcomes[nodeKey{cluster, node}] = o
}

// nodeOrder takes an order for a node and answers it at once.
func (d *Driver) nodeOrder(o engine.Order) {
	d.mu.Lock()
	outcome, ok := d.nodeOutcomes[nodeKey{o.Node.Cluster, o.Node.Name}]
	if !ok {
		outcome = engine.OutcomeApplied
	}
	if outcome == engine.OutcomeApplied {
		d.nodeTaken = append(d.nodeTaken, o.Node)
	}
	d.mu.Unlock()
	if outcome != engine.OutcomeNoAnswer {
		d.executor.Result(engine.Result{Token: o.Token, Outcome: outcome}, func(bool) {})
	}
}

// carryOut changes the virtual cluster's node as an order says.
func (d *Driver) carryOut(ctx context.Context, o *engine.NodeOrder) error {
	f := d.feeds[o.Cluster]
	if f == nil {
		return nil
	}
	ev, ok := f.objects["node/"+o.Name]
	if !ok || ev.Node.Health == nil || ev.Node.UID != o.UID {
		return nil
	}
	node, h := *ev.Node, *ev.Node.Health
	if o.MarkPods {
		d.happened(Event{At: d.Now(), Kind: "pods-not-ready", Health: &HealthEvent{Cluster: o.Cluster, Node: o.Name, Reason: o.Reason}})
	}
	if o.Unknown {
		h.ReadyReason, h.Transition = "NodeStatusUnknown", d.clock.Now()
		if h.Conditions[health.CondReady] == health.StatusNone {
			h.ReadyReason = "NodeStatusNeverUpdated"
		}
		for c := health.CondReady; c < health.CondNetworkUnavailable; c++ {
			h.Conditions[c] = health.StatusUnknown
		}
	}
	node.Taints = slices.DeleteFunc(slices.Clone(node.Taints), func(t engine.ObservedTaint) bool {
		own, is := health.TaintOf(t.Key, t.Effect)
		return is && o.Remove.Has(own)
	})
	for _, t := range (o.Add &^ h.Taints).List() {
		node.Taints = append(node.Taints, engine.ObservedTaint{Key: t.Key(), Effect: t.Effect(), TimeAdded: d.clock.Now()})
	}
	h.Taints = h.Taints&^o.Remove | o.Add
	node.Health = &h
	return d.show(ctx, o.Cluster, engine.Event{Type: engine.EventUpsert, Node: &node})
}

// reportHealth tells of what has changed in the health of nodes.
func (d *Driver) reportHealth(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(d.feeds)) {
		f := d.feeds[name]
		if !d.watches(f) {
			continue
		}
		st, err := d.eng.Cluster(ctx, name)
		if err != nil {
			return err
		}
		if st.Health == nil {
			continue
		}
		seen := d.seenHealth[name]
		if seen == nil {
			// A feed begins blind: that is no news.
			seen = &healthSeen{nodes: map[string]nodeSeen{}, states: map[string]bool{"blind": true}}
			d.seenHealth[name] = seen
		}
		d.tellCluster(name, seen, &st.Health.ClusterView)
		nodes, err := d.eng.Nodes(ctx, name, true)
		if err != nil {
			return err
		}
		acts := st.Health.Mode == engine.NodeHealthEnforce && st.Policy.Mode == engine.ModeEnforce
		for i := range nodes {
			d.tellNode(name, seen, &nodes[i], acts)
		}
		seen.acts = acts
	}
	return nil
}

func (d *Driver) tellCluster(name string, seen *healthSeen, v *health.ClusterView) {
	for _, s := range []struct {
		kind   string
		since  time.Time
		reason string
	}{
		{"blind", v.BlindSince, "nothing is known of heartbeats"},
		{"silence-hold", v.HeldSince, fmt.Sprintf("%d nodes fell silent at once: the control plane's trouble", v.Silent)},
		{"stale", v.StaleSince, "the leases are behind the live ones"},
		{"all-disrupted", v.DisruptedSince, "no zone has a ready node"},
	} {
		if is := !s.since.IsZero(); is != seen.states[s.kind] {
			seen.states[s.kind] = is
			ev := Event{At: d.Now(), Kind: s.kind, Health: &HealthEvent{Cluster: name, Reason: s.reason}}
			if !is {
				ev.Kind, ev.Health.Reason = s.kind+"-over", ""
			}
			d.happened(ev)
		}
	}
}

func (d *Driver) tellNode(cluster string, seen *healthSeen, n *engine.NodeStatus, acts bool) {
	if n.Health == nil {
		return
	}
	was, known := seen.nodes[n.Name]
	now := nodeSeen{ready: n.Health.Ready, reasons: map[health.Taint]string{}}
	// A hold takes nothing away that would have been there before it.
	kept := func(t health.TaintView) bool {
		return was.taints.Has(t.Taint) && t.Hold != health.HoldRate && !seen.states["all-disrupted"]
	}
	for _, t := range n.Health.Taints {
		now.reasons[t.Taint] = t.Reason
		has := t.Present
		if !acts {
			has = t.Present && t.Change != health.ChangeRemove || t.Change == health.ChangeAdd && (t.Hold == health.HoldNone || kept(t))
		}
		if has {
			now.taints |= health.Set(t.Taint)
		}
	}
	var lacks health.Taint
	if d.TellWaits {
		lacks, now.waits = waitsFor(n.Health, seen.states["silence-hold"])
	}
	seen.nodes[n.Name] = now
	tell := func(kind string, taint string, reason string) {
		d.happened(Event{At: d.Now(), Kind: kind, Health: &HealthEvent{Cluster: cluster, Node: n.Name, Taint: taint, Reason: reason}})
	}
	if kind := readyKind(now.ready); kind != "" && now.ready != was.ready && (known || now.ready != health.StatusTrue) {
		tell(kind, "", n.Health.Reason)
	}
	if !known || acts != seen.acts {
		return // What it has when it is first seen, or seen in another way, is no news.
	}
	for _, t := range (now.taints &^ was.taints).List() {
		tell("tainted", t.String(), now.reasons[t])
	}
	for _, t := range (was.taints &^ now.taints).List() {
		tell("untainted", t.String(), cmp.Or(now.reasons[t], was.reasons[t]))
	}
	if now.waits != "" && now.waits != was.waits {
		tell("waits", lacks.String(), now.waits)
	}
}

// waitsFor is the NoExecute taint that a node does not have, and what keeps it back,
// in the words of an explanation; no words if nothing does. held: a silence of nearly
// all is, so that a node that sends nothing is not known to be silent.
func waitsFor(h *engine.NodeHealthStatus, held bool) (health.Taint, string) {
	for _, t := range h.Taints {
		noExecute := t.Taint == health.NotReadyNoExecute || t.Taint == health.UnreachableNoExecute
		if noExecute && t.Change == health.ChangeAdd && (t.Hold == health.HoldRate || t.Hold == health.HoldDisruption) {
			return t.Taint, t.Reason
		}
	}
	if held && !h.Silent && h.Ready == health.StatusTrue && len(h.Changes) > 0 {
		return health.UnreachableNoExecute, h.Changes[0]
	}
	return 0, ""
}

func readyKind(s health.Status) string {
	switch s {
	case health.StatusTrue:
		return "ready"
	case health.StatusFalse:
		return "not-ready"
	case health.StatusUnknown:
		return "unknown"
	}
	return ""
}
