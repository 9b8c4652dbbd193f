package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/store/mem"
)

const taintManager = "DeletionByTaintManager"

// lines counts the records of a log by their message's beginning.
type lines struct {
	slog.Handler
	warned []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		l.warned = append(l.warned, r.Message)
	}
	return nil
}

// beside is a bench whose cluster has another evictor.
func beside(t *testing.T, mode engine.Mode, data *mem.Data) (*bench, *lines) {
	log := &lines{Handler: slog.DiscardHandler}
	b := &bench{T: t, clock: clock.NewVirtual(epoch), sink: &sink{}, health: make(chan bool, 100)}
	b.eng = engine.New(engine.Options{
		Clock: b.clock, Open: data.Open, Shards: 2, FeedTimeout: -1, PruneEvery: -1, Logger: slog.New(log),
		ClusterPolicy: func(string) engine.PolicyPatch {
			return engine.PolicyPatch{Policy: engine.Policy{Mode: mode}, Fields: engine.PolicyMode}
		},
		Jitter:   func(d time.Duration) time.Duration { return d },
		OnHealth: func(serving bool, _ error) { b.health <- serving },
	})
	must(t, b.eng.Start(t.Context()))
	t.Cleanup(func() { b.eng.Stop(context.Background()) })
	return b, log
}

// feedNow feeds events at the present instant.
func (b *bench) feedNow(events ...engine.Event) {
	b.Helper()
	b.seq++
	must(b.T, b.feed.Batch(b.Context(), b.seq, events))
	b.settle()
}

func (b *bench) heartbeat() {
	b.Helper()
	b.seq++
	must(b.T, b.feed.Heartbeat(b.Context(), b.seq))
	b.settle()
}

// onNode is a pod that tolerates taint x for some seconds; none means not at all,
// negative for ever.
func onNode(name string, seconds int64) engine.Event {
	p := &mPod{namespace: "default", name: name, uid: "uid-" + name, node: "n", bound: epoch}
	switch {
	case seconds > 0:
		p.tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}
	case seconds < 0:
		p.tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}
	}
	return upsertPod(p)
}

// taken is the event with the taint manager's mark.
func taken(ev engine.Event) engine.Event {
	p := *ev.Pod
	p.DisruptionReason = taintManager
	ev.Pod = &p
	return ev
}

func finished(ev engine.Event) engine.Event {
	ev.Pod.Finished = true
	return ev
}

func gone(ev engine.Event) engine.Event {
	ev.Type = engine.EventDelete
	return ev
}

func tainted(keys ...string) engine.Event {
	n := &mNode{uid: "node"}
	for _, k := range keys {
		n.taints = append(n.taints, mTaint{key: k})
	}
	return upsertNode("n", n)
}

func (b *bench) status() *engine.ClusterStatus {
	b.Helper()
	st, err := b.eng.Cluster(b.Context(), cluster)
	must(b.T, err)
	return st
}

func (b *bench) warned() bool {
	return slices.ContainsFunc(b.status().Warnings, func(w string) bool { return strings.HasPrefix(w, "two evictors") })
}

func (b *bench) closed(uid string) []*engine.EvictionRecord {
	b.Helper()
	page, err := b.eng.History(b.Context(), engine.HistoryQuery{Cluster: cluster, UID: uid, Limit: 100})
	must(b.T, err)
	return page.Evictions
}

func TestTwoEvictorsAreTold(t *testing.T) {
	b, log := beside(t, engine.ModeEnforce, mem.New())
	b.list("a", "b", "c")
	if b.warned() {
		t.Fatal("warned before anything happened")
	}
	b.feedNow(taken(onNode("a", 10)))
	b.feedNow(taken(onNode("a", 10)))
	b.feedNow(gone(taken(onNode("b", 10))))
	st := b.status()
	if f := st.Foreign; f.Count != 2 || f.Total != 2 || f.Pod != "default/b" || !f.First.Equal(epoch) || !b.warned() {
		t.Fatalf("two pods were taken: %+v, %v", f, st.Warnings)
	}
	if w := strings.Join(st.Warnings, "\n"); !strings.Contains(w, ": 2 since") || !strings.Contains(w, "-taint-eviction-controller") {
		t.Fatalf("warnings %q", w)
	}
	b.advance(9 * time.Second)
	b.feedNow(taken(onNode("c", 10)))
	if len(log.warned) != 1 {
		t.Fatalf("%d log lines within 10 s, want 1", len(log.warned))
	}
	b.advance(time.Second)
	b.feedNow(taken(onNode("d", 10)))
	if len(log.warned) != 2 || b.status().Foreign.Count != 4 {
		t.Fatalf("%d log lines after 10 s; %+v", len(log.warned), b.status().Foreign)
	}
	b.advance(time.Hour - time.Second)
	if !b.warned() {
		t.Fatal("the warning ended within the hour")
	}
	b.advance(time.Second)
	if f := b.status().Foreign; b.warned() || f.Count != 0 || f.Total != 4 {
		t.Fatalf("an hour later: %+v", f)
	}
}

