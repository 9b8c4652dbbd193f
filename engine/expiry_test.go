package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
	"github.com/reprieve-dev/reprieve/store/storetest"
)

// onDisk is all that a store has, which nobody has open.
func onDisk(t *testing.T, data *mem.Data) *storetest.Contents {
	t.Helper()
	s, err := data.Open(t.Context())
	must(t, err)
	defer s.Close()
	c, err := storetest.Load(t.Context(), s)
	must(t, err)
	return c
}

// stays are the pauses and reprieves on disk.
func stays(t *testing.T, data *mem.Data) (clusters, pauses, reprieves int) {
	t.Helper()
	c := onDisk(t, data)
	for _, cl := range c.Clusters {
		pauses += len(cl.Record.Pauses)
		reprieves += len(cl.Reprieves)
	}
	return len(c.Clusters), pauses, reprieves
}

// staying is a bench with a reprieve of pod a for 100 s and a pause of 50 s.
func staying(t *testing.T, data *mem.Data) *bench {
	b := newBench(t, data.Open)
	b.list("a", "b")
	ctx := t.Context()
	_, err := b.eng.GrantReprieve(ctx, cluster, engine.PodRef{UID: "uid-a"}, engine.ReprieveRecord{Until: epoch.Add(100 * time.Second), Reason: "test"})
	must(t, err)
	_, err = b.eng.Pause(ctx, cluster, engine.Pause{Until: epoch.Add(50 * time.Second), Reason: "test"})
	must(t, err)
	_, err = b.eng.Pause(ctx, cluster, engine.Pause{Node: "n", Reason: "stays"})
	must(t, err)
	return b
}

// TestWhatEndsLeavesTheDisk lets a pause and a reprieve come to their ends: they
// are gone from memory and disk, and what has no end is not.
func TestWhatEndsLeavesTheDisk(t *testing.T) {
	data := mem.New()
	b := staying(t, data)
	for _, tc := range []struct {
		at                time.Duration
		pauses, reprieves int
	}{{49 * time.Second, 2, 1}, {50 * time.Second, 1, 1}, {99 * time.Second, 1, 1}, {100 * time.Second, 1, 0}} {
		b.advance(epoch.Add(tc.at).Sub(b.clock.Now()))
		b.settle()
		st, err := b.eng.Cluster(t.Context(), cluster)
		if err != nil || len(st.Record.Pauses) != tc.pauses || st.Reprieves != tc.reprieves {
			t.Fatalf("after %s: pauses %v, %d reprieves, %v", tc.at, st.Record.Pauses, st.Reprieves, err)
		}
		list, err := b.eng.Reprieves(t.Context(), cluster)
		if err != nil || len(list) != tc.reprieves {
			t.Fatalf("after %s: %v, %v", tc.at, list, err)
		}
	}
	x, err := b.eng.Explain(t.Context(), cluster, engine.PodRef{UID: "uid-a"})
	if err != nil || x.Reprieve != nil {
		t.Fatalf("explained with %+v, %v", x.Reprieve, err)
	}
	b.eng.Stop(context.Background())
	if _, pauses, reprieves := stays(t, data); pauses != 1 || reprieves != 0 {
		t.Fatalf("on disk: %d pauses, %d reprieves; want the one without an end", pauses, reprieves)
	}
}

// TestWhatEndedWhileDownLeavesTheDisk restarts after the ends.
func TestWhatEndedWhileDownLeavesTheDisk(t *testing.T) {
	data := mem.New()
	staying(t, data).eng.Stop(context.Background())
	if _, pauses, reprieves := stays(t, data); pauses != 2 || reprieves != 1 {
		t.Fatalf("on disk: %d pauses, %d reprieves", pauses, reprieves)
	}
	b := newBench(t, data.Open)
	b.advance(200 * time.Second)
	b.settle()
	b.eng.Stop(context.Background())
	if _, pauses, reprieves := stays(t, data); pauses != 1 || reprieves != 0 {
		t.Fatalf("on disk: %d pauses, %d reprieves; want the one without an end", pauses, reprieves)
	}
}

// TestAnEndDoesNotBringAForgottenClusterBack forgets a cluster before its pause ends.
func TestAnEndDoesNotBringAForgottenClusterBack(t *testing.T) {
	data := mem.New()
	b := staying(t, data)
	must(t, b.eng.ForgetCluster(t.Context(), cluster))
	b.advance(200 * time.Second)
	b.settle()
	b.eng.Stop(context.Background())
	if clusters, _, _ := stays(t, data); clusters != 0 {
		t.Fatalf("%d clusters on disk after the last was forgotten", clusters)
	}
}

// TestReprieveGoesWithItsPod deletes a pod whose eviction waits: its reprieve is
// gone from the list, as it is from the disk.
func TestReprieveGoesWithItsPod(t *testing.T) {
	b := staying(t, mem.New())
	must(t, b.feed.Batch(t.Context(), 4, []engine.Event{{Type: engine.EventDelete, Pod: &engine.Pod{Namespace: "default", Name: "a", UID: "uid-a"}}}))
	b.settle()
	if list, err := b.eng.Reprieves(t.Context(), cluster); err != nil || len(list) != 0 {
		t.Fatalf("reprieves of a pod that is gone: %v, %v", list, err)
	}
}

// TestReprieveOutlivesAnExecutorsWord has an executor say that a reprieved pod is
// gone, which the feed does not confirm: the pod is still reprieved.
func TestReprieveOutlivesAnExecutorsWord(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	_, err := b.eng.GrantReprieve(t.Context(), cluster, engine.PodRef{UID: "uid-a"}, engine.ReprieveRecord{Until: epoch.Add(time.Hour), Reason: "test"})
	must(t, err)
	b.answer(x, token, engine.OutcomeGone)
	b.advance(2 * time.Minute)
	must(t, b.feed.Heartbeat(t.Context(), 4))
	b.settle()
	b.advance(0)
	if list, err := b.eng.Reprieves(t.Context(), cluster); err != nil || len(list) != 1 || len(b.sink.take()) != 0 || b.only().Hold != engine.HoldReprieved {
		t.Fatalf("reprieves %v, %v; eviction %+v", list, err, b.only())
	}
}

// TestRevokeByNameMeansThePodThatHasIt replaces a reprieved pod whose name the
// next reprieved one takes: revoking by name leaves the old one's alone.
func TestRevokeByNameMeansThePodThatHasIt(t *testing.T) {
	ctx := t.Context()
	for range 10 { // A map has both reprieves.
		b := newBench(t, mem.New().Open)
		b.list()
		must(t, b.feed.Batch(ctx, 4, []engine.Event{upsertNode("n", &mNode{uid: "node"})}))
		for i, uid := range []string{"uid-old", "uid-new"} {
			must(t, b.feed.Batch(ctx, uint64(5+i), []engine.Event{upsertPod(&mPod{namespace: "default", name: "a", uid: uid, node: "n", bound: epoch})}))
			b.settle()
			_, err := b.eng.GrantReprieve(ctx, cluster, engine.PodRef{UID: uid}, engine.ReprieveRecord{Until: epoch.Add(time.Hour), Reason: "test"})
			must(t, err)
		}
		must(t, b.eng.RevokeReprieve(ctx, cluster, engine.PodRef{Namespace: "default", Name: "a"}))
		list, err := b.eng.Reprieves(ctx, cluster)
		if err != nil || len(list) != 1 || list[0].UID != "uid-old" {
			t.Fatalf("left after revoking that of default/a: %+v, %v", list, err)
		}
		b.eng.Stop(context.Background())
	}
}
