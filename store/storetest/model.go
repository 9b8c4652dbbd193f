package storetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"pgregory.net/rapid"
)

// model is what a store should have, kept in the plainest way.
type model struct {
	meta     engine.Meta
	clusters map[string]*modelCluster
}

type modelCluster struct {
	record    engine.ClusterRecord
	lastSeq   uint64
	nodes     map[string]*engine.NodeRecord
	healths   map[string]*engine.NodeHealthRecord
	reprieves map[string]*engine.ReprieveRecord
	open      map[uint64]*engine.EvictionRecord
	closed    []*engine.EvictionRecord
}

func (m *model) apply(b *engine.Batch) {
	m.meta = engine.Meta{Revision: b.Revision, ClockFloor: b.Now}
	for _, ch := range b.Changes {
		c := m.clusters[ch.Cluster]
		if c == nil && removes(ch.Kind) {
			continue
		}
		if c == nil {
			c = &modelCluster{
				record: engine.ClusterRecord{Name: ch.Cluster}, nodes: map[string]*engine.NodeRecord{}, healths: map[string]*engine.NodeHealthRecord{},
				reprieves: map[string]*engine.ReprieveRecord{}, open: map[uint64]*engine.EvictionRecord{},
			}
			m.clusters[ch.Cluster] = c
		}
		switch ch.Kind {
		case engine.ChangePutEviction:
			c.open[ch.Eviction.Seq()] = recordOf(ch.Eviction)
			c.lastSeq = max(c.lastSeq, ch.Eviction.Seq())
		case engine.ChangeCloseEviction:
			delete(c.open, ch.Eviction.Seq())
			c.closed = append(c.closed, recordOf(ch.Eviction))
			c.lastSeq = max(c.lastSeq, ch.Eviction.Seq())
			if ch.DropReprieve {
				delete(c.reprieves, ch.Eviction.UID())
			}
		case engine.ChangePutNode:
			c.nodes[ch.Node.Name] = ch.Node
		case engine.ChangeDeleteNode:
			delete(c.nodes, ch.Node.Name)
		case engine.ChangePutHealth:
			c.healths[ch.Health.Name] = ch.Health
		case engine.ChangeDeleteHealth:
			delete(c.healths, ch.Health.Name)
		case engine.ChangePutCluster:
			c.record = *ch.Record
		case engine.ChangePutReprieve:
			c.reprieves[ch.Reprieve.UID] = ch.Reprieve
		case engine.ChangeDeleteReprieve:
			delete(c.reprieves, ch.Reprieve.UID)
		case engine.ChangeForgetCluster:
			delete(m.clusters, ch.Cluster)
		}
	}
}

// removes reports whether a change of the kind cannot make a cluster known.
func removes(k engine.ChangeKind) bool {
	return slices.Contains([]engine.ChangeKind{
		engine.ChangeNotify, engine.ChangeDeleteNode, engine.ChangeDeleteHealth, engine.ChangeDeleteReprieve, engine.ChangeForgetCluster,
	}, k)
}

// prune drops what is beyond the quotas, without a limit, and counts it.
func (c *modelCluster) prune(now time.Time, q engine.HistoryQuotas) int {
	before := len(c.closed)
	for _, early := range []bool{false, true} {
		age, count := q.SentAge, q.SentCount
		if early {
			age, count = q.EarlyAge, q.EarlyCount
		}
		kept := 0
		all := c.newestFirst()
		c.closed = nil
		for _, r := range all {
			if r.Early() == early {
				if kept++; kept > count || now.Sub(r.ClosedAt) > age {
					continue
				}
			}
			c.closed = append(c.closed, r)
		}
	}
	return before - len(c.closed)
}

func (c *modelCluster) newestFirst() []*engine.EvictionRecord {
	return slices.SortedFunc(slices.Values(c.closed), func(a, b *engine.EvictionRecord) int {
		return cmp.Or(b.ClosedAt.Compare(a.ClosedAt), cmp.Compare(b.Seq, a.Seq))
	})
}

func (m *model) contents() []ClusterContents {
	var out []ClusterContents
	for _, name := range slices.Sorted(maps.Keys(m.clusters)) {
		c := m.clusters[name]
		cc := ClusterContents{LoadedCluster: engine.LoadedCluster{Record: c.record, LastSeq: c.lastSeq}}
		for _, k := range slices.Sorted(maps.Keys(c.nodes)) {
			cc.Nodes = append(cc.Nodes, c.nodes[k])
		}
		for _, k := range slices.Sorted(maps.Keys(c.healths)) {
			cc.Healths = append(cc.Healths, c.healths[k])
		}
		for _, k := range slices.Sorted(maps.Keys(c.reprieves)) {
			cc.Reprieves = append(cc.Reprieves, c.reprieves[k])
		}
		for _, k := range slices.Sorted(maps.Keys(c.open)) {
			cc.Evictions = append(cc.Evictions, c.open[k])
		}
		out = append(out, cc)
	}
	return out
}