// TestOwnMarksAreNotForeign: executors set the same condition.
func TestOwnMarksAreNotForeign(t *testing.T) {
	b, _ := beside(t, engine.ModeEnforce, mem.New())
	x := b.attach("x", 5)
	b.list("evicted", "failed", "out")
	b.advance(10 * time.Second)
	for _, o := range b.sink.take() {
		switch o.Eviction.Pod {
		case "evicted":
			b.answer(x, o.Token, engine.OutcomeEvicted)
		case "failed":
			b.answer(x, o.Token, engine.OutcomeFailed)
		}
	}
	for _, p := range []string{"evicted", "failed", "out"} {
		b.feedNow(taken(onNode(p, 10)))
	}
	if f := b.status().Foreign; f.Total != 0 {
		t.Fatalf("our own marks were taken for another's: %+v", f)
	}
}

// TestMarksOfAListAreNoNews: they may be of any time.
func TestMarksOfAListAreNoNews(t *testing.T) {
	for _, mode := range []engine.Mode{engine.ModeEnforce, engine.ModeShadow} {
		b, _ := beside(t, mode, mem.New())
		b.list("a")
		ctx := t.Context()
		must(t, b.feed.SyncBegin(ctx, 4))
		must(t, b.feed.Batch(ctx, 5, []engine.Event{tainted("x"), taken(onNode("a", 10))}))
		must(t, b.feed.SyncEnd(ctx, 6))
		b.seq = 6
		b.feedNow(taken(onNode("a", 10)))
		if n := len(b.closed("uid-a")); b.status().Foreign.Total != 0 || n != 0 {
			t.Fatalf("%s: a mark that a list showed first counts: %+v, %d records", mode, b.status().Foreign, n)
		}
	}
}

// TestShadowRecordsTheOtherOnesDeletions walks the standings of a pod that the
// other controller deletes.
func TestShadowRecordsTheOtherOnesDeletions(t *testing.T) {
	huge := int64(9_300_000_000)
	for name, tc := range map[string]struct {
		pod      engine.Event
		before   []engine.Event
		standing engine.Standing
		due      time.Duration // from epoch; negative for none
	}{
		"it waits":          {onNode("p", 60), nil, engine.StandingLeaves, 60 * time.Second},
		"it was due":        {onNode("p", 3), nil, engine.StandingLeaves, 3 * time.Second},
		"tolerated":         {onNode("p", -1), nil, engine.StandingTolerated, -1},
		"overflow":          {onNode("p", huge), nil, engine.StandingOverflow, -1},
		"no taint":          {onNode("p", 60), []engine.Event{tainted()}, engine.StandingNoTaint, -1},
		"finished":          {onNode("p", 60), []engine.Event{finished(onNode("p", 60))}, engine.StandingFinished, -1},
		"node gone":         {onNode("p", 60), []engine.Event{{Type: engine.EventDelete, Node: &engine.Node{Name: "n", UID: "node"}}}, engine.StandingNodeUnknown, -1},
		"finished, unknown": {finished(onNode("p", 60)), []engine.Event{gone(onNode("p", 60))}, engine.StandingFinished, -1},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := beside(t, engine.ModeShadow, mem.New())
			b.list()
			b.feedNow(tc.pod)
			b.advance(5 * time.Second)
			if len(tc.before) > 0 {
				b.feedNow(tc.before...)
			}
			b.advance(time.Second)
			ev := taken(tc.pod)
			b.feedNow(ev)
			b.feedNow(ev)
			var got []*engine.EvictionRecord
			for _, r := range b.closed("uid-p") {
				if r.Observed != nil {
					got = append(got, r)
				}
			}
			if len(got) != 1 {
				t.Fatalf("%d records of the deletion, want one", len(got))
			}
			r := got[0]
			if r.CloseReason != engine.ClosePodDeleted || r.Observed.Reason != taintManager || !r.Observed.DeletedAt.Equal(epoch.Add(6*time.Second)) || r.Observed.Standing != tc.standing {
				t.Errorf("record %+v, observed %+v", r, r.Observed)
			}
			if due := r.Due.Sub(epoch); tc.due < 0 != r.Due.IsZero() || tc.due >= 0 && due != tc.due {
				t.Errorf("due %v, want %v", r.Due, tc.due)
			}
			if tc.standing != engine.StandingLeaves && r.Observed.Standing.String() == "" || b.warned() {
				t.Errorf("standing without words, or a warning in shadow mode")
			}
		})
	}
}

