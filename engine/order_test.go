package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/internal/wire"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newDriver(t *testing.T, open engine.StoreOpener) *replay.Driver {
	t.Helper()
	d, err := replay.NewDriver(t.Context(), open, epoch, 4)
	must(t, err)
	t.Cleanup(func() { d.Close(context.Background()) })
	return d
}

// TestI8OverdueLeaveOldestFirst lets twenty pods fall due while the feed is
// lost and looks at the order and the rate in which they leave afterwards.
func TestI8OverdueLeaveOldestFirst(t *testing.T) {
	ctx := t.Context()
	d := newDriver(t, mem.New().Open)
	list := func(taints ...mTaint) {
		for i := range 4 {
			must(t, d.Apply(ctx, cluster, upsertNode(fmt.Sprintf("n%d", i), &mNode{uid: fmt.Sprint("node", i), taints: taints})))
		}
		for i := range 20 {
			// The later in the list, the earlier due.
			seconds := int64(100 - i)
			must(t, d.Apply(ctx, cluster, upsertPod(&mPod{
				namespace: "default", name: fmt.Sprint("p", i), uid: fmt.Sprint("uid", i), node: fmt.Sprintf("n%d", i%4), bound: epoch,
				tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}},
			})))
		}
		must(t, d.Synced(ctx, cluster))
	}
	must(t, d.SetPolicy(ctx, cluster, engine.PolicyPatch{Policy: engine.Policy{RatePerSecond: 2, Burst: 1}, Fields: engine.PolicyRate}))
	list()
	for i := range 4 {
		must(t, d.Apply(ctx, cluster, upsertNode(fmt.Sprintf("n%d", i), &mNode{uid: fmt.Sprint("node", i), taints: []mTaint{{key: "x"}}})))
	}
	must(t, d.AdvanceTo(ctx, time.Second))
	must(t, d.FeedLost(ctx, cluster))
	must(t, d.AdvanceTo(ctx, 200*time.Second))
	if n := len(d.Orders()); n != 0 {
		t.Fatalf("I4: %d orders while the feed was lost", n)
	}
	list(mTaint{key: "x"})
	must(t, d.RunUntil(ctx, 300*time.Second))
	orders := d.Orders()
	if len(orders) != 20 {
		t.Fatalf("%d orders, want 20", len(orders))
	}
	for i, o := range orders {
		at := 200*time.Second + time.Duration(i)*500*time.Millisecond
		if want := fmt.Sprint("uid", 19-i); o.UID != want || o.At < at || o.At > at+time.Millisecond {
			t.Errorf("order %d is of %s at %s, want %s at %s", i, o.UID, o.At, want, at)
		}
	}
}

const (
	burstNodes = 40
	burstPods  = 2000
)

// overdueOnShards lets pods of many shards fall due while their cluster is paused.
func overdueOnShards(t *testing.T, open engine.StoreOpener) *replay.Driver {
	t.Helper()
	ctx := t.Context()
	d, err := replay.NewDriver(ctx, open, epoch, 16)
	must(t, err)
	t.Cleanup(func() { d.Close(context.Background()) })
	must(t, d.SetPolicy(ctx, cluster, engine.PolicyPatch{Policy: engine.Policy{UnlimitedRate: true}, Fields: engine.PolicyRate}))
	for i := range burstNodes {
		must(t, d.Apply(ctx, cluster, burstNode(i)))
	}
	for i := range burstPods {
		// Many of one instant, and neighbours in time on different nodes.
		seconds := int64(i % 100)
		must(t, d.Apply(ctx, cluster, upsertPod(&mPod{
			namespace: "default", name: fmt.Sprint("p", i), uid: fmt.Sprint("uid", i), node: fmt.Sprint("n", i%burstNodes), bound: epoch,
			tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}},
		})))
	}
	must(t, d.Pause(ctx, cluster))
	must(t, d.Synced(ctx, cluster))
	must(t, d.AdvanceTo(ctx, 200*time.Second))
	return d
}

