package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
)

var loadCases = []suiteCase{
	{"empty store", func(h *harness) {
		if diff := Diff(&Contents{}, h.load()); diff != "" {
			h.Errorf("(-want +got):\n%s", diff)
		}
		h.wantHistory(engine.HistoryQuery{})
	}},
	{"every kind of record comes back", everyRecord},
	{"records with nothing set come back", emptyRecords},
	{"load is in order", loadOrder},
	{"an error of the visitor ends the load", visitorErrors},
	{"a cancelled load ends", func(h *harness) {
		h.commit(putNode(Node("a", "n")))
		ctx, cancel := context.WithCancel(h.ctx)
		cancel()
		if _, err := Load(ctx, h.store); !errors.Is(err, context.Canceled) {
			h.Errorf("load with a cancelled context: %v", err)
		}
		h.load()
	}},
	{"a cluster without its record is an empty one", func(h *harness) {
		h.commit(putNode(Node("a", "n")), putReprieve(Reprieve("b", "u")))
		h.wantLoad(
			ClusterContents{LoadedCluster: named("a"), Nodes: []*engine.NodeRecord{Node("a", "n")}},
			ClusterContents{LoadedCluster: named("b"), Reprieves: []*engine.ReprieveRecord{Reprieve("b", "u")}},
		)
	}},
	{"meta follows the last commit", func(h *harness) {
		h.commit(putNode(Node("a", "n")))
		h.commit(engine.Change{Kind: engine.ChangeNotify, Cluster: "a", Eviction: VersionOf(Eviction("a", 1))})
		for range 2 {
			if diff := Diff(engine.Meta{Revision: 2, ClockFloor: at(2)}, h.load().Meta); diff != "" {
				h.Errorf("meta (-want +got):\n%s", diff)
			}
			h.reopen()
		}
	}},
	{"what a load gave may be changed by its taker", func(h *harness) {
		h.commit(putCluster(Cluster("a")), putEviction(Eviction("a", 1)), putNode(Node("a", "n")))
		c := h.load().Clusters[0]
		c.Evictions[0].Requests[0].ID = "changed"
		*c.Evictions[0].Cause.Toleration.TolerationSeconds = 1
		c.Evictions[0].Delivery.Token = "changed"
		c.Nodes[0].Taints[0].Key = "changed"
		c.Record.Pauses[0].ID = "changed"
		c.Record.Policy.IgnoredTaintKeys[0] = "changed"
		h.wantLoad(ClusterContents{
			LoadedCluster: engine.LoadedCluster{Record: *Cluster("a"), LastSeq: 1},
			Nodes:         []*engine.NodeRecord{Node("a", "n")}, Evictions: []*engine.EvictionRecord{Eviction("a", 1)},
		})
	}},
}

func named(name string) engine.LoadedCluster {
	return engine.LoadedCluster{Record: engine.ClusterRecord{Name: name}}
}

func everyRecord(h *harness) {
	h.commit(
		putCluster(Cluster("a")), putNode(Node("a", "n")), putReprieve(Reprieve("a", "u")),
		putEviction(Eviction("a", 1)), closeEviction(Closed("a", 2, at(5), false)),
	)
	h.wantLoad(ClusterContents{
		LoadedCluster: engine.LoadedCluster{Record: *Cluster("a"), LastSeq: 2},
		Nodes:         []*engine.NodeRecord{Node("a", "n")}, Reprieves: []*engine.ReprieveRecord{Reprieve("a", "u")},
		Evictions: []*engine.EvictionRecord{Eviction("a", 1)},
	})
	want := []*engine.EvictionRecord{Closed("a", 2, at(5), false)}
	if diff := Diff(want, h.history(engine.HistoryQuery{Cluster: "a", Limit: 10})); diff != "" {
		h.Errorf("history (-want +got):\n%s", diff)
	}
	if size, free := h.store.Size(), h.store.Free(); free < 0 || free > size {
		h.Errorf("size is %d, of which %d are free", size, free)
	}
}

