package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine/health"
)

// askHealth runs f in the goroutine of a cluster's owner of node health and waits
// for it; without node health it does nothing.
func (c *core) askHealth(ctx context.Context, cl *cluster, f func(*healthOwner)) error {
	done := make(chan struct{})
	cl.mu.Lock()
	h := cl.health
	if h != nil {
		h.inbox.put(healthMsg{task: f, done: func() { close(done) }})
	}
	cl.mu.Unlock()
	if h == nil {
		return nil
	}
	return c.await(ctx, done)
}

// healthStatus is what node health knows of a cluster, and of the nodes for which
// want says so; nil without node health.
func (c *core) healthStatus(ctx context.Context, cl *cluster, want func(string) bool) (st *ClusterHealth, nodes map[string]*NodeHealthStatus, err error) {
	var out ClusterHealth
	views, asked := map[string]*NodeHealthStatus{}, false
	err = c.askHealth(ctx, cl, func(h *healthOwner) {
		asked = true
		out = h.clusterStatus()
		for _, name := range h.machine.Names() {
			if want(name) {
				views[name] = h.nodeStatus(name)
			}
		}
	})
	// After an error the owner may yet write.
	if err != nil || !asked {
		return nil, nil, err
	}
	return &out, views, nil
}

func (h *healthOwner) clusterStatus() ClusterHealth {
	st := ClusterHealth{Mode: h.conf.policy.NodeHealth, ClusterView: h.machine.ClusterView()}
	if h.now.Sub(st.OtherAt) >= otherFresh {
		st.Other, st.OtherAt = "", time.Time{}
	}
	st.NotReady, st.Unknown = h.machine.Bad()
	for _, n := range h.nodes {
		if n.attempts >= stuckAttempts {
			st.Stuck++
		}
	}
	return st
}

func (h *healthOwner) nodeStatus(name string) *NodeHealthStatus {
	v, ok := h.machine.View(name)
	if !ok {
		return nil
	}
	st := &NodeHealthStatus{NodeView: v}
	n := h.nodes[name]
	if n == nil {
		n = &healthNode{name: name}
	}
	st.Delivery, st.Attempts, st.LastOutcome, st.LastMessage = n.delivery, n.attempts, n.lastOutcome, n.lastMessage
	if _, wanted := h.machine.Want(name); wanted || n.delivery != nil {
		st.Hold, st.Until = h.hold(n)
	}
	return st
}

// news reports whether the node is not well, or something of it is to change.
func (st *NodeHealthStatus) news() bool {
	return st.Silent || st.Ready != health.StatusTrue || st.PodsPending || st.Delivery != nil ||
		slices.ContainsFunc(st.Taints, func(t health.TaintView) bool { return t.Change != health.ChangeNone })
}

// warnings say what an operator should know of a cluster's node health.
func (st *ClusterHealth) warnings() (w []string) {
	add := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	if !st.BlindSince.IsZero() {
		add("node health is blind since %s: the feed is not live or tells of no leases; no node is found silent", day(st.BlindSince))
	}
	if !st.HeldSince.IsZero() {
		add("%d nodes, nearly all that were heard, are silent since shortly before %s: that is taken for the control plane's trouble, "+
			"so no node becomes Unknown; see \"Nearly all nodes are silent\" in docs/operations.md", st.Silent, day(st.HeldSince))
	}
	if !st.StaleSince.IsZero() {
		add("the feed of leases is behind since %s, by a live read of executor %q: no node becomes Unknown until it has caught up, for a grace at most", day(st.StaleSince), st.StaleBy)
	}
	if !st.DoubtedSince.IsZero() {
		add("a heartbeat that executor %q said it had read had not come by %s, a grace later: until one comes, the answer STALE "+
			"counts for its own node alone; does that executor see an old state, or the feed?", st.StaleBy, day(st.DoubtedSince))
	}
	if !st.DisruptedSince.IsZero() {
		add("all zones are fully disrupted since %s: no node has a NoExecute taint for its health", day(st.DisruptedSince))
	}
	if st.Other != "" && st.Mode == NodeHealthEnforce {
		add("another controller works on the nodes' health: %s; two writers of the same taints", st.Other)
	}
	if st.Stuck > 0 {
		add("orders for %d nodes have failed %d times or more in a row", st.Stuck, stuckAttempts)
	}
	return w
}

// otherFresh is how long the sight of another controller counts.
const otherFresh = 24 * time.Hour

func day(t time.Time) string { return t.Format(time.RFC3339) }

// checkHealth refuses node health ENFORCE, and to begin acting on it, where another
// controller was seen at work within otherFresh. mu is held.
func (cl *cluster) checkHealth(next *Policy) error {
	seen, now := &cl.rec.Health, &cl.conf.policy
	set := next.NodeHealth == NodeHealthEnforce && now.NodeHealth != NodeHealthEnforce
	if begins := next.actsOnHealth() && !now.actsOnHealth(); !set && !begins {
		return nil
	}
	other := cl.last.NodeLifecycle
	if other == "" && seen.Other != "" && cl.core.clock.Now().Sub(seen.OtherAt) < otherFresh {
		other = fmt.Sprintf("%s at %s", seen.Other, day(seen.OtherAt))
	}
	if other == "" {
		return nil
	}
	return fmt.Errorf("%w: cluster %q: %s; switch it off (--controllers=*,-node-lifecycle-controller), or force this if it is off already", ErrOtherController, cl.name, other)
}

// ExplainNode returns all that is known of a node. Errors: ErrClusterUnknown,
// ErrNodeUnknown, ErrUnavailable.
func (g *Engine) ExplainNode(ctx context.Context, name, node string) (*NodeExplanation, error) {
	c, cl, err := g.find(name)
	if err != nil {
		return nil, err
	}
	var st *NodeStatus
	err = c.ask(ctx, c.shardOf(name, node), func(s *shard) {
		if sc := s.clusters[name]; sc != nil && sc.nodes[node] != nil {
			found := sc.nodes[node].status()
			st = &found
		}
	})
	if err != nil {
		return nil, err
	}
	if st == nil || node == "" {
		return nil, fmt.Errorf("%w: %q in cluster %q", ErrNodeUnknown, node, name)
	}
	status, err := g.Cluster(ctx, name)
	if err != nil {
		return nil, err
	}
	x := &NodeExplanation{
		Node: *st, Now: c.clock.Now(), Mode: status.Policy.Mode, Sync: status.Sync, Cluster: status.Health, Warnings: status.Warnings,
	}
	_, views, err := c.healthStatus(ctx, cl, func(n string) bool { return n == node })
	if err != nil {
		return nil, err
	}
	if v := views[node]; v != nil {
		x.Node.Health, x.Change = v, v.Changes
	}
	return x, nil
}
