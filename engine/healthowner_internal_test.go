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

// TestOrderThatNeverLeftExplainsNothing: what happens to a node after its order was
// given up is another's doing, and shows another controller.
func TestOrderThatNeverLeftExplainsNothing(t *testing.T) {
	h := idleOwner(t)
	live := *h.conf
	live.live, live.released = true, true
	node := health.Node{Name: "a", UID: "u", Heartbeat: h.now}
	node.Conditions[health.CondReady] = health.StatusTrue
	other := node
	other.Name = "b"
	h.machine.Node(h.now, node)
	h.machine.Node(h.now, other)
	h.machine.Renewed(h.now, nil, nil)
	h.reconfigure(&live)
	for range 53 {
		h.now = h.now.Add(time.Second)
		h.machine.Renewed(h.now, []string{"b"}, nil)
		h.machine.Tick(h.now)
	}
	h.followUp()
	a := h.nodes["a"]
	if a == nil || a.offer == nil {
		t.Fatal("nothing is ordered of a silent node")
	}
	h.permitted(&healthPermit{offer: a.offer, link: &execLink{session: &ExecutorSession{}}})
	if a.delivery == nil || !a.want.Unknown {
		t.Fatal("there is no order")
	}
	shut := live
	shut.released = false
	h.conf = &shut
	h.saved(a)
	if a.delivery != nil || a.stored.Ordered.Unknown {
		t.Fatal("the order is still there")
	}
	node.Conditions[health.CondReady], node.ReadyReason = health.StatusUnknown, "NodeStatusUnknown"
	h.machine.Node(h.now, node)
	if h.machine.Cluster().Other == "" {
		t.Error("the condition is taken for the work of an order that never left")
	}
}
