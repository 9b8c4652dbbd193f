package engine_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// TestNewClusterBesideCommits makes clusters known while the committer numbers
// the evictions of another: the race detector sees what they share.
func TestNewClusterBesideCommits(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 50 {
			if _, err := b.eng.Pause(t.Context(), fmt.Sprintf("new-%d", i), engine.Pause{Reason: "test"}); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 50 {
		b.seq++
		must(t, b.feed.Batch(t.Context(), b.seq, []engine.Event{upsertPod(&mPod{namespace: "default", name: fmt.Sprint(i), uid: fmt.Sprint(i), node: "n", bound: epoch})}))
	}
	wg.Wait()
	b.settle()
}
