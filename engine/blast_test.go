package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// field is a cluster of nodes with a pod each, on the replay driver.
type field struct {
	*testing.T
	d     *replay.Driver
	nodes []string
	// taints are the keys that each node has.
	taints map[string][]string
}

// newField starts a cluster of n nodes without taints.
func newField(t *testing.T, n int) *field {
	t.Helper()
	data := mem.New()
	return newFieldOn(t, n, data.Open)
}

func newFieldOn(t *testing.T, n int, open engine.StoreOpener) *field {
	t.Helper()
	d, err := replay.NewDriver(t.Context(), open, epoch, 4)
	must(t, err)
	t.Cleanup(func() { d.Close(context.Background()) })
	f := &field{T: t, d: d, taints: map[string][]string{}}
	for i := range n {
		f.nodes = append(f.nodes, fmt.Sprintf("n%03d", i))
	}
	f.relist()
	return f
}

// relist gives the service a whole list.
func (f *field) relist() {
	f.Helper()
	for _, n := range f.nodes {
		f.show(n)
	}
	for _, n := range f.nodes {
		f.pod(n, "p-"+n)
	}
	must(f.T, f.d.Synced(f.Context(), cluster))
}

// show shows a node as it is.
func (f *field) show(node string) {
	f.Helper()
	n := &mNode{uid: "uid-" + node}
	for _, k := range f.taints[node] {
		n.taints = append(n.taints, mTaint{key: k})
	}
	must(f.T, f.d.Apply(f.Context(), cluster, upsertNode(node, n)))
}

// pod shows a pod of the node; name is its UID too. It has no owner.
func (f *field) pod(node, name string, tolerations ...corev1.Toleration) {
	f.Helper()
	ev := upsertPod(&mPod{namespace: "default", name: strings.SplitN(name, "#", 2)[0], uid: name, node: node, bound: epoch, tolerations: tolerations})
	ev.Pod.Owner = ""
	must(f.T, f.d.Apply(f.Context(), cluster, ev))
}

func (f *field) taint(key string, nodes ...string) {
	f.Helper()
	for _, n := range nodes {
		f.taints[n] = append(f.taints[n], key)
		f.show(n)
	}
}

func (f *field) untaint(key string, nodes ...string) {
	f.Helper()
	for _, n := range nodes {
		f.taints[n] = slices.DeleteFunc(slices.Clone(f.taints[n]), func(k string) bool { return k == key })
		f.show(n)
	}
}

// run lets time pass and returns the nodes that orders were sent for meanwhile.
func (f *field) run(d time.Duration) (nodes []string) {
	f.Helper()
	before := len(f.d.Orders())
	must(f.T, f.d.RunUntil(f.Context(), f.d.Now()+d))
	for _, o := range f.d.Orders()[before:] {
		nodes = append(nodes, o.Node)
	}
	slices.Sort(nodes)
	return nodes
}

func (f *field) wantSent(want []string, after time.Duration) {
	f.Helper()
	if got := f.run(after); !slices.Equal(got, want) {
		f.Fatalf("orders were sent for %v, not for %v", got, want)
	}
}

func (f *field) trips() []engine.BlastTrip {
	f.Helper()
	trips, err := f.d.Engine().BlastTrips(f.Context(), cluster)
	must(f.T, err)
	return trips
}

func (f *field) status() *engine.ClusterStatus {
	f.Helper()
	st, err := f.d.Engine().Cluster(f.Context(), cluster)
	must(f.T, err)
	return st
}

func (f *field) decide(v engine.BlastVerdict) (concerned int) {
	f.Helper()
	v.Cluster = cluster
	_, n, err := f.d.Engine().DecideBlast(f.Context(), v)
	must(f.T, err)
	return n
}

func (f *field) policy(p engine.PolicyPatch) {
	f.Helper()
	must(f.T, f.d.SetPolicy(f.Context(), cluster, p))
}

const mistake = "example.com/mistake"

