package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// maxTripNodes bounds the names that a trip shows.
const maxTripNodes = 100

// BlastTrip is a blast record with how it stands now.
type BlastTrip struct {
	BlastRecord
	// Nodes have the key; on Held of them it is held, on Rejected it was rejected.
	Nodes, Held, Rejected int
	// NodeNames are held and rejected nodes, at most maxTripNodes.
	NodeNames []string
	// HeldEvictions are due and held.
	HeldEvictions int
}

// warning says what is held, for an operator.
func (t *BlastTrip) warning(p *Policy) string {
	why := fmt.Sprintf("came to more than %d of %d nodes within %s", t.Limit, t.ClusterNodes, p.BlastRadius.Window)
	if t.ClusterNodes == 0 {
		why = "was held when the cluster's record was lost"
	}
	return fmt.Sprintf("blast radius: taint key %s %s; what falls due by it on %d nodes is held "+
		"until `reprieve blast release` or `reprieve blast reject`", t.Key, why, t.Held)
}

// BlastTrips returns the keys that are tripped or rejected, by key. Errors:
// ErrClusterUnknown, ErrUnavailable.
func (g *Engine) BlastTrips(ctx context.Context, name string) ([]BlastTrip, error) {
	var trips []BlastTrip
	err := g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		trips = cl.blastTrips("")
		return cl.countHeld(trips, done)
	})
	return trips, err
}

// blastTrips are the trips as the router knows them: of one key, or all by key. mu is held.
func (cl *cluster) blastTrips(key string) []BlastTrip {
	var trips []BlastTrip
	for _, b := range cl.rec.Blasts {
		if key != "" && key != b.Key {
			continue
		}
		t := BlastTrip{BlastRecord: b}
		if k := cl.blast.keys[b.Key]; k != nil {
			t.Nodes, t.Held, t.Rejected = k.bearers(), k.nodes[GuardHeld], k.nodes[GuardRejected]
		}
		trips = append(trips, t)
	}
	slices.SortFunc(trips, func(a, b BlastTrip) int { return cmp.Compare(a.Key, b.Key) })
	return trips
}

// countHeld fills in what takes a look at all nodes and evictions, and then
// calls done. mu is held.
func (cl *cluster) countHeld(trips []BlastTrip, done func()) error {
	for i := range trips {
		t := &trips[i]
		for name, n := range cl.nodes {
			if g := guardOf(n.guards, t.Key); g >= 0 && n.guards[g].Mark.stops() {
				t.NodeNames = append(t.NodeNames, name)
			}
		}
		slices.Sort(t.NodeNames)
		t.NodeNames = t.NodeNames[:min(len(t.NodeNames), maxTripNodes)]
	}
	counts := make([][]int, len(cl.core.shards))
	cl.core.onShards(func(s *shard) {
		counts[s.id] = make([]int, len(trips))
		if sc := s.clusters[cl.name]; sc != nil {
			s.countHeld(sc, trips, counts[s.id])
		}
	}, func() {
		for _, part := range counts {
			for i, n := range part {
				trips[i].HeldEvictions += n
			}
		}
		done()
	})
	return nil
}

func (s *shard) countHeld(sc *shardCluster, trips []BlastTrip, counts []int) {
	for e := range sc.active(s.now) {
		if e.state != StateDue || e.cause().Kind != CauseTaint {
			continue
		}
		if hold, _ := s.held(sc, e); hold != HoldBlastRadius {
			continue
		}
		for i := range trips {
			if trips[i].Key == e.cause().Taint.Key {
				counts[i]++
			}
		}
	}
}

// BlastVerdict is an operator's decision over tripped taint keys.
type BlastVerdict struct {
	Cluster string
	// Key is empty for every key that is tripped.
	Key string
	// Reject keeps the pods; otherwise they are let go.
	Reject        bool
	Actor, Reason string
	// ValidateOnly only tells.
	ValidateOnly bool
}

// DecideBlast releases or rejects tripped keys, and returns them as they stood
// before and how many evictions are concerned: those held and those that taking
// a rejection back makes due at once, or for a rejection
// all open ones by the keys that no executor has reported done. When it returns, its effect is on disk; after a
// rejection no order by the keys starts any more on the nodes that have them.
// Errors: ErrClusterUnknown, ErrBlastUnknown, ErrNotSynced, ErrUnavailable.
func (g *Engine) DecideBlast(ctx context.Context, v BlastVerdict) (trips []BlastTrip, concerned int, err error) {
	err = g.withCluster(ctx, v.Cluster, func(_ *core, cl *cluster, done func()) (err error) {
		if trips, err = cl.tripsFor(&v); err != nil {
			return err
		}
		return cl.countHeld(trips, done)
	})
	if err != nil {
		return nil, 0, err
	}
	concerned, err = g.countOnShards(ctx, v.Cluster, func(*cluster) (func(*shard, *shardCluster) int, error) {
		return func(s *shard, sc *shardCluster) int { return s.countBlast(sc, trips, v.Reject) }, nil
	})
	if err != nil || v.ValidateOnly {
		return trips, concerned, err
	}
	err = g.withCluster(ctx, v.Cluster, func(_ *core, cl *cluster, done func()) error {
		now, err := cl.tripsFor(&v)
		if err == nil {
			cl.decideBlast(now, &v, done)
		}
		return err
	})
	return trips, concerned, err
}

