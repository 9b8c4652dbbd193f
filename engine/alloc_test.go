package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// usualTolerations are what admission gives a pod, and one of its own.
func usualTolerations() []corev1.Toleration {
	five, hour := int64(300), int64(3600)
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &five},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &five},
		{Key: "x", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &hour},
	}
}

// TestDecisionAllocatesNothing covers every verdict that a decision has.
func TestDecisionAllocatesNothing(t *testing.T) {
	policy := engine.DefaultPolicy()
	subject := engine.Subject{Namespace: "default", Tolerations: usualTolerations(), BoundAt: epoch}
	requested := subject
	requested.Requests = []engine.Request{{ID: "r", RequestedAt: epoch}}
	finished := subject
	finished.Finished = true
	taints := func(keys ...string) (out []engine.Taint) {
		for _, k := range keys {
			out = append(out, engine.Taint{Key: k, Value: "v", Start: epoch.Add(time.Hour)})
		}
		return out
	}
	for name, in := range map[string]engine.DecideInput{
		"waits":        {Subject: subject, Taints: taints("x")},
		"of several":   {Subject: subject, Taints: taints(corev1.TaintNodeNotReady, "x", corev1.TaintNodeUnreachable)},
		"goes at once": {Subject: subject, Taints: taints("y")},
		"default":      {Subject: engine.Subject{Namespace: "default"}, Taints: taints(corev1.TaintNodeNotReady)},
		"stays":        {Subject: subject},
		"no subject":   {Subject: finished, Taints: taints("x")},
		"requested":    {Subject: requested},
	} {
		t.Run(name, func(t *testing.T) {
			in.NodeKnown, in.Policy, in.Steps = true, &policy, make([]engine.Step, 0, 8)
			var d engine.Decision
			if n := testing.AllocsPerRun(100, func() { d = engine.Decide(in) }); n != 0 {
				t.Errorf("%g allocations for one decision: %+v", n, d)
			}
			if d.Verdict == 0 {
				t.Error("nothing was decided")
			}
		})
	}
}

// eventBench is a synced feed of one node, whose batches wait for their acknowledgement.
type eventBench struct {
	*testing.T
	eng  *engine.Engine
	feed *engine.FeedSession
	sink *sink
	seq  uint64
}

// newEventBench has a store that keeps nothing: what disks need is not counted here.
func newEventBench(t *testing.T) *eventBench {
	b := newBench(t, func(ctx context.Context) (engine.Store, error) {
		s, err := mem.New().Open(ctx)
		return discard{s}, err
	})
	b.list()
	return &eventBench{T: t, eng: b.eng, feed: b.feed, sink: b.sink, seq: b.seq}
}

type discard struct{ engine.Store }

func (discard) Commit(context.Context, *engine.Batch) error { return nil }

func (b *eventBench) batch(events []engine.Event) {
	b.seq++
	must(b.T, b.feed.Batch(b.Context(), b.seq, events))
	must(b.T, b.eng.Settle(b.Context()))
	if b.sink.acked != b.seq {
		b.Fatalf("acknowledged up to %d, want %d", b.sink.acked, b.seq)
	}
}

// TestEventAllocatesLittle holds what becomes of a decoded event to two
// allocations, the store's part apart: a pod is one, its eviction another.
func TestEventAllocatesLittle(t *testing.T) {
	for name, c := range map[string]struct {
		node string
		wait int
	}{
		"node without taints": {node: "quiet"},
		"tainted node":        {node: "n", wait: 2 * eventPods},
	} {
		t.Run(name, func(t *testing.T) {
			b := newEventBench(t)
			b.batch([]engine.Event{upsertNode("quiet", &mNode{uid: "quiet"})})
			b.measure("a new pod", c.wait, engine.EventUpsert, c.node)
			b.measure("a pod as it was", c.wait, engine.EventUpsert, c.node)
			b.measure("a pod's end", 0, engine.EventDelete, c.node)
		})
	}
}

const (
	// eventPods is how many events a batch has: what a batch needs itself is little of each.
	eventPods = 2000
	// sharedPart is what an event may take besides, on average: maps and lists grow.
	sharedPart = 0.1
)

// measure sends events of two batches of pods, always the same ones, and counts
// the allocations of the second. Of the first the maps have grown.
func (b *eventBench) measure(what string, open int, kind engine.EventType, node string) {
	b.Helper()
	var batches [2][]engine.Event
	for r := range batches {
		for i := range eventPods {
			batches[r] = append(batches[r], engine.Event{Type: kind, Pod: &engine.Pod{
				Namespace: "default", Name: fmt.Sprintf("p-%d-%d", r, i), UID: fmt.Sprintf("u-%d-%d", r, i), Node: node,
				BoundAt: epoch, Tolerations: usualTolerations(), Owner: fmt.Sprintf("owner-%d", i/20),
			}})
		}
	}
	r := 0
	n := testing.AllocsPerRun(1, func() { b.batch(batches[r]); r++ })
	if each := n / eventPods; each > 2+sharedPart {
		b.Errorf("%s: %.2f allocations for one event, want at most 2", what, each)
	}
	st, err := b.eng.Cluster(b.Context(), cluster)
	must(b.T, err)
	if got := st.Open[engine.StateWaiting]; got != open {
		b.Errorf("%s: %d wait, want %d", what, got, open)
	}
	if want := map[engine.EventType]int{engine.EventUpsert: 2 * eventPods}[kind]; st.Pods != want {
		b.Errorf("%s: the engine has %d pods, want %d", what, st.Pods, want)
	}
}