// TestBlastRadiusHoldsTheRest: every node tainted at once releases a fifth; the
// rest is held until an operator says so, however long that takes.
func TestBlastRadiusHoldsTheRest(t *testing.T) {
	f := newField(t, 50)
	f.taint(mistake, f.nodes...)
	f.wantSent(f.nodes[:10], time.Second)
	f.wantSent(nil, 24*time.Hour)
	st := f.status()
	if st.Holds[engine.HoldBlastRadius] != 40 || len(st.Trips) != 1 {
		t.Fatalf("held %v, trips %+v", st.Holds, st.Trips)
	}
	if !slices.ContainsFunc(st.Warnings, func(w string) bool { return strings.Contains(w, mistake) && strings.Contains(w, "40 nodes") }) {
		t.Errorf("warnings %q do not tell of it", st.Warnings)
	}
	got := f.trips()[0]
	if got.Key != mistake || got.Limit != 10 || got.ClusterNodes != 50 || got.Held != 40 || got.Nodes != 50 || got.HeldEvictions != 40 ||
		!got.TrippedAt.Equal(epoch) || !slices.Equal(got.NodeNames, f.nodes[10:]) {
		t.Errorf("trip %+v", got)
	}
	if n := f.decide(engine.BlastVerdict{ValidateOnly: true}); n != 40 || len(f.trips()) != 1 {
		t.Errorf("validation counted %d, trips %v", n, f.trips())
	}
	if n := f.decide(engine.BlastVerdict{}); n != 40 {
		t.Errorf("released %d", n)
	}
	f.wantSent(f.nodes[10:], time.Second)
	if trips := f.trips(); len(trips) != 0 {
		t.Errorf("trips after the release: %v", trips)
	}
}

// TestReleaseCountsWhatAnotherKeyMadeDue: with several held keys on a node any of
// them lets its pods go, not only the one that gives the due instant.
func TestReleaseCountsWhatAnotherKeyMadeDue(t *testing.T) {
	f := newField(t, 50)
	other := mistake + "-2"
	for _, n := range f.nodes {
		f.taints[n] = []string{mistake, other}
		f.show(n)
	}
	f.wantSent(f.nodes[:10], time.Second)
	for _, key := range []string{mistake, other, ""} {
		if n := f.decide(engine.BlastVerdict{Key: key, ValidateOnly: true}); n != 40 {
			t.Errorf("releasing %q is to let %d go, not 40", key, n)
		}
	}
	if n := f.decide(engine.BlastVerdict{Key: other}); n != 40 {
		t.Errorf("released %d", n)
	}
	f.wantSent(f.nodes[10:], time.Second)
}

func TestBlastRadiusRejects(t *testing.T) {
	f := newField(t, 20)
	f.taint(mistake, f.nodes...)
	f.wantSent(f.nodes[:4], time.Second)
	seconds := int64(30)
	f.pod(f.nodes[0], "slow", corev1.Toleration{Key: mistake, Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds})
	f.run(0)
	if n := f.decide(engine.BlastVerdict{Reject: true, Actor: "me", Reason: "a typo"}); n != 17 {
		t.Errorf("rejected %d, not the 16 held ones and the one that waits on a node that might go", n)
	}
	f.wantSent(nil, time.Hour)
	if open := f.status().Open; len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
	page, err := f.d.Engine().History(t.Context(), engine.HistoryQuery{Cluster: cluster, Reasons: []engine.CloseReason{engine.CloseCancelled}, Limit: 100})
	must(t, err)
	for _, r := range page.Evictions {
		if r.CancelCause != engine.CancelRejected {
			t.Errorf("%s was cancelled for %s", r.Pod, r.CancelCause)
		}
	}
	got := f.trips()
	if len(got) != 1 || !got[0].TrippedAt.IsZero() || got[0].Rejected != 20 || got[0].Actor != "me" || got[0].Reason != "a typo" || len(f.status().Trips) != 0 {
		t.Errorf("trips after the rejection: %+v", got)
	}
	// A restart changes nothing of it, nor does a pod that comes later.
	must(t, f.d.Restart(t.Context(), time.Minute))
	f.relist()
	f.pod(f.nodes[7], "later")
	f.wantSent(nil, time.Hour)
	x, err := f.d.Engine().Explain(t.Context(), cluster, engine.PodRef{UID: "later"})
	must(t, err)
	if st := x.Decision.Steps[0]; !st.Rejected || !strings.Contains(strings.Join(x.Change, " "), "rejected") {
		t.Errorf("explained as %+v, %q", st, x.Change)
	}
	// Removed and set anew it counts as new.
	f.untaint(mistake, f.nodes[7])
	f.taint(mistake, f.nodes[7])
	f.wantSent([]string{f.nodes[7], f.nodes[7]}, time.Second)
	// The rest may still be released by name, and only so.
	if _, _, err := f.d.Engine().DecideBlast(t.Context(), engine.BlastVerdict{Cluster: cluster}); !errors.Is(err, engine.ErrBlastUnknown) {
		t.Errorf("releasing all took a rejection back: %v", err)
	}
	n := f.decide(engine.BlastVerdict{Key: mistake})
	// Of 20 nodes five have lost their pod.
	if got := f.run(time.Second); n != 15 || len(got) != n {
		t.Errorf("told that %d would leave; %d left", n, len(got))
	}
}