// checkModel drives a store and the model with the same random batches,
// prunes and restarts, and compares all that can be read after each.
func checkModel(t *testing.T, factory Factory) {
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		h := newHarness(t, factory)
		defer h.store.Close()
		m := &model{clusters: map[string]*modelCluster{}}
		seq := map[string]uint64{}
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch step := rapid.IntRange(0, 9).Draw(rt, "step"); {
			case step == 0:
				h.reopen()
			case step == 1:
				modelPrune(rt, h, m, rapid.SampledFrom(names).Draw(rt, "pruned"))
			default:
				var changes []engine.Change
				for range rapid.IntRange(0, 12).Draw(rt, "changes") {
					changes = append(changes, drawChange(rt, rapid.SampledFrom(names).Draw(rt, "cluster"), seq))
				}
				b := h.batch(changes...)
				m.apply(b)
				if err := h.store.Commit(h.ctx, b); err != nil {
					rt.Fatalf("commit: %v", err)
				}
			}
			compare(rt, h, m)
		}
	})
}

func modelPrune(rt *rapid.T, h *harness, m *model, name string) {
	q := engine.HistoryQuotas{
		SentAge:    time.Duration(rapid.IntRange(0, 40).Draw(rt, "sent age")) * time.Second,
		EarlyAge:   time.Duration(rapid.IntRange(0, 40).Draw(rt, "early age")) * time.Second,
		SentCount:  rapid.IntRange(0, 8).Draw(rt, "sent count"),
		EarlyCount: rapid.IntRange(0, 8).Draw(rt, "early count"),
	}
	want := 0
	if c := m.clusters[name]; c != nil {
		want = c.prune(at(40), q)
	}
	got := 0
	for limit := rapid.IntRange(1, 10).Draw(rt, "limit"); ; {
		n, err := h.store.Prune(h.ctx, name, at(40), q, limit)
		if err != nil || n > limit {
			rt.Fatalf("pruned %d with limit %d, error %v", n, limit, err)
		}
		if got += n; n < limit {
			break
		}
	}
	if got != want {
		rt.Fatalf("pruned %d of cluster %s, want %d", got, name, want)
	}
}

// drawChange draws a change; seq has the sequences given, which also go up over a forgotten cluster.
func drawChange(rt *rapid.T, cluster string, seq map[string]uint64) engine.Change {
	name := fmt.Sprintf("x-%d", rapid.IntRange(0, 3).Draw(rt, "name"))
	known := rapid.Uint64Range(1, max(1, seq[cluster])).Draw(rt, "seq")
	switch engine.ChangeKind(rapid.IntRange(0, 11).Draw(rt, "kind")) {
	case engine.ChangePutEviction:
		if rapid.Bool().Draw(rt, "fresh") {
			seq[cluster]++
			known = seq[cluster]
		}
		r := Eviction(cluster, known)
		r.Attempts = rapid.Uint32Range(0, 9).Draw(rt, "attempts")
		return putEviction(r)
	case engine.ChangePutNode:
		r := Node(cluster, name)
		r.Taints = r.Taints[:rapid.IntRange(0, 2).Draw(rt, "taints")]
		return putNode(r)
	case engine.ChangeDeleteNode:
		return deleteNode(cluster, name)
	case engine.ChangePutHealth:
		r := Health(cluster, name)
		r.Removals = rapid.Uint32Range(0, 9).Draw(rt, "removals")
		return putHealth(r)
	case engine.ChangeDeleteHealth:
		return deleteHealth(cluster, name)
	case engine.ChangePutCluster:
		r := Cluster(cluster)
		r.PolicyVersion = rapid.Uint64Range(0, 9).Draw(rt, "version")
		return putCluster(r)
	case engine.ChangePutReprieve:
		return putReprieve(Reprieve(cluster, fmt.Sprintf("uid-%d", known)))
	case engine.ChangeDeleteReprieve:
		return deleteReprieve(cluster, fmt.Sprintf("uid-%d", known))
	case engine.ChangeForgetCluster:
		if rapid.IntRange(0, 3).Draw(rt, "forget") == 0 {
			return forget(cluster)
		}
		return engine.Change{Kind: engine.ChangeNotify, Cluster: "notified", Eviction: VersionOf(Eviction(cluster, 1))}
	default:
		seq[cluster]++
		c := closeEviction(Closed(cluster, seq[cluster], at(rapid.IntRange(0, 40).Draw(rt, "closed")), rapid.Bool().Draw(rt, "early")))
		c.DropReprieve = rapid.Bool().Draw(rt, "drop")
		return c
	}
}

func compare(rt *rapid.T, h *harness, m *model) {
	c, err := Load(h.ctx, h.store)
	if err != nil {
		rt.Fatalf("load: %v", err)
	}
	if diff := Diff(m.meta, c.Meta); diff != "" {
		rt.Fatalf("meta (-want +got):\n%s", diff)
	}
	if diff := Diff(m.contents(), c.Clusters); diff != "" {
		rt.Fatalf("load (-want +got):\n%s", diff)
	}
	for name, mc := range m.clusters {
		got, err := History(h.ctx, h.store, engine.HistoryQuery{Cluster: name, Limit: 3})
		if err != nil {
			rt.Fatalf("history: %v", err)
		}
		if diff := Diff(mc.newestFirst(), got); diff != "" {
			rt.Fatalf("history of %s (-want +got):\n%s", name, diff)
		}
	}
}
