package engine_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// Pages of any size have every open eviction of all shards and clusters once, by
// due instant, cluster and sequence.
func TestPagesHaveAllInOrder(t *testing.T) {
	b := newBench(t, mem.New().Open)
	const clusters, pods = 3, 40
	for c := range clusters {
		f, _, err := b.eng.OpenFeed(engine.FeedHello{Cluster: fmt.Sprint("c", c), ClusterUID: fmt.Sprint(c), FeederID: "f"}, b.sink)
		must(t, err)
		var events []engine.Event
		for n := range 5 {
			events = append(events, upsertNode(fmt.Sprint("n", n), &mNode{uid: fmt.Sprint("n", n), taints: []mTaint{{key: "x"}}}))
		}
		for i := range pods {
			wait := int64(10 * (1 + i%4))
			events = append(events, upsertPod(&mPod{namespace: "default", name: fmt.Sprint("p", i), uid: fmt.Sprint("u", c, "-", i), node: fmt.Sprint("n", i%5), bound: epoch,
				tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &wait}}}))
		}
		must(t, f.SyncBegin(t.Context(), 1))
		must(t, f.Batch(t.Context(), 2, events))
		must(t, f.SyncEnd(t.Context(), 3))
	}
	b.settle()
	for _, limit := range []int{1, 7, 40, clusters*pods - 1, clusters * pods, 1000} {
		var got []*engine.EvictionRecord
		q := engine.ListQuery{Limit: limit}
		for {
			page, err := b.eng.List(t.Context(), q)
			must(t, err)
			if n := len(page.Evictions); n > limit || n < limit && page.Cursor != "" {
				t.Fatalf("limit %d: a page of %d, the next is %q", limit, n, page.Cursor)
			}
			got = append(got, page.Evictions...)
			if q.Cursor = page.Cursor; q.Cursor == "" {
				break
			}
		}
		uids := map[string]bool{}
		for _, r := range got {
			uids[r.UID] = true
		}
		if len(got) != clusters*pods || len(uids) != len(got) {
			t.Errorf("limit %d: %d evictions of %d pods, want %d of each", limit, len(got), len(uids), clusters*pods)
		}
		if !slices.IsSortedFunc(got, func(a, b *engine.EvictionRecord) int {
			if c := a.Due.Compare(b.Due); c != 0 {
				return c
			}
			if a.Cluster != b.Cluster {
				return int(a.Cluster[1]) - int(b.Cluster[1])
			}
			return int(a.Seq) - int(b.Seq)
		}) {
			t.Errorf("limit %d: not in order", limit)
		}
	}
}