func burstNode(i int) engine.Event {
	return upsertNode(fmt.Sprint("n", i), &mNode{uid: fmt.Sprint("node", i), taints: []mTaint{{key: "x"}}})
}

// leftOldestFirst fails unless all pods have left, by due instant, and of one
// instant by sequence.
func leftOldestFirst(t *testing.T, orders []replay.Order, pods int) {
	t.Helper()
	if len(orders) != pods {
		t.Fatalf("%d orders, want %d", len(orders), pods)
	}
	for i := 1; i < len(orders); i++ {
		a, b := &orders[i-1], &orders[i]
		if b.Due < a.Due || b.Due == a.Due && b.Record.Seq < a.Record.Seq {
			t.Fatalf("I8: order %d is of %s, due %s, sequence %d, after that of %s, due %s, sequence %d",
				i, b.UID, b.Due, b.Record.Seq, a.UID, a.Due, a.Record.Seq)
		}
	}
}

// TestI8ShardsHandOutInOneOrder lets pods of many shards go at once: whichever
// shard is the first to have its deliveries on disk, the oldest leave first.
func TestI8ShardsHandOutInOneOrder(t *testing.T) {
	for name, open := range map[string]engine.StoreOpener{
		"mem": mem.New().Open,
		"bolt": func(context.Context) (engine.Store, error) {
			return bolt.Open(t.Context(), bolt.Options{Path: filepath.Join(t.TempDir(), "reprieve.db")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := overdueOnShards(t, open)
			must(t, d.Resume(t.Context(), cluster))
			must(t, d.RunUntil(t.Context(), 201*time.Second))
			leftOldestFirst(t, d.Orders(), burstPods)
		})
	}
}

// TestI8OverdueInTheInstantOfTheBarrier has pods come to be overdue in the instant in
// which the pause ends: their timers have yet to tell, and they leave in their order.
func TestI8OverdueInTheInstantOfTheBarrier(t *testing.T) {
	ctx := t.Context()
	d := overdueOnShards(t, mem.New().Open)
	const more = 20
	for i := range more {
		seconds := int64(4 * i)
		must(t, d.Apply(ctx, cluster, upsertPod(&mPod{
			namespace: "default", name: fmt.Sprint("late", i), uid: fmt.Sprint("late", i), node: fmt.Sprint("n", i), bound: epoch,
			tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}},
		})))
	}
	must(t, d.Resume(ctx, cluster))
	must(t, d.RunUntil(ctx, 201*time.Second))
	leftOldestFirst(t, d.Orders(), burstPods+more)
}

// TestI8DecidedAgainKeepsItsPlace decides over half of the pods again, and then
// over all, between the barrier that lets them go and their leaving: a decision
// that changes nothing takes no place away.
func TestI8DecidedAgainKeepsItsPlace(t *testing.T) {
	ctx := t.Context()
	d := overdueOnShards(t, mem.New().Open)
	must(t, d.Resume(ctx, cluster))
	for i := 0; i < burstNodes; i += 2 {
		must(t, d.Apply(ctx, cluster, burstNode(i)))
	}
	must(t, d.SetPolicy(ctx, cluster, engine.PolicyPatch{Policy: engine.Policy{DefaultNotReady: time.Second}, Fields: engine.PolicyDefaultNotReady}))
	must(t, d.RunUntil(ctx, 201*time.Second))
	leftOldestFirst(t, d.Orders(), burstPods)
}

