package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// forgetting has an order out and a cluster that is being forgotten while the disk stands still.
type forgetting struct {
	*bench
	plan      *fault.Script
	gate      *fault.Gate
	x         *engine.ExecutorSession
	token     string
	replies   chan bool
	forgotten chan error
}

func forget(t *testing.T) *forgetting {
	f := &forgetting{plan: fault.NewScript(), gate: fault.NewGate(), replies: make(chan bool, 2), forgotten: make(chan error, 1)}
	f.bench = newBench(t, fault.New(mem.New().Open, f.plan))
	t.Cleanup(f.gate.Release)
	f.x = f.attach("x", 1)
	_, err := f.eng.Pause(t.Context(), "other", engine.Pause{})
	must(t, err)
	f.list("a")
	f.advance(10 * time.Second)
	f.token = f.sink.take()[0].Token
	f.plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: f.gate}})
	must(t, f.feed.Batch(t.Context(), 4, []engine.Event{upsertNode("n2", &mNode{uid: "n2", taints: []mTaint{{key: "x"}}})}))
	<-f.gate.Reached()
	go func() { f.forgotten <- f.eng.ForgetCluster(t.Context(), cluster) }()
	// The first call to find it unknown may do so while the shards are being told; the
	// next one needs the cluster's mutex, which is held until they are.
	for unknown := 0; unknown < 2; {
		if _, err := f.eng.Cluster(t.Context(), cluster); errors.Is(err, engine.ErrClusterUnknown) {
			unknown++
		}
	}
	for range 2 { // What comes next, and what comes once the shard knows.
		f.x.Result(engine.Result{Token: f.token, Outcome: engine.OutcomeEvicted}, func(taken bool) { f.replies <- taken })
		_, err = f.eng.Nodes(t.Context(), "other", true)
		must(t, err)
	}
	if len(f.replies) > 0 {
		t.Fatalf("I6: an answer was told to be taken (%t) before the cluster was off the disk", <-f.replies)
	}
	return f
}

// endings are how often the feed ended because its cluster was forgotten.
func (f *forgetting) endings() (n int) {
	f.sink.mu.Lock()
	defer f.sink.mu.Unlock()
	for _, err := range f.sink.ended {
		if errors.Is(err, engine.ErrSuperseded) {
			n++
		}
	}
	return n
}

// TestForgetAnswersWhenItIsOnDisk: an order of a cluster that is being forgotten
// is unknown, and its feed ended, once that is on disk.
func TestForgetAnswersWhenItIsOnDisk(t *testing.T) {
	f := forget(t)
	if f.endings() != 0 {
		t.Error("the feed ended before its cluster was off the disk")
	}
	f.gate.Release()
	must(t, <-f.forgotten)
	f.settle()
	if first, second := <-f.replies, <-f.replies; first || second {
		t.Errorf("I6: answers taken: %t, %t", first, second)
	}
	if n := f.endings(); n != 1 {
		t.Errorf("the feed ended %d times", n)
	}
	f.list("a") // The name is free.
	f.advance(10 * time.Second)
	if orders := f.sink.take(); len(orders) != 1 {
		t.Errorf("%d orders of the new cluster, want one", len(orders))
	}
}

// TestForgetThatFails: when the commit fails the cluster, its delivery and its
// feed are as if nobody had tried (I2, I6).
func TestForgetThatFails(t *testing.T) {
	f := forget(t)
	f.plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.NoSpace}})
	f.gate.Release()
	if err := <-f.forgotten; !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("forgotten: %v", err)
	}
	waitReopen(t, f.bench)
	if len(f.replies) > 0 {
		t.Errorf("I6: told of a delivery that is live again: %t", <-f.replies)
	}
	if f.endings() != 0 || f.sink.resyncs != 1 {
		t.Errorf("the feed ended %d times and was asked for %d lists", f.endings(), f.sink.resyncs)
	}
	x := f.attach("x", 1, f.token)
	if e := f.only(); e.Delivery == nil || e.Delivery.Token != f.token {
		t.Fatalf("I2: after the store was opened again: %+v", e)
	}
	if !f.answer(x, f.token, engine.OutcomeEvicted) {
		t.Error("the answer to a live delivery was not taken")
	}
}
