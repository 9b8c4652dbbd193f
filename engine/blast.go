package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// GuardMark says what the blast radius makes of a taint key on a node.
type GuardMark uint8

// The marks.
const (
	// GuardClear lets the key release the node's pods.
	GuardClear GuardMark = iota
	// GuardHeld keeps back what falls due by the key.
	GuardHeld
	// GuardRejected makes the key evict nobody on the node.
	GuardRejected
	// GuardPending is undecided until the end of the list that showed the key. It is never stored.
	GuardPending
)

// stops reports whether the key does not release the node's pods.
func (m GuardMark) stops() bool { return m == GuardHeld || m == GuardRejected }

// Guard is what the blast radius remembers of a taint key on a node, for as
// long as the node has the key, whatever its value.
type Guard struct {
	Key  string
	Mark GuardMark
	// Since is when the node got the key, for a node that counts; else zero.
	Since time.Time
}

// BlastRecord is a taint key that came to more nodes than the blast radius
// allows, or that an operator rejected. It ends when no node has the key.
type BlastRecord struct {
	Key string
	// TrippedAt is zero if nothing is held by the key.
	TrippedAt time.Time
	// Limit is how many of ClusterNodes might get the key within the window.
	Limit, ClusterNodes int
	// RejectedAt, Actor and Reason are of the last rejection.
	RejectedAt    time.Time
	Actor, Reason string
}

const (
	// maxBlastWindow is the longest window that the contract allows.
	maxBlastWindow = time.Hour
	// manyBlastKeys is how many keys are counted before those whose window is over are looked for.
	manyBlastKeys = 64
)

// lifecycleKeys are set by Kubernetes with the state of a node. Nobody types
// them, and what a failing zone does with them is no mistake of a person.
// node.kubernetes.io/out-of-service is none of them: people set it.
var lifecycleKeys = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
}

// blastGuard counts a cluster's nodes that get a taint key. The router owns it,
// under cluster.mu, so that events count in the order of the feed.
type blastGuard struct {
	keys map[string]*blastKey
}

// blastKey is one key's count.
type blastKey struct {
	// nodes have the key, by mark.
	nodes [GuardPending + 1]int
	// admitted are the nodes that got it within the window and may go, with when;
	// order has the same in the order of time. A node counts once.
	admitted map[string]time.Time
	order    []admission
}

type admission struct {
	node string
	at   time.Time
}

func (k *blastKey) bearers() (n int) {
	for _, c := range k.nodes {
		n += c
	}
	return n
}

// admit counts a node.
func (k *blastKey) admit(node string, at time.Time) {
	if k.admitted == nil {
		k.admitted = map[string]time.Time{}
	}
	k.admitted[node] = at
	k.order = append(k.order, admission{node, at})
}

// expire forgets the nodes that got the key before the window.
func (k *blastKey) expire(before time.Time) {
	n := 0
	for n < len(k.order) && !k.order[n].at.After(before) {
		if a := k.order[n]; k.admitted[a.node].Equal(a.at) {
			delete(k.admitted, a.node)
		}
		n++
	}
	k.order = k.order[n:]
}

// key returns a key's count, made if need be.
func (b *blastGuard) key(key string, now time.Time) *blastKey {
	if k := b.keys[key]; k != nil {
		return k
	}
	if len(b.keys) >= manyBlastKeys {
		maps.DeleteFunc(b.keys, func(_ string, k *blastKey) bool {
			k.expire(now.Add(-maxBlastWindow))
			return k.bearers() == 0 && len(k.order) == 0
		})
	}
	if b.keys == nil {
		b.keys = map[string]*blastKey{}
	}
	k := &blastKey{}
	b.keys[key] = k
	return k
}

// limit is how many of a number of nodes may get one key within the window; 0
// means that it is not bounded.
func (p *Policy) blastLimit(nodes int) int {
	if p.DisableBlastRadius || nodes < p.BlastRadius.MinNodes {
		return 0
	}
	return max(int(p.BlastRadius.MaxNodeShare*float64(nodes)), 1)
}

// guardedKeys are the keys of a node's taints that the blast radius bounds, each once.
func guardedKeys(n *Node) (keys []string) {
	for i := range n.Taints {
		t := &n.Taints[i]
		if t.Effect == string(corev1.TaintEffectNoExecute) && !slices.Contains(lifecycleKeys, t.Key) && !slices.Contains(keys, t.Key) {
			keys = append(keys, t.Key)
		}
	}
	return keys
}