// TestStatusCounts looks at the counts that operators see through a life.
func TestStatusCounts(t *testing.T) {
	ctx := t.Context()
	d := newDriver(t, mem.New().Open)
	seconds := int64(60)
	must(t, d.Apply(ctx, cluster, upsertNode("n", &mNode{uid: "node", taints: []mTaint{{key: "x"}}})))
	must(t, d.Apply(ctx, cluster, upsertPod(&mPod{namespace: "default", name: "p", uid: "u", node: "n", bound: epoch,
		tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}})))
	must(t, d.Synced(ctx, cluster))
	expect := func(state engine.State, hold engine.Hold) {
		t.Helper()
		st, err := d.Engine().Cluster(ctx, cluster)
		must(t, err)
		if len(st.Open) != 1 || st.Open[state] != 1 {
			t.Fatalf("open = %v, want one %s", st.Open, state)
		}
		if hold != engine.HoldNone && st.Holds[hold] != 1 {
			t.Fatalf("holds = %v, want one %s", st.Holds, hold)
		}
	}
	expect(engine.StateWaiting, engine.HoldNone)
	must(t, d.Pause(ctx, cluster))
	must(t, d.RunUntil(ctx, 61*time.Second))
	expect(engine.StateDue, engine.HoldPaused)
	d.SetOutcome(cluster, "default", "p", engine.OutcomeNoAnswer)
	must(t, d.Resume(ctx, cluster))
	must(t, d.RunUntil(ctx, 62*time.Second))
	expect(engine.StateDelivered, engine.HoldNone)
}

// TestI10EventsOfOneInstant replays every scenario with the events of each
// instant, between two controls, in other orders that keep each object's own,
// and compares what is open in the end, and the orders.
func TestI10EventsOfOneInstant(t *testing.T) {
	files, err := filepath.Glob("../client/timeline/testdata/scenarios/*.jsonl")
	if err != nil || len(files) < 37 {
		t.Fatalf("found %d scenarios (%v)", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".jsonl"), func(t *testing.T) {
			entries := readEntries(t, f)
			want := outcome(t, entries)
			for _, other := range orders(entries, 500) {
				if got := outcome(t, other); got != want {
					t.Fatalf("in another order\ngot  %s\nwant %s", got, want)
				}
			}
		})
	}
}

func readEntries(t *testing.T, file string) []timeline.Entry {
	in, err := os.Open(file)
	must(t, err)
	defer in.Close()
	r := timeline.NewReader(in, file, timeline.Options{})
	var out []timeline.Entry
	for {
		e, err := r.Next()
		if err != nil {
			return out
		}
		out = append(out, e)
	}
}

// orders returns up to limit other orders of the entries.
func orders(entries []timeline.Entry, limit int) [][]timeline.Entry {
	var out [][]timeline.Entry
	var build func(done, rest []timeline.Entry)
	build = func(done, rest []timeline.Entry) {
		if len(out) >= limit {
			return
		}
		if len(rest) == 0 {
			out = append(out, slices.Clone(done))
			return
		}
		n := 0
		for n < len(rest) && rest[n].Control == nil && rest[n].At == rest[0].At {
			n++
		}
		if n < 2 {
			build(append(slices.Clone(done), rest[0]), rest[1:])
			return
		}
		for i := range n {
			first := !slices.ContainsFunc(rest[:i], func(e timeline.Entry) bool { return objectOf(&e) == objectOf(&rest[i]) })
			if first {
				left := slices.Delete(slices.Clone(rest), i, i+1)
				build(append(slices.Clone(done), rest[i]), left)
			}
		}
	}
	build(nil, entries)
	return out
}

func objectOf(e *timeline.Entry) string {
	if e.Node != nil {
		return "node " + e.Node.GetName()
	}
	return "pod " + e.Pod.GetNamespace() + "/" + e.Pod.GetName()
}

