package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

// TestLoopBacksOff: a pod that comes back to its tainted node is evicted three
// times at once, then later each time; after a quiet time it is forgotten.
func TestLoopBacksOff(t *testing.T) {
	f := newField(t, 3)
	f.taint("x", f.nodes[0])
	f.run(0)
	var waits []time.Duration
	for i := range 11 {
		from := f.d.Now()
		f.pod(f.nodes[0], fmt.Sprintf("pinned#%d", i))
		for len(f.run(time.Second)) == 0 {
			if i > 0 && f.d.Now()-from > time.Hour {
				t.Fatalf("pod %d is never evicted", i)
			}
		}
		orders := f.d.Orders()
		waits = append(waits, (orders[len(orders)-1].At - from).Round(time.Second))
		if i == 5 {
			// Others are not disturbed: another owner here, the same name elsewhere.
			f.pod(f.nodes[0], "other")
			f.wantSent([]string{f.nodes[0]}, time.Second)
		}
	}
	s := time.Second
	// The pod that comes back a second later has waited that second.
	want := []time.Duration{0, 0, 0, 9 * s, 19 * s, 39 * s, 78 * s, 159 * s, 299 * s, 299 * s, 299 * s}
	for i := range want {
		if d := waits[i] - want[i]; d < -2*s || d > 2*s {
			t.Fatalf("waits %v, not about %v", waits, want)
		}
	}
	if n := f.status().Looping; n != 1 {
		t.Errorf("%d looping owners", n)
	}
	f.pod(f.nodes[0], "pinned#last")
	f.run(0)
	x, err := f.d.Engine().Explain(t.Context(), cluster, engine.PodRef{UID: "pinned#last"})
	must(t, err)
	if !slices.Equal(x.Holds, []engine.Hold{engine.HoldBackingOff}) || !strings.Contains(strings.Join(x.Warnings, " "), "in a row") {
		t.Errorf("explained with holds %v, warnings %q", x.Holds, x.Warnings)
	}
	f.run(5 * time.Minute)
	f.run(10 * time.Minute)
	f.pod(f.nodes[0], "pinned#again")
	f.wantSent([]string{f.nodes[0]}, 0)
	if n := f.status().Looping; n != 0 {
		t.Errorf("%d looping owners after a quiet time", n)
	}
}

// TestDrainIsNoLoop: many pods of one owner that were there together go at once.
func TestDrainIsNoLoop(t *testing.T) {
	f := newField(t, 3)
	show := func(i, round int) {
		ev := upsertPod(&mPod{namespace: "default", name: fmt.Sprintf("r%d-%d", round, i), uid: fmt.Sprintf("r%d-%d", round, i), node: f.nodes[1], bound: epoch})
		ev.Pod.Owner = "replicas"
		must(t, f.d.Apply(t.Context(), cluster, ev))
	}
	for i := range 40 {
		show(i, 0)
	}
	f.taint("x", f.nodes[1])
	if n := len(f.run(0)); n != 41 {
		t.Fatalf("%d of 41 pods went at once", n)
	}
	// As many come back together: that is one wave, not forty.
	for round := 1; round <= 2; round++ {
		for i := range 40 {
			show(i, round)
		}
		if n := len(f.run(time.Second)); n != 40 {
			t.Fatalf("round %d: %d of 40 pods went at once", round, n)
		}
	}
	for i := range 40 {
		show(i, 3)
	}
	if n := len(f.run(5 * time.Second)); n != 0 {
		t.Errorf("%d pods of the fourth wave went at once", n)
	}
	if n := len(f.run(10 * time.Second)); n != 40 {
		t.Errorf("%d of 40 pods of the fourth wave went after the wait", n)
	}
}

// TestLoopWaitOutlivesARestart: the wait is on disk with its eviction.
func TestLoopWaitOutlivesARestart(t *testing.T) {
	f := newField(t, 3)
	f.taint("x", f.nodes[0])
	f.run(0)
	for i := range 3 {
		f.pod(f.nodes[0], fmt.Sprintf("pinned#%d", i))
		f.wantSent([]string{f.nodes[0]}, 0)
	}
	f.pod(f.nodes[0], "pinned#last")
	must(t, f.d.Restart(t.Context(), time.Second))
	f.nodes = f.nodes[1:]
	f.show("n000")
	f.pod("n000", "pinned#last")
	f.relist()
	f.wantSent(nil, 8*time.Second)
	f.wantSent([]string{"n000"}, 2*time.Second)
}
