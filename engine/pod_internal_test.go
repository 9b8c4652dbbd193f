package engine

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

func TestPodIsSmall(t *testing.T) {
	if size := reflect.TypeFor[pod]().Size(); size > 112 {
		t.Errorf("a pod takes %d bytes, want at most 112: a million are mirrored, the next size that is allocated is 128, "+
			"and the collector's slack doubles it (ADR 18). What few pods have has its place in a table of the shard", size)
	}
}

// hadSaid is a store that knows a cluster in shadow mode, and that it said of one pod that it would leave.
type hadSaid struct {
	nowhere
	uid string
}

func (hadSaid) Load(_ context.Context, v Visitor) error {
	return v.Cluster(LoadedCluster{Record: ClusterRecord{Name: "c"}})
}

func (s hadSaid) History(context.Context, HistoryQuery) (HistoryPage, error) {
	return HistoryPage{Evictions: []*EvictionRecord{{UID: s.uid, Due: time.Unix(0, 0)}}}, nil
}

// deaf is a feed's end that hears nothing.
type deaf struct{}

func (deaf) Ack(uint64, bool)      {}
func (deaf) Resync(string)         {}
func (deaf) Mode(Mode)             {}
func (deaf) NodeHealth(NodeHealth) {}
func (deaf) Ended(error)           {}

// TestSaidGoesWithThePod: what shadow mode has said of a pod is remembered until the
// pod is gone, whether it was said before the start or since.
func TestSaidGoesWithThePod(t *testing.T) {
	store := hadSaid{nowhere{names: map[string]bool{}}, "before"}
	clk := clock.NewVirtual(time.Unix(1_700_000_000, 0))
	g := New(Options{Clock: clk, Shards: 1, Open: func(context.Context) (Store, error) { return store, nil }, PruneEvery: -1})
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer g.Stop(context.Background())
	c, err := g.current()
	if err != nil {
		t.Fatal(err)
	}
	feed, _, err := g.OpenFeed(FeedHello{Cluster: "c", ClusterUID: "c", FeederID: "f"}, deaf{})
	if err != nil {
		t.Fatal(err)
	}
	sequence := uint64(0)
	want := func(what string, step func(sequence uint64) error, said ...string) {
		t.Helper()
		sequence++
		if err := step(sequence); err != nil {
			t.Fatal(err)
		}
		for settled := false; !settled; settled = clk.Fire() == 0 {
			if err := g.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		if err := c.ask(t.Context(), c.shards[0], func(s *shard) {
			for p := range s.clusters["c"].said {
				got = append(got, p.uid)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(got); !slices.Equal(got, said) {
			t.Errorf("%s: it has been said of %v, want %v", what, got, said)
		}
	}
	events := func(kind EventType, uids ...string) func(uint64) error {
		var list []Event
		for _, uid := range uids {
			list = append(list, Event{Type: kind, Pod: &Pod{Namespace: "default", Name: uid, UID: uid, Node: "n"}})
		}
		return func(sequence uint64) error { return feed.Batch(t.Context(), sequence, list) }
	}
	node := Event{Type: EventUpsert, Node: &Node{Name: "n", UID: "n", Taints: []ObservedTaint{{Key: "x", Effect: string(corev1.TaintEffectNoExecute)}}}}

	want("a list begins", func(n uint64) error { return feed.SyncBegin(t.Context(), n) })
	want("said before the start", events(EventUpsert, "before", "new"), "before")
	want("gone before the list ends", events(EventDelete, "before"))
	want("there again", events(EventUpsert, "before"), "before")
	want("the list is over", func(n uint64) error { return feed.SyncEnd(t.Context(), n) }, "before")
	want("and the pods are gone", events(EventDelete, "before", "new"))
	want("one is there again", events(EventUpsert, "before"))
	want("the taint comes", func(n uint64) error { return feed.Batch(t.Context(), n, []Event{node}) }, "before")
	want("another pod", events(EventUpsert, "new"), "before", "new")
	want("one is gone", events(EventDelete, "before"), "new")
	want("all are", events(EventDelete, "new"))
}