// sight takes a node that the feed shows into account and returns its guards.
// mu is held.
func (cl *cluster) sight(n *Node, at time.Time) []Guard {
	known := cl.nodes[n.Name]
	if known != nil && known.uid != n.UID {
		cl.unsight(known)
		known = nil
	}
	joins := known == nil
	if joins {
		known = &routedNode{name: n.Name, uid: n.UID}
		cl.nodes[n.Name] = known
	}
	known.gen = cl.gen
	keys := guardedKeys(n)
	if len(keys) == 0 && len(known.guards) == 0 {
		return nil
	}
	var next []Guard
	for _, key := range keys {
		if i := guardOf(known.guards, key); i >= 0 {
			next = append(next, known.guards[i])
			continue
		}
		g := Guard{Key: key, Mark: GuardPending, Since: at}
		if cl.session.live {
			g = cl.admitKey(n.Name, g, joins)
		}
		next = append(next, g)
	}
	cl.setGuards(known, next)
	return next
}

// unsight takes a node that is gone out of the count. mu is held.
func (cl *cluster) unsight(n *routedNode) { cl.setGuards(n, nil) }

// setGuards gives a node its guards and keeps the counts. mu is held.
func (cl *cluster) setGuards(n *routedNode, next []Guard) {
	for i := range n.guards {
		cl.blast.keys[n.guards[i].Key].nodes[n.guards[i].Mark]--
	}
	for i := range next {
		cl.blast.key(next[i].Key, next[i].Since).nodes[next[i].Mark]++
	}
	gone := n.guards
	n.guards = next
	for i := range gone {
		if k := cl.blast.keys[gone[i].Key]; k == nil || k.bearers() == 0 {
			cl.endBlast(gone[i].Key)
		}
	}
}

func guardOf(guards []Guard, key string) int {
	return slices.IndexFunc(guards, func(g Guard) bool { return g.Key == key })
}

// admitKey says what becomes of a key that is new on a node. A node that joins
// with the key has not got it: what runs there came knowing of it. mu is held.
func (cl *cluster) admitKey(node string, g Guard, joins bool) Guard {
	policy := &cl.conf.policy
	clear := Guard{Key: g.Key}
	switch {
	case cl.tripped(g.Key) && !policy.DisableBlastRadius:
		return Guard{Key: g.Key, Mark: GuardHeld, Since: g.Since}
	case joins, slices.Contains(policy.IgnoredTaintKeys, g.Key):
		return clear
	}
	limit := policy.blastLimit(len(cl.nodes))
	if limit == 0 {
		return clear
	}
	k := cl.blast.key(g.Key, g.Since)
	k.expire(g.Since.Add(-policy.BlastRadius.Window))
	if _, counted := k.admitted[node]; !counted && len(k.admitted) >= limit {
		cl.trip(g.Key, g.Since, limit)
		return Guard{Key: g.Key, Mark: GuardHeld, Since: g.Since}
	}
	k.admit(node, g.Since)
	return Guard{Key: g.Key, Since: g.Since}
}

func (cl *cluster) blastRecord(key string) int {
	return slices.IndexFunc(cl.rec.Blasts, func(b BlastRecord) bool { return b.Key == key })
}

func (cl *cluster) tripped(key string) bool {
	i := cl.blastRecord(key)
	return i >= 0 && !cl.rec.Blasts[i].TrippedAt.IsZero()
}

// trip begins to hold a key. mu is held.
func (cl *cluster) trip(key string, at time.Time, limit int) {
	b := BlastRecord{Key: key}
	rest := slices.Clone(cl.rec.Blasts)
	if i := cl.blastRecord(key); i >= 0 {
		b = rest[i]
		rest = slices.Delete(rest, i, i+1)
	}
	b.TrippedAt, b.Limit, b.ClusterNodes = at, limit, len(cl.nodes)
	cl.rec.Blasts = append(rest, b)
	log, window := cl.core.opts.Logger, cl.conf.policy.BlastRadius.Window
	cl.core.commit(func() {
		log.Warn("blast radius tripped: a taint key came to too many nodes; evictions by it are held on the rest",
			"cluster", cl.name, "key", key, "limit", b.Limit, "nodes", b.ClusterNodes, "window", window)
	}, cl.record())
}

