package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// idleOwner is the owner of a cluster's node health in a core of which nothing
// runs: what it sends stays where a test can see it.
func idleOwner(t *testing.T) *healthOwner {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g := New(Options{
		Clock: clock.NewVirtual(start), Shards: 1,
		ClusterPolicy: func(string) PolicyPatch {
			return PolicyPatch{
				Policy: Policy{Mode: ModeEnforce, NodeHealth: NodeHealthEnforce}, Fields: PolicyMode | PolicyNodeHealth,
			}
		},
	})
	c := newCore(t.Context(), &g.opts, nil)
	return c.addCluster(LoadedCluster{Record: ClusterRecord{Name: "c"}}).health
}

// written takes the kinds of change that were sent to the committer.
func written(c *core) (kinds []ChangeKind) {
	for _, items := range c.committer.inbox.tryTake(nil) {
		for i := range items {
			if k := items[i].kind; k != 0 {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

// TestRecordOfGrantsKeepsItsPlace: a record of the cluster is with the committer
// before mu is let go, so that one made after it is written after it. One that
// waited for the end of the owner's message would undo what an operator did meanwhile.
func TestRecordOfGrantsKeepsItsPlace(t *testing.T) {
	h := idleOwner(t)
	h.storeCluster(health.ClusterRecord{Other: "another controller"})
	if got := written(h.core); !slices.Equal(got, []ChangeKind{ChangePutCluster}) {
		t.Errorf("written: %v, want the cluster's record", got)
	}
}

// TestNothingIsWrittenAfterNodeHealthIsOff: what comes to the owner behind its end
// is answered, gives its credit back, and writes nothing.
func TestNothingIsWrittenAfterNodeHealthIsOff(t *testing.T) {
	h := idleOwner(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	unsent := &healthNode{name: "n", delivery: &Delivery{Token: "t"}, link: &execLink{}}
	unsent.stored = &NodeHealthRecord{Cluster: "c", Record: health.Record{Name: "n"}, Delivery: unsent.delivery}
	h.nodes["n"], h.tokens["t"] = unsent, unsent
	unsent.link.session = &ExecutorSession{over: ErrStopped}

	off := *h.conf
	off.policy.NodeHealth = NodeHealthOff
	handled := 0
	done := func() { handled++ }
	answer := func() *resultMsg { return &resultMsg{token: "t", reply: func(time.Duration, bool) {}} }
	late := []healthMsg{
		{committed: unsent}, {result: answer()}, {permit: &healthPermit{offer: &nodeOffer{node: unsent}, link: &execLink{}}},
		{adopted: &adoption{token: "t", link: &execLink{}}}, {tick: true, done: done},
	}
	h.inbox.put(append([]healthMsg{{conf: &off, done: done}}, late...)...)
	if err := h.run(ctx); err != nil {
		t.Fatal(err)
	}
	if h.inbox.put(healthMsg{tick: true}) {
		t.Error("the inbox of an owner that has ended takes messages")
	}
	if handled != 2 {
		t.Errorf("%d of 2 waiting for the owner were told", handled)
	}
	if got := written(h.core); !slices.Equal(got, []ChangeKind{ChangeDeleteHealth}) {
		t.Errorf("written: %v, want that the node's health is deleted, and no more", got)
	}
	credits := 0
	for _, m := range h.cl.dispatcher.inbox.tryTake(nil) {
		if m.credit != nil {
			credits++
		}
	}
	if credits != 3 {
		t.Errorf("%d credits given back, want those of the order, the permit and the adopted order", credits)
	}
}