// TestBlastRadiusCounts says what counts towards the limit.
func TestBlastRadiusCounts(t *testing.T) {
	share := func(s float64, w time.Duration, n int) engine.PolicyPatch {
		return engine.PolicyPatch{Fields: engine.PolicyBlastRadius, Policy: engine.Policy{BlastRadius: engine.BlastRadius{MaxNodeShare: s, Window: w, MinNodes: n}}}
	}
	t.Run("few nodes", func(t *testing.T) {
		f := newField(t, 9)
		f.taint(mistake, f.nodes...)
		f.wantSent(f.nodes, time.Second)
	})
	t.Run("lifecycle keys", func(t *testing.T) {
		f := newField(t, 20)
		f.taint(unreachable, f.nodes...)
		f.wantSent(f.nodes, 300*time.Second)
	})
	t.Run("out of service is set by people", func(t *testing.T) {
		f := newField(t, 20)
		f.taint(corev1.TaintNodeOutOfService, f.nodes...)
		f.wantSent(f.nodes[:4], time.Second)
	})
	t.Run("one node at least", func(t *testing.T) {
		f := newField(t, 20)
		f.policy(share(0.01, time.Minute, 10))
		f.taint(mistake, f.nodes...)
		f.wantSent(f.nodes[:1], time.Second)
	})
	t.Run("window", func(t *testing.T) {
		f := newField(t, 20)
		for i := 0; i < 20; i += 4 {
			f.taint(mistake, f.nodes[i:i+4]...)
			f.wantSent(f.nodes[i:i+4], time.Minute)
		}
	})
	t.Run("a node counts once", func(t *testing.T) {
		f := newField(t, 20)
		for range 5 {
			f.taint(mistake, f.nodes[:4]...)
			f.run(time.Second)
			f.untaint(mistake, f.nodes[:4]...)
		}
		f.taint(mistake, f.nodes[5])
		f.wantSent(nil, time.Second)
	})
	t.Run("keys apart", func(t *testing.T) {
		f := newField(t, 20)
		f.taint("a", f.nodes[:4]...)
		f.taint("b", f.nodes[4:8]...)
		f.wantSent(f.nodes[:8], time.Second)
	})
	t.Run("joins with it", func(t *testing.T) {
		f := newField(t, 20)
		var pool []string
		for i := range 10 {
			pool = append(pool, fmt.Sprintf("pool%d", i))
		}
		f.taint("pool", pool...)
		f.run(time.Second)
		if trips := f.trips(); len(trips) != 0 {
			t.Errorf("new nodes tripped it: %+v", trips)
		}
	})
}

// TestBlastRadiusOff switches the bound off, before a mistake and after it.
func TestBlastRadiusOff(t *testing.T) {
	off := engine.PolicyPatch{Fields: engine.PolicyDisableBlastRadius, Policy: engine.Policy{DisableBlastRadius: true}}
	t.Run("off", func(t *testing.T) {
		f := newField(t, 20)
		f.policy(off)
		f.taint(mistake, f.nodes...)
		f.wantSent(f.nodes, time.Second)
	})
	t.Run("switched off", func(t *testing.T) {
		f := newField(t, 20)
		f.taint(mistake, f.nodes...)
		f.wantSent(f.nodes[:4], time.Second)
		st, err := f.d.Engine().SetPolicy(t.Context(), cluster, engine.PolicyUpdate{Patch: off, ValidateOnly: true})
		must(t, err)
		if st.Impact.BecomeDue != 16 {
			t.Errorf("impact %d", st.Impact.BecomeDue)
		}
		f.policy(off)
		f.wantSent(f.nodes[4:], time.Second)
	})
}