// TestMarkBeforeItsTaint: the pod's watch is ahead of the node's.
func TestMarkBeforeItsTaint(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprint("deleted ", deleted), func(t *testing.T) {
			b, _ := beside(t, engine.ModeShadow, mem.New())
			b.list()
			b.feedNow(onNode("p", 0), tainted())
			b.feedNow(taken(onNode("p", 0)))
			if deleted {
				b.feedNow(gone(onNode("p", 0)))
			}
			b.advance(100 * time.Millisecond)
			b.heartbeat()
			b.feedNow(tainted("x"))
			b.advance(time.Minute)
			r := b.closed("uid-p")
			if len(r) != 2 || r[0].Observed == nil || r[0].Observed.Standing != engine.StandingLeaves ||
				!r[0].Due.Equal(epoch.Add(100*time.Millisecond)) || !r[0].Observed.DeletedAt.Equal(epoch) {
				t.Fatalf("records after the taint came: %+v", r)
			}
			if r[1].Observed.Standing != engine.StandingNoTaint {
				t.Fatalf("the record before it: %+v", r[1].Observed)
			}
		})
	}
	b, _ := beside(t, engine.ModeShadow, mem.New())
	b.list()
	b.feedNow(onNode("p", 0), tainted())
	b.feedNow(taken(onNode("p", 0)))
	b.advance(11 * time.Second)
	b.heartbeat()
	b.feedNow(tainted("x"))
	if n := len(b.closed("uid-p")); n != 1 {
		t.Fatalf("a taint 11 s later explains the deletion: %d records", n)
	}
}

// TestObservedPodIsNotOpenedAgain until it had time to go.
func TestObservedPodIsNotOpenedAgain(t *testing.T) {
	b, _ := beside(t, engine.ModeShadow, mem.New())
	b.list("a")
	b.feedNow(taken(onNode("a", 10)))
	b.feedNow(onNode("a", 20))
	if page, err := b.eng.List(t.Context(), engine.ListQuery{Limit: 1}); err != nil || len(page.Evictions) != 0 {
		t.Fatalf("%v, %v", page, err)
	}
	b.advance(61 * time.Second)
	b.heartbeat()
	b.advance(0)
	if r := b.closed("uid-a"); len(r) != 2 || r[0].CloseReason != engine.CloseWouldEvict {
		t.Fatalf("a minute later the pod is still there: %+v", r)
	}
}

// TestFirstDueIsKept over changes and a restart.
func TestFirstDueIsKept(t *testing.T) {
	data := mem.New()
	b, _ := beside(t, engine.ModeShadow, data)
	b.list("a")
	b.feedNow(onNode("a", 60))
	b.feedNow(onNode("a", 40))
	if e := b.only(); !e.FirstDue.Equal(epoch.Add(10*time.Second)) || !e.Due.Equal(epoch.Add(40*time.Second)) {
		t.Fatalf("%+v", e)
	}
	b.eng.Stop(context.Background())
	b, _ = beside(t, engine.ModeShadow, data)
	if e := b.only(); !e.FirstDue.Equal(epoch.Add(10 * time.Second)) {
		t.Fatalf("after a restart: %+v", e)
	}
}

// TestOwnMarkAfterARestart: the order may have left before it.
func TestOwnMarkAfterARestart(t *testing.T) {
	data := mem.New()
	b, _ := beside(t, engine.ModeEnforce, data)
	b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	if n := len(b.sink.take()); n != 1 {
		t.Fatalf("%d orders", n)
	}
	b.eng.Stop(context.Background())
	b, _ = beside(t, engine.ModeEnforce, data)
	b.list("a", "b")
	b.feedNow(taken(onNode("a", 10)), taken(onNode("b", 10)))
	if f := b.status().Foreign; f.Total != 1 || f.Pod != "default/b" {
		t.Fatalf("%+v", f)
	}
}

// TestI10Mark: a mark and the taint behind it, in either order within an
// instant, end in the same open state.
func TestI10Mark(t *testing.T) {
	for _, first := range []string{"taint", "mark"} {
		b, _ := beside(t, engine.ModeShadow, mem.New())
		b.list()
		b.feedNow(onNode("p", 10), tainted())
		b.advance(time.Second)
		events := []engine.Event{tainted("x"), taken(onNode("p", 10))}
		if first == "mark" {
			slices.Reverse(events)
		}
		b.feedNow(events[0])
		b.feedNow(events[1])
		page, err := b.eng.List(t.Context(), engine.ListQuery{Limit: 1})
		must(t, err)
		r := b.closed("uid-p")
		if len(page.Evictions) != 0 || len(r) == 0 || !r[0].Due.Equal(epoch.Add(11*time.Second)) || r[0].Observed.Standing != engine.StandingLeaves {
			t.Fatalf("I10: %s first: %d open, records %+v", first, len(page.Evictions), r)
		}
		if r[0].Early() {
			t.Fatal("a deletion by another controller counts as cancelled early")
		}
	}
}
