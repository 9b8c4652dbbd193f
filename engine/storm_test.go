package engine_test

import (
	"fmt"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
)

// TestManyChangesAllCommit taints and untaints so many pods at once that shards
// and committer use the slices of changes again and again.
func TestManyChangesAllCommit(t *testing.T) {
	const nodes, perNode, cycles = 16, 300, 3
	b := newEventBench(t)
	var pods []engine.Event
	for i := range nodes * perNode {
		pods = append(pods, upsertPod(&mPod{
			namespace: "default", name: fmt.Sprintf("p-%d", i), uid: fmt.Sprintf("u-%d", i), node: fmt.Sprintf("n-%d", i%nodes),
			bound: epoch, tolerations: usualTolerations(),
		}))
	}
	b.batch(pods)
	for range cycles {
		for _, taints := range [][]mTaint{{{key: "x"}}, nil} {
			var events []engine.Event
			for n := range nodes {
				events = append(events, upsertNode(fmt.Sprintf("n-%d", n), &mNode{uid: "n", taints: taints}))
			}
			b.batch(events)
			b.waiting(len(taints) * nodes * perNode)
		}
	}
}

// waiting checks that so many pods wait, each once, by what a list tells.
func (b *eventBench) waiting(want int) {
	b.Helper()
	seen := map[string]bool{}
	for q := (engine.ListQuery{Cluster: cluster, Limit: 1000}); ; {
		page, err := b.eng.List(b.Context(), q)
		must(b.T, err)
		for _, e := range page.Evictions {
			seen[e.UID] = true
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	if len(seen) != want {
		b.Fatalf("%d pods are listed, want %d", len(seen), want)
	}
}