// outcome plays entries, each event in a batch of its own, and describes the
// orders and what is open halfway and at the end.
func outcome(t *testing.T, entries []timeline.Entry) string {
	ctx := t.Context()
	d, err := replay.NewDriver(ctx, mem.New().Open, epoch, 3)
	must(t, err)
	defer d.Close(context.Background())
	var b strings.Builder
	for i := range entries {
		e := &entries[i]
		must(t, d.AdvanceTo(ctx, e.At))
		switch {
		case e.Control == nil:
			must(t, d.Apply(ctx, e.Cluster, wire.Event(e.Event())))
			// Not one batch: the order must not matter between batches either.
			must(t, d.AdvanceTo(ctx, e.At))
		default:
			playControl(t, d, e)
		}
	}
	describeOpen(t, d, &b)
	must(t, d.RunUntil(ctx, d.Now()+time.Hour))
	describeOpen(t, d, &b)
	all := d.Orders()
	slices.SortStableFunc(all, func(a, b replay.Order) int { return strings.Compare(a.UID, b.UID) })
	for _, o := range all {
		fmt.Fprintf(&b, "order %s at %s due %s; ", o.UID, o.At, o.Due)
	}
	return b.String()
}

func playControl(t *testing.T, d *replay.Driver, e *timeline.Entry) {
	ctx := t.Context()
	switch c := e.Control; c.Kind {
	case timeline.Synced:
		must(t, d.Synced(ctx, e.Cluster))
	case timeline.Restart:
		must(t, d.Restart(ctx, c.Down))
	case timeline.FeedLost:
		must(t, d.FeedLost(ctx, e.Cluster))
	case timeline.Pause:
		must(t, d.Pause(ctx, e.Cluster))
	case timeline.Resume:
		must(t, d.Resume(ctx, e.Cluster))
	case timeline.Executor:
		d.SetOutcome(e.Cluster, c.PodNamespace, c.PodName, engine.Outcome(c.Outcome))
	case timeline.Policy:
		fields, err := wire.PolicyFields(c.PolicyFields)
		must(t, err)
		must(t, d.SetPolicy(ctx, e.Cluster, wire.PolicyPatch(c.Policy, fields)))
	}
}

func describeOpen(t *testing.T, d *replay.Driver, b *strings.Builder) {
	page, err := d.Engine().List(t.Context(), engine.ListQuery{Limit: 1000})
	must(t, err)
	// The sequence tells which came first; the state must not depend on it.
	slices.SortFunc(page.Evictions, func(a, b *engine.EvictionRecord) int { return strings.Compare(a.UID, b.UID) })
	for _, e := range page.Evictions {
		fmt.Fprintf(b, "%s %s start %s due %s; ", e.UID, e.State, e.Cause.Start.Sub(epoch), e.Due.Sub(epoch))
	}
	b.WriteString("| ")
}

// TestForgetClusterLeavesNothingUnderWay forgets a cluster with orders waiting
// for an executor; the engine must settle, and stop, afterwards.
func TestForgetClusterLeavesNothingUnderWay(t *testing.T) {
	ctx := t.Context()
	d := newDriver(t, mem.New().Open)
	must(t, d.Apply(ctx, cluster, upsertNode("n", &mNode{uid: "node", taints: []mTaint{{key: "x"}}})))
	must(t, d.Apply(ctx, cluster, upsertPod(&mPod{namespace: "default", name: "p", uid: "u", node: "n", bound: epoch})))
	d.SetOutcome(cluster, "default", "p", engine.OutcomeNoAnswer)
	must(t, d.Synced(ctx, cluster))
	must(t, d.RunUntil(ctx, time.Second))
	must(t, d.Engine().ForgetCluster(ctx, cluster))
	for range 3 {
		// Timers of what is forgotten must do nothing.
		must(t, d.RunUntil(ctx, d.Now()+time.Minute))
	}
	if _, err := d.Engine().Cluster(ctx, cluster); err == nil {
		t.Fatal("the forgotten cluster is still there")
	}
	page, err := d.Engine().List(ctx, engine.ListQuery{Limit: 10})
	must(t, err)
	if len(page.Evictions) != 0 {
		t.Fatalf("evictions of a forgotten cluster: %v", page.Evictions)
	}
}