// tripsFor are the trips that a verdict is about. mu is held.
func (cl *cluster) tripsFor(v *BlastVerdict) ([]BlastTrip, error) {
	if cl.session == nil || !cl.session.live {
		return nil, fmt.Errorf("%w: cluster %q; nothing of it is sent meanwhile", ErrNotSynced, cl.name)
	}
	// A rejection is taken back only by the key's name.
	trips := slices.DeleteFunc(cl.blastTrips(v.Key), func(t BlastTrip) bool {
		return t.TrippedAt.IsZero() && (v.Reject || v.Key == "")
	})
	switch {
	case len(trips) > 0:
		return trips, nil
	case v.Key == "":
		return nil, fmt.Errorf("%w: cluster %q has no tripped taint key", ErrBlastUnknown, cl.name)
	}
	return nil, fmt.Errorf("%w: taint key %q of cluster %q; the list of trips has the keys", ErrBlastUnknown, v.Key, cl.name)
}

// countBlast counts what a verdict concerns.
func (s *shard) countBlast(sc *shardCluster, trips []BlastTrip, reject bool) (n int) {
	if !reject {
		return s.wouldLetGo(sc, trips) + s.wouldLeave(sc, trips)
	}
	for _, node := range sc.nodes {
		for _, p := range node.pods {
			if p.ev != nil && p.ev.state != StateConfirming && p.ev.cause().Kind == CauseTaint &&
				slices.ContainsFunc(trips, func(t BlastTrip) bool { return t.Key == p.ev.cause().Taint.Key }) {
				n++
			}
		}
	}
	return n
}

// wouldLetGo counts the due evictions that the blast radius holds, and would not
// without the trips, also those whose due instant another key gives.
func (s *shard) wouldLetGo(sc *shardCluster, trips []BlastTrip) (n int) {
	concerns := func(key string) bool {
		return slices.ContainsFunc(trips, func(t BlastTrip) bool { return t.Key == key })
	}
	for e := range sc.active(s.now) {
		if e.state != StateDue || e.cause().Kind != CauseTaint {
			continue
		}
		if hold, _ := s.held(sc, e); hold != HoldBlastRadius {
			continue
		}
		guards := judged(e.pod.node.guards, concerns, false)
		if guards == nil {
			continue
		}
		if held, _ := sc.conf.blastHoldBy(e, guards, s.now); !held {
			n++
		}
	}
	return n
}

// wouldLeave counts the pods that taking the rejections of keys back would make due at once.
func (s *shard) wouldLeave(sc *shardCluster, trips []BlastTrip) (n int) {
	concerns := func(key string) bool {
		return slices.ContainsFunc(trips, func(t BlastTrip) bool { return t.Key == key && t.Rejected > 0 })
	}
	for _, node := range sc.nodes {
		guards := judged(node.guards, concerns, false)
		if guards == nil {
			continue
		}
		for _, p := range node.pods {
			if p.ev != nil {
				continue // Held, and counted; or it leaves for something else.
			}
			d := Decide(DecideInput{NodeKnown: node.known, Taints: node.force, Guards: guards, Policy: &sc.conf.policy, Subject: p.subject()})
			if d.Verdict == VerdictLeave && !d.Due.After(s.now) {
				n++
			}
		}
	}
	return n
}

// decideBlast puts a verdict in force. mu is held.
func (cl *cluster) decideBlast(trips []BlastTrip, v *BlastVerdict, done func()) {
	now := cl.core.clock.Now()
	has := func(key string) bool {
		return slices.ContainsFunc(trips, func(t BlastTrip) bool { return t.Key == key })
	}
	records := slices.Clone(cl.rec.Blasts)
	if v.Reject {
		for i := range records {
			if b := &records[i]; has(b.Key) {
				b.TrippedAt, b.RejectedAt, b.Actor, b.Reason = time.Time{}, now, v.Actor, v.Reason
			}
		}
	} else {
		records = slices.DeleteFunc(records, func(b BlastRecord) bool { return has(b.Key) })
	}
	cl.rec.Blasts = records
	changed := map[string][]Guard{}
	for name, n := range cl.nodes {
		if next := judged(n.guards, has, v.Reject); next != nil {
			cl.setGuards(n, next)
			changed[name] = next
		}
	}
	if !v.Reject {
		for _, t := range trips {
			// The operator answers for what was let go.
			k := cl.blast.key(t.Key, now)
			k.admitted, k.order = nil, nil
		}
	}
	cl.reconfigure(reconfiguration{
		edit: func(*clusterConf) {},
		each: func(s *shard, sc *shardCluster) {
			for _, n := range s.reguard(sc, changed) {
				s.storeNode(sc, n)
				s.decideNode(sc, n)
			}
			s.regate(sc, RecallNone)
		},
		save: func(*ClusterRecord) {},
		then: done,
	})
}

// judged are a node's guards after a verdict; nil if nothing of them changes.
func judged(guards []Guard, concerns func(key string) bool, reject bool) (next []Guard) {
	for i, g := range guards {
		if !concerns(g.Key) || !reject && !g.Mark.stops() || reject && g.Mark == GuardRejected {
			continue
		}
		if next == nil {
			next = slices.Clone(guards)
		}
		next[i] = Guard{Key: g.Key}
		if reject {
			next[i].Mark = GuardRejected
		}
	}
	return next
}