// endBlast forgets a key that no node has any more. mu is held.
func (cl *cluster) endBlast(key string) {
	i := cl.blastRecord(key)
	if i < 0 {
		return
	}
	cl.rec.Blasts = slices.Delete(slices.Clone(cl.rec.Blasts), i, i+1)
	cl.core.commit(nil, cl.record())
}

// settleGuards decides over the keys that a list showed as new, when the list
// has ended and the number of nodes is known. It returns the guards of all nodes
// concerned. The first list ever shows nothing new. mu is held.
func (cl *cluster) settleGuards(first bool) map[string][]Guard {
	pending := func(n *routedNode) bool {
		return slices.ContainsFunc(n.guards, func(g Guard) bool { return g.Mark == GuardPending })
	}
	settled := map[string][]Guard{}
	for name, n := range cl.nodes {
		if pending(n) {
			settled[name] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(settled)) {
		n := cl.nodes[name]
		next := slices.Clone(n.guards)
		for i, g := range next {
			if g.Mark == GuardPending {
				next[i] = cl.admitKey(name, g, first)
			}
		}
		cl.setGuards(n, next)
		settled[name] = next
	}
	for _, b := range cl.rec.Blasts {
		if k := cl.blast.keys[b.Key]; k == nil || k.bearers() == 0 {
			// It went together with the process, or a moment before.
			cl.endBlast(b.Key)
		}
	}
	return settled
}

// loadGuards takes a node's guards from the store. Nothing runs yet.
func (cl *cluster) loadGuards(name string, n *routedNode, guards []Guard, now time.Time) {
	cl.setGuards(n, guards)
	for _, g := range guards {
		k := cl.blast.keys[g.Key]
		switch {
		case g.Mark == GuardHeld && !cl.tripped(g.Key):
			// The cluster's record was damaged, or is ahead of the node's: it held a
			// verdict that had not reached all nodes when the process ended.
			if i := cl.blastRecord(g.Key); i >= 0 {
				cl.rec.Blasts[i].TrippedAt = g.Since
			} else {
				cl.rec.Blasts = append(cl.rec.Blasts, BlastRecord{Key: g.Key, TrippedAt: g.Since})
			}
		case g.Mark == GuardClear && g.Since.After(now.Add(-maxBlastWindow)):
			k.admit(name, g.Since)
		}
	}
}

// sortAdmitted brings what was loaded into the order of time.
func (b *blastGuard) sortAdmitted() {
	for _, k := range b.keys {
		slices.SortFunc(k.order, func(x, y admission) int { return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.node, y.node)) })
	}
}

// has reports whether a node's key has a mark.
func (n *nodeState) has(key string, mark GuardMark) bool { return marked(n.guards, key, mark) }

func marked(guards []Guard, key string, mark GuardMark) bool {
	i := guardOf(guards, key)
	return i >= 0 && guards[i].Mark == mark
}

// blastHold reports whether the blast radius holds a due eviction, and until
// when: something else may make the pod leave later.
func (c *clusterConf) blastHold(e *eviction, now time.Time) (held bool, until time.Time) {
	return c.blastHoldBy(e, e.pod.node.guards, now)
}

// blastHoldBy is blastHold as it were if the node had these guards.
func (c *clusterConf) blastHoldBy(e *eviction, guards []Guard, now time.Time) (held bool, until time.Time) {
	n := e.pod.node
	if len(guards) == 0 || c.policy.DisableBlastRadius || e.cause().Kind != CauseTaint || !marked(guards, e.cause().Taint.Key, GuardHeld) {
		return false, time.Time{}
	}
	d := Decide(DecideInput{NodeKnown: n.known, Taints: n.force, Guards: guards, Policy: &c.policy, Subject: e.pod.subject()})
	consider := func(due time.Time) {
		if until.IsZero() || due.Before(until) {
			until = due
		}
	}
	for i := range d.Steps {
		if st := &d.Steps[i]; !st.Ignored && !st.Forever && !marked(guards, st.Taint.Key, GuardHeld) {
			consider(st.Due)
		}
	}
	for i, requests := 0, e.requests(); i < len(requests); i++ {
		consider(requestDue(&requests[i]))
	}
	return until.IsZero() || until.After(now), until
}

// reguard gives a shard's nodes new guards and returns the nodes, by name.
func (s *shard) reguard(sc *shardCluster, guards map[string][]Guard) (nodes []*node) {
	for name, g := range guards {
		if n := sc.nodes[name]; n != nil {
			n.guards = g
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	return nodes
}
