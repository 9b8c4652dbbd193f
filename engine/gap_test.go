package engine_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// TestRecalledInAGapStaysOpen answers a recall while the feed is lost: whether
// anything else wants the pod gone is not known until the next list, so the
// eviction stays, also over a crash, and the list decides.
func TestRecalledInAGapStaysOpen(t *testing.T) {
	for name, tc := range map[string]struct {
		taints []mTaint
		due    time.Duration
	}{
		"still tainted": {taints: []mTaint{{key: "x"}}, due: time.Minute},
		"taint gone":    {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, mem.New().Open)
			x := b.attach("x", 5)
			b.list("a")
			b.advance(10 * time.Second)
			token := b.sink.take()[0].Token
			seconds := int64(60)
			longer := upsertPod(&mPod{namespace: "default", name: "a", uid: "uid-a", node: "n", bound: epoch,
				tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}})
			must(t, b.feed.Batch(t.Context(), 4, []engine.Event{longer}))
			b.settle()
			if len(b.sink.recalls) != 1 {
				t.Fatalf("recalls: %+v", b.sink.recalls)
			}
			b.feed.Close()
			b.settle()
			if !b.answer(x, token, engine.OutcomeRecalled) {
				t.Fatal("the answer was not taken")
			}
			b.advance(0)
			if e := b.only(); e.State != engine.StateDue || e.Hold != engine.HoldClusterNotSynced {
				t.Fatalf("in the gap: %+v", e)
			}
			b.advance(time.Second)
			f, _, err := b.eng.OpenFeed(engine.FeedHello{Cluster: cluster, ClusterUID: "c", FeederID: "f"}, b.sink)
			must(t, err)
			must(t, f.SyncBegin(t.Context(), 1))
			must(t, f.Batch(t.Context(), 2, []engine.Event{upsertNode("n", &mNode{uid: "node", taints: tc.taints}), longer}))
			must(t, f.SyncEnd(t.Context(), 3))
			b.settle()
			if n := len(b.sink.take()); n != 0 {
				t.Errorf("%d orders after the list", n)
			}
			if tc.due > 0 {
				if e := b.only(); e.State != engine.StateWaiting || !e.Due.Equal(epoch.Add(tc.due)) {
					t.Errorf("after the list: %+v, want due %s", e, tc.due)
				}
				return
			}
			page, err := b.eng.History(t.Context(), engine.HistoryQuery{Cluster: cluster, Limit: 10})
			must(t, err)
			if len(page.Evictions) != 1 || page.Evictions[0].CancelCause != engine.CancelTaintRemoved {
				t.Errorf("history: %+v", page.Evictions)
			}
		})
	}
}

// TestReplacedNodeAfterAGap lists another node of a known name after a gap, with
// a taint added in it. When the old node went is not known, so the taint counts
// from its timeAdded, whether or not pods are known on the node (D9).
func TestReplacedNodeAfterAGap(t *testing.T) {
	ctx := t.Context()
	d := newDriver(t, mem.New().Open)
	seconds := int64(100)
	list := func(n *mNode) {
		must(t, d.Apply(ctx, cluster, upsertNode("n", n)))
		must(t, d.Apply(ctx, cluster, upsertPod(&mPod{namespace: "default", name: "p", uid: "u", node: "n", bound: epoch,
			tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}})))
		must(t, d.Synced(ctx, cluster))
	}
	list(&mNode{uid: "node-1", taints: []mTaint{{key: "x"}}})
	must(t, d.Restart(ctx, 30*time.Second))
	list(&mNode{uid: "node-2", taints: []mTaint{{key: "x", added: epoch.Add(20 * time.Second)}}})
	page, err := d.Engine().List(ctx, engine.ListQuery{Limit: 10})
	must(t, err)
	if len(page.Evictions) != 1 || !page.Evictions[0].Due.Equal(epoch.Add(120*time.Second)) {
		t.Fatalf("open: %+v, want one, due after 120s", page.Evictions)
	}
}