// TestBlastRadiusTripped looks at what a tripped key holds back, and whom.
func TestBlastRadiusTripped(t *testing.T) {
	t.Run("what others want of the pod", func(t *testing.T) {
		f := newField(t, 20)
		f.taint(mistake, f.nodes...)
		f.wantSent(f.nodes[:4], time.Second)
		f.taint(unreachable, f.nodes[9])
		f.wantSent([]string{f.nodes[9]}, 300*time.Second)
		_, err := f.d.Engine().RequestEviction(t.Context(), engine.EvictionRequest{
			Cluster: cluster, ID: "1", Requester: "r", Pod: engine.PodRef{UID: "p-" + f.nodes[11]},
		})
		must(t, err)
		f.wantSent([]string{f.nodes[11]}, time.Second)
	})
	t.Run("ends with the taint", func(t *testing.T) {
		f := newField(t, 20)
		f.taint(mistake, f.nodes...)
		f.run(time.Second)
		f.untaint(mistake, f.nodes...)
		f.run(time.Minute)
		if trips, open := f.trips(), f.status().Open; len(trips) != 0 || len(open) != 0 {
			t.Errorf("left: trips %+v, open %v", trips, open)
		}
		f.taint(mistake, f.nodes[15])
		f.wantSent(f.nodes[15:16], time.Second)
	})
	t.Run("tripped for whoever comes later", func(t *testing.T) {
		f := newField(t, 20)
		f.taint(mistake, f.nodes[:5]...)
		f.wantSent(f.nodes[:4], time.Hour)
		f.taint(mistake, f.nodes[5])
		f.wantSent(nil, time.Hour)
	})
}

// TestBlastRadiusOverGaps: what came in a gap counts when the list ends, what
// was there at adoption does not, and a trip outlives the process.
func TestBlastRadiusOverGaps(t *testing.T) {
	path := t.TempDir() + "/data.db"
	f := newFieldOn(t, 20, func(ctx context.Context) (engine.Store, error) { return bolt.Open(ctx, bolt.Options{Path: path}) })
	f.taint("few", f.nodes[:3]...)
	f.wantSent(f.nodes[:3], time.Second)
	must(t, f.d.Restart(t.Context(), time.Second))
	for _, n := range f.nodes {
		f.taints[n] = append(f.taints[n], mistake)
	}
	f.taints[f.nodes[10]] = append(f.taints[f.nodes[10]], "few")
	f.taints[f.nodes[11]] = append(f.taints[f.nodes[11]], "few")
	f.relist()
	f.run(time.Second)
	held := map[string]int{}
	for _, tr := range f.trips() {
		held[tr.Key] = tr.Held
	}
	if held[mistake] != 16 || held["few"] != 1 {
		t.Fatalf("held nodes by key after the gap: %v", held)
	}
	for range 2 {
		must(t, f.d.Restart(t.Context(), time.Hour))
		f.relist()
		if sent := f.run(time.Hour); len(sent) != 0 {
			t.Fatalf("a restart let %v go", sent)
		}
	}
	if st := f.status(); len(st.Trips) != 2 || st.Trips[1].Limit != 4 {
		t.Errorf("trips after restarts: %+v", st.Trips)
	}
	// It went while nobody looked.
	must(t, f.d.FeedLost(t.Context(), cluster))
	if _, _, err := f.d.Engine().DecideBlast(t.Context(), engine.BlastVerdict{Cluster: cluster, Reject: true}); !errors.Is(err, engine.ErrNotSynced) {
		t.Errorf("rejecting without a feed: %v", err)
	}
	clear(f.taints)
	f.relist()
	f.run(time.Second)
	if trips, open := f.trips(), f.status().Open; len(trips) != 0 || len(open) != 0 {
		t.Errorf("left: trips %+v, open %v", trips, open)
	}

	g := newField(t, 0)
	g.nodes = f.nodes
	for _, n := range g.nodes {
		g.taints[n] = []string{mistake}
	}
	must(t, g.d.FeedLost(t.Context(), cluster))
	h := newFieldAdopting(t, g)
	if trips := h.trips(); len(trips) != 0 {
		t.Errorf("adoption tripped %+v", trips)
	}
}