func emptyRecords(h *harness) {
	cluster := &engine.ClusterRecord{Name: "a"}
	node := &engine.NodeRecord{Cluster: "a", Name: "n"}
	nodeHealth := &engine.NodeHealthRecord{Cluster: "a", Record: health.Record{Name: "n"}}
	reprieve := &engine.ReprieveRecord{Cluster: "a", UID: "u"}
	eviction := &engine.EvictionRecord{Cluster: "a", Seq: 1, UID: "u", Due: time.Unix(0, 0).UTC()}
	closed := &engine.EvictionRecord{Cluster: "a", Seq: 2, UID: "u"}
	h.commit(putCluster(cluster), putNode(node), putHealth(nodeHealth), putReprieve(reprieve), putEviction(eviction), closeEviction(closed))
	h.wantLoad(ClusterContents{
		LoadedCluster: engine.LoadedCluster{Record: *cluster, LastSeq: 2}, Nodes: []*engine.NodeRecord{node},
		Healths: []*engine.NodeHealthRecord{nodeHealth}, Reprieves: []*engine.ReprieveRecord{reprieve}, Evictions: []*engine.EvictionRecord{eviction},
	})
	if diff := Diff([]*engine.EvictionRecord{closed}, h.history(engine.HistoryQuery{Cluster: "a", Limit: 10})); diff != "" {
		h.Errorf("history (-want +got):\n%s", diff)
	}
}

func loadOrder(h *harness) {
	var want []ClusterContents
	for _, name := range []string{"a", "a-b", "b"} {
		want = append(want, ClusterContents{
			LoadedCluster: engine.LoadedCluster{Record: *Cluster(name), LastSeq: 70000},
			Nodes:         []*engine.NodeRecord{Node(name, "n-1"), Node(name, "n-10"), Node(name, "n-2")},
			Healths:       []*engine.NodeHealthRecord{Health(name, "n-1"), Health(name, "n-3")},
			Reprieves:     []*engine.ReprieveRecord{Reprieve(name, "u-1"), Reprieve(name, "u-2")},
			Evictions:     []*engine.EvictionRecord{Eviction(name, 1), Eviction(name, 2), Eviction(name, 10), Eviction(name, 256), Eviction(name, 70000)},
		})
	}
	for i := len(want) - 1; i >= 0; i-- {
		c := &want[i]
		h.commit(
			putEviction(c.Evictions[4]), putReprieve(c.Reprieves[1]), putNode(c.Nodes[2]), putEviction(c.Evictions[2]),
			putEviction(c.Evictions[0]), putNode(c.Nodes[0]), putReprieve(c.Reprieves[0]), putNode(c.Nodes[1]),
			putHealth(c.Healths[1]), putHealth(c.Healths[0]),
			putEviction(c.Evictions[3]), putEviction(c.Evictions[1]), putCluster(&c.Record),
		)
	}
	h.wantLoad(want...)
}

var errVisitor = errors.New("visitor has enough")

// fussy is a visitor that fails at one kind of visit.
type fussy struct {
	visitor
	at string
}

func (f *fussy) fail(at string) error {
	if f.at == at {
		return errVisitor
	}
	return nil
}

func (f *fussy) Meta(m engine.Meta) error {
	return errors.Join(f.fail("meta"), f.visitor.Meta(m))
}

func (f *fussy) Cluster(c engine.LoadedCluster) error {
	return errors.Join(f.fail("cluster"), f.visitor.Cluster(c))
}

func (f *fussy) Node(r *engine.NodeRecord) error {
	return errors.Join(f.fail("node"), f.visitor.Node(r))
}

func (f *fussy) Health(r *engine.NodeHealthRecord) error {
	return errors.Join(f.fail("health"), f.visitor.Health(r))
}

func (f *fussy) Reprieve(r *engine.ReprieveRecord) error {
	return errors.Join(f.fail("reprieve"), f.visitor.Reprieve(r))
}

func (f *fussy) Eviction(r *engine.EvictionRecord) error {
	return errors.Join(f.fail("eviction"), f.visitor.Eviction(r))
}

func visitorErrors(h *harness) {
	h.commit(
		putNode(Node("a", "n")), putNode(Node("a", "o")), putHealth(Health("a", "n")), putReprieve(Reprieve("a", "u")), putReprieve(Reprieve("a", "v")),
		putEviction(Eviction("a", 1)), putEviction(Eviction("a", 2)), putNode(Node("b", "n")),
	)
	for at, visits := range map[string]int{"meta": 1, "cluster": 2, "node": 3, "health": 5, "reprieve": 6, "eviction": 8} {
		f := &fussy{at: at}
		if err := h.store.Load(h.ctx, f); !errors.Is(err, errVisitor) {
			h.Errorf("load with a visitor that fails at its first %s: %v", at, err)
		}
		made := f.metas
		for _, c := range f.Clusters {
			made += 1 + len(c.Nodes) + len(c.Healths) + len(c.Reprieves) + len(c.Evictions)
		}
		if made != visits {
			h.Errorf("load with a visitor that fails at its first %s went on: %d visits instead of %d", at, made, visits)
		}
	}
	h.load()
}
