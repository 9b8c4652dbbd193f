package engine

import (
	"context"
	"fmt"
	"time"
	"unique"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

// load fills a core that has not started from its store.
func (c *core) load(ctx context.Context) error {
	l := &loader{core: c}
	if err := c.store.Load(ctx, l); err != nil {
		return err
	}
	for _, cl := range c.clusters {
		cl.blast.sortAdmitted()
		if err := c.loadShadow(ctx, cl); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.Reload)
	return nil
}

// loader puts what the store has where it belongs. Nothing runs yet.
type loader struct {
	core *core
	cl   *cluster
}

func (l *loader) Meta(m Meta) error {
	l.core.committer.revision = m.Revision
	if f, ok := l.core.clock.(interface{ Floor(t time.Time) }); ok {
		f.Floor(m.ClockFloor)
	}
	return nil
}

func (l *loader) Cluster(lc LoadedCluster) error {
	l.cl = l.core.addCluster(lc)
	l.core.committer.queue(l.cl.name).lastSeq = lc.LastSeq
	for _, s := range l.core.shards {
		s.clusters[l.cl.name] = newShardCluster(l.cl, l.cl.conf)
	}
	return nil
}

func (l *loader) Node(r *NodeRecord) error {
	s := l.core.shardOf(l.cl.name, r.Name)
	n := s.clusters[l.cl.name].nodeNamed(r.Name)
	n.known = true
	n.nodeState = nodeState{uid: r.UID, taints: r.Taints, episodeStart: r.EpisodeStart, guards: r.Guards}
	stored := n.nodeState
	n.stored = &stored
	n.force = n.inForce()
	routed := &routedNode{name: r.Name, uid: r.UID}
	l.cl.nodes[r.Name] = routed
	l.cl.loadGuards(r.Name, routed, r.Guards, l.core.clock.Now())
	return nil
}

func (l *loader) Health(r *NodeHealthRecord) error {
	if h := l.cl.health; h != nil {
		h.restore(r)
	} else {
		l.cl.strayHealth = append(l.cl.strayHealth, r.Name)
	}
	return nil
}

func (l *loader) Reprieve(r *ReprieveRecord) error {
	l.cl.conf.reprieves[r.UID] = r
	return nil
}

func (l *loader) Eviction(r *EvictionRecord) error {
	cl := l.cl
	if p := cl.pods.byUID(r.UID); p != nil {
		// I5: the store never has two. If it does, the first counts.
		l.Damaged(fmt.Sprintf("clusters/%s/evictions/%d", cl.name, r.Seq), fmt.Errorf("second open eviction of UID %s", r.UID))
		return nil
	}
	s := l.core.shardOf(cl.name, r.Node)
	sc := s.clusters[cl.name]
	p := &pod{
		namespace: unique.Make(r.Namespace), name: r.Pod, uid: r.UID,
		home: unique.Make(home{node: r.Node, shard: s}), boundAt: instantOf(r.BoundAt),
	}
	n := sc.nodeNamed(p.nodeName())
	if !n.known && r.NodeUID != "" {
		// Without a record it had no taint; its UID tells it from a later node of the name (D15).
		n.known, n.uid = true, r.NodeUID
		cl.nodes[r.Node] = &routedNode{name: r.Node, uid: r.NodeUID}
	}
	n.add(p)
	sc.pods++
	cl.pods.add(p)
	e := s.newEviction(p, n.share(r.Due, &r.Cause))
	e.restore(r)
	p.ev = e
	sc.count(e, 1)
	if len(r.Requests) > 0 {
		sc.requested[e] = struct{}{}
	}
	s.reindex(sc, e)
	sc.bySeq.add(e)
	if d := e.delivery(); d != nil {
		l.core.deliveries.add(d.Token, deliveryRef{shard: s, ev: e, cluster: cl.name})
	}
	s.arm(sc, e)
	return nil
}

func (l *loader) Damaged(where string, err error) {
	l.core.observer.Damaged(where)
	l.core.opts.Logger.Error("record set aside", "where", where, "error", err)
}

// loadShadow remembers what shadow mode has said of pods, so that a restart
// does not say it again.
func (c *core) loadShadow(ctx context.Context, cl *cluster) error {
	if cl.conf.policy.Mode != ModeShadow {
		return nil
	}
	q := HistoryQuery{Cluster: cl.name, Reasons: []CloseReason{CloseWouldEvict}, Limit: 1000}
	said := map[string]wouldEvict{}
	for _, s := range c.shards {
		s.clusters[cl.name].saidBefore = said
	}
	for {
		page, err := c.store.History(ctx, q)
		if err != nil {
			return fmt.Errorf("read shadow history of cluster %q: %w", cl.name, err)
		}
		for _, r := range page.Evictions {
			if _, later := said[r.UID]; !later {
				said[r.UID] = wouldEvict{due: instantOf(r.Due), cause: causeKey(&r.Cause)}
			}
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return nil
		}
	}
}