// TestBlastRadiusVerdictCutShort: the process ended when a rejection was in the
// cluster's record and had not reached the nodes. The key is held again, once.
func TestBlastRadiusVerdictCutShort(t *testing.T) {
	data := mem.New()
	cutShort := false
	f := newFieldOn(t, 20, func(ctx context.Context) (engine.Store, error) {
		s, err := data.Open(ctx)
		return rewriting{s, func(l *engine.LoadedCluster) {
			for i := range l.Record.Blasts {
				if b := &l.Record.Blasts[i]; cutShort {
					b.TrippedAt, b.RejectedAt = time.Time{}, b.TrippedAt
				}
			}
		}}, err
	})
	f.taint(mistake, f.nodes...)
	f.wantSent(f.nodes[:4], time.Second)
	cutShort = true
	must(t, f.d.Restart(t.Context(), time.Second))
	f.relist()
	f.wantSent(nil, time.Hour)
	if got := f.trips(); len(got) != 1 || got[0].Held != 16 || got[0].TrippedAt.IsZero() {
		t.Errorf("trips: %+v", got)
	}
	f.decide(engine.BlastVerdict{Reject: true, Actor: "me", Reason: "again"})
	if got := f.trips(); len(got) != 1 || got[0].Rejected != 20 {
		t.Errorf("trips after the rejection: %+v", got)
	}
}

// newFieldAdopting is a cluster whose first list shows the taints of another.
func newFieldAdopting(t *testing.T, like *field) *field {
	t.Helper()
	data := mem.New()
	d, err := replay.NewDriver(t.Context(), data.Open, epoch, 4)
	must(t, err)
	t.Cleanup(func() { d.Close(context.Background()) })
	f := &field{T: t, d: d, taints: like.taints, nodes: like.nodes}
	f.relist()
	f.run(time.Second)
	return f
}

// TestBlastRadiusGateOrder: BACKING_OFF and what comes before it is told first.
func TestBlastRadiusGateOrder(t *testing.T) {
	f := newField(t, 20)
	f.taint(mistake, f.nodes...)
	f.run(time.Second)
	_, err := f.d.Engine().Pause(t.Context(), cluster, engine.Pause{Reason: "r"})
	must(t, err)
	x, err := f.d.Engine().Explain(t.Context(), cluster, engine.PodRef{UID: "p-" + f.nodes[8]})
	must(t, err)
	if want := []engine.Hold{engine.HoldPaused, engine.HoldBlastRadius}; !slices.Equal(x.Holds, want) {
		t.Errorf("holds %v, not %v", x.Holds, want)
	}
	if n, err := f.d.Engine().Resume(t.Context(), engine.PauseScope{Cluster: cluster}, false); err != nil || n != 0 {
		t.Errorf("resuming released %d, %v", n, err)
	}
	f.wantSent(nil, time.Minute)
}

// TestRejectRecallsWhatIsOut: an order that is out is called back.
func TestRejectRecallsWhatIsOut(t *testing.T) {
	data := mem.New()
	b := newBench(t, data.Open)
	b.list()
	var nodes []engine.Event
	for i := range 20 {
		nodes = append(nodes, upsertNode(fmt.Sprintf("m%02d", i), &mNode{uid: fmt.Sprint("m", i)}))
		nodes = append(nodes, upsertPod(&mPod{namespace: "default", name: fmt.Sprint("q", i), uid: fmt.Sprint("q", i), node: fmt.Sprintf("m%02d", i), bound: epoch}))
	}
	b.feedNow(nodes...)
	b.attach("x", 100)
	for i := range 20 {
		b.feedNow(upsertNode(fmt.Sprintf("m%02d", i), &mNode{uid: fmt.Sprint("m", i), taints: []mTaint{{key: mistake}}}))
	}
	b.advance(time.Second)
	if n := len(b.sink.take()); n != 4 {
		t.Fatalf("%d orders, not 4 of 21 nodes", n)
	}
	_, n, err := b.eng.DecideBlast(t.Context(), engine.BlastVerdict{Cluster: cluster, Key: mistake, Reject: true})
	must(t, err)
	b.settle()
	b.sink.mu.Lock()
	defer b.sink.mu.Unlock()
	if n != 20 || len(b.sink.recalls) != 4 {
		t.Errorf("concerned %d, recalled %d", n, len(b.sink.recalls))
	}
}
