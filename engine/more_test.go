package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/store/mem"
	"github.com/reprieve-dev/reprieve/store/storetest"
)

func tol(key string, op corev1.TolerationOperator, value string, seconds int64) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: op, Value: value, TolerationSeconds: &seconds}
}

// TestExplainWarns explains a pod whose first toleration hides a longer one and
// whose comparison matches nothing.
func TestExplainWarns(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list()
	ctx := t.Context()
	p := &mPod{namespace: "default", name: "a", uid: "uid-a", node: "n", bound: epoch, tolerations: []corev1.Toleration{
		tol("x", corev1.TolerationOpExists, "", 5), tol("", corev1.TolerationOpExists, "", 600), tol("x", corev1.TolerationOpGt, "7", 60),
	}}
	must(t, b.feed.Batch(ctx, 4, []engine.Event{upsertPod(p), upsertNode("n", &mNode{uid: "node", taints: []mTaint{{key: "x"}, {key: "y"}}})}))
	b.settle()
	x, err := b.eng.Explain(ctx, cluster, engine.PodRef{UID: "uid-a"})
	must(t, err)
	text := strings.Join(append(x.Warnings, x.Change...), "\n")
	for _, want := range []string{
		"toleration 0 (x Exists for 5s) hides toleration 1 (any key Exists for 10m0s) for taint x:NoExecute",
		`toleration 2 (x Gt "7" for 1m0s) matches nothing: the policy has comparison_operators off`,
		"removing taint x:NoExecute from node n would move it to 2026-01-01T00:10:00Z (taint y:NoExecute)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	p.finished = true
	must(t, b.feed.Batch(ctx, 5, []engine.Event{upsertPod(p)}))
	b.settle()
	x, err = b.eng.Explain(ctx, cluster, engine.PodRef{UID: "uid-a"})
	must(t, err)
	if x.Decision.Exempt != engine.ExemptFinished || x.Change[0] != "nothing while the pod has finished" {
		t.Errorf("%+v", x.Change)
	}
}

// TestSilentFeedIsLost lets a feed fall silent for longer than the timeout.
func TestSilentFeedIsLost(t *testing.T) {
	s := &sink{}
	c := clock.NewVirtual(epoch)
	eng := engine.New(engine.Options{Clock: c, Open: mem.New().Open, FeedTimeout: 30 * time.Second, PruneEvery: -1})
	must(t, eng.Start(t.Context()))
	defer eng.Stop(context.Background())
	b := &bench{T: t, clock: c, eng: eng, sink: s}
	b.list("a")
	b.advance(29 * time.Second)
	must(t, b.feed.Heartbeat(t.Context(), 4))
	b.settle()
	b.advance(29 * time.Second)
	st, err := eng.Cluster(t.Context(), cluster)
	if err != nil || st.Sync != engine.SyncLive {
		t.Fatalf("29 s after the heartbeat: %s, %v", st.Sync, err)
	}
	b.advance(2 * time.Second)
	st, err = eng.Cluster(t.Context(), cluster)
	if err != nil || st.Sync != engine.SyncLost || !st.Record.LastLiveAt.Equal(epoch.Add(29*time.Second)) {
		t.Fatalf("31 s after the heartbeat: %s, last live %s, %v", st.Sync, st.Record.LastLiveAt, err)
	}
	if len(s.ended) != 1 || !errors.Is(s.ended[0], engine.ErrFeedSilent) {
		t.Fatalf("the feed ended with %v", s.ended)
	}
}

// rewriting is a store whose clusters are loaded as edit makes them.
type rewriting struct {
	engine.Store
	edit func(*engine.LoadedCluster)
}

type rewritingVisitor struct {
	engine.Visitor
	edit func(*engine.LoadedCluster)
}

func (v rewritingVisitor) Cluster(l engine.LoadedCluster) error {
	v.edit(&l)
	return v.Visitor.Cluster(l)
}

func (r rewriting) Load(ctx context.Context, v engine.Visitor) error {
	return r.Store.Load(ctx, rewritingVisitor{v, r.edit})
}

// damaging opens a store whose cluster records cannot be read.
func damaging(data *mem.Data) engine.StoreOpener {
	return func(ctx context.Context) (engine.Store, error) {
		s, err := data.Open(ctx)
		return rewriting{s, func(l *engine.LoadedCluster) {
			*l = engine.LoadedCluster{Record: engine.ClusterRecord{Name: l.Record.Name}, LastSeq: l.LastSeq, Damaged: true}
		}}, err
	}
}

// TestDamagedRecordStaysOnDisk: a feed goes on writing times into the record of
// its cluster, but not over a damaged one, which a restart would then take for a
// whole one with the operator's policy and pauses gone.
func TestDamagedRecordStaysOnDisk(t *testing.T) {
	data := mem.New()
	first := newBench(t, data.Open)
	first.list("a")
	_, err := first.eng.Pause(t.Context(), cluster, engine.Pause{Reason: "stays"})
	must(t, err)
	first.eng.Stop(context.Background())
	want := onDisk(t, data).Clusters[0].LoadedCluster
	b := newBench(t, damaging(data))
	b.list("a")
	b.advance(5 * time.Second)
	must(t, b.feed.Heartbeat(t.Context(), 4))
	b.settle()
	b.eng.Stop(context.Background())
	if diff := storetest.Diff(want, onDisk(t, data).Clusters[0].LoadedCluster); diff != "" {
		t.Errorf("the damaged record was written over (-before +after):\n%s", diff)
	}
}

// TestDamagedClusterHoldsUntilItsPolicyIsSet restarts on a damaged cluster
// record: the waits are there, nothing is sent, and setting the policy adopts
// the cluster anew, with whole waits.
func TestDamagedClusterHoldsUntilItsPolicyIsSet(t *testing.T) {
	data := mem.New()
	first := newBench(t, data.Open)
	first.list("a")
	first.eng.Stop(context.Background())
	b := newBench(t, damaging(data))
	b.attach("x", 5)
	b.list("a")
	b.advance(100 * time.Second)
	if e := b.only(); e.Hold != engine.HoldRecordDamaged || len(b.sink.take()) != 0 {
		t.Fatalf("%+v", e)
	}
	ctx := t.Context()
	if _, err := b.eng.Pause(ctx, cluster, engine.Pause{Reason: "test"}); !errors.Is(err, engine.ErrClusterDamaged) {
		t.Fatalf("pausing: %v", err)
	}
	st, err := b.eng.Clusters(ctx, nil)
	if err != nil || len(st) != 1 || !strings.Contains(strings.Join(st[0].Warnings, ";"), "record on disk is damaged") {
		t.Fatalf("status %+v, %v", st, err)
	}
	_, err = b.eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeEnforce}, Fields: engine.PolicyMode}})
	must(t, err)
	b.advance(9 * time.Second)
	if n := len(b.sink.take()); n != 0 {
		t.Fatalf("%d orders before the whole wait after the repair", n)
	}
	b.advance(2 * time.Second)
	if n := len(b.sink.take()); n != 1 {
		t.Fatalf("%d orders after the repair and the wait", n)
	}
}

// TestGoneIsNotOrderedAgainAtOnce answers GONE while the feed goes on showing the pod.
func TestGoneIsNotOrderedAgainAtOnce(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	b.answer(x, b.sink.take()[0].Token, engine.OutcomeGone)
	for seq := uint64(4); seq < 8; seq++ {
		must(t, b.feed.Heartbeat(t.Context(), seq))
		b.advance(10 * time.Second)
	}
	// An event of the pod is no reason either.
	must(t, b.feed.Batch(t.Context(), 8, []engine.Event{upsertPod(&mPod{namespace: "default", name: "a", uid: "uid-a", node: "n", bound: epoch})}))
	b.settle()
	b.advance(10 * time.Second)
	if n := len(b.sink.take()); n != 0 {
		t.Fatalf("%d orders within a minute of GONE", n)
	}
	b.advance(11 * time.Second)
	must(t, b.feed.Heartbeat(t.Context(), 9))
	b.settle()
	b.advance(0)
	if n := len(b.sink.take()); n != 1 {
		t.Fatalf("%d orders after a minute in which the feed still shows the pod", n)
	}
}

// TestDrainHandsBack drains an executor: no new orders, answers still count.
func TestDrainHandsBack(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 1)
	b.list("a", "b")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	x.Drain()
	if !b.answer(x, token, engine.OutcomeRecalled) {
		t.Fatal("the answer of a draining executor was refused")
	}
	b.advance(time.Minute)
	if n := len(b.sink.take()); n != 0 {
		t.Fatalf("%d orders to a draining executor", n)
	}
	st, err := b.eng.Cluster(t.Context(), cluster)
	must(t, err)
	if st.Holds[engine.HoldNoExecutor] != 2 {
		t.Fatalf("holds %v, want two NO_EXECUTOR", st.Holds)
	}
	page, err := b.eng.List(t.Context(), engine.ListQuery{Limit: 5, Holds: []engine.Hold{engine.HoldNoExecutor}, Namespace: "default", States: []engine.State{engine.StateDue}})
	if err != nil || len(page.Evictions) != 2 {
		t.Fatalf("listed by hold: %v, %v", page.Evictions, err)
	}
	for _, q := range []engine.ListQuery{
		{Limit: 5, Namespace: "other"}, {Limit: 5, Pod: "z"}, {Limit: 5, UID: "z"}, {Limit: 5, Requester: "nobody"},
		{Limit: 5, Holds: []engine.Hold{engine.HoldPaused}}, {Limit: 5, States: []engine.State{engine.StateWaiting}}, {Limit: 5, DueBefore: epoch}, {Limit: 5, Allowed: func(string) bool { return false }},
	} {
		if page, err := b.eng.List(t.Context(), q); err != nil || len(page.Evictions) != 0 {
			t.Errorf("%+v lists %v, %v", q, page.Evictions, err)
		}
	}
	b.advance(time.Second)
	st, err = b.eng.Cluster(t.Context(), cluster)
	must(t, err)
	if !slices.Contains(st.Warnings, "the oldest due eviction is 1m1s late") || !st.OldestDue.Equal(epoch.Add(10*time.Second)) {
		t.Errorf("warnings %q, oldest %s", st.Warnings, st.OldestDue)
	}
}

// TestTolerationChangeRecallsWhatIsOut lengthens the wait of a pod whose order is out.
func TestTolerationChangeRecallsWhatIsOut(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	b.advance(10 * time.Second)
	token := b.sink.take()[0].Token
	p := &mPod{namespace: "default", name: "a", uid: "uid-a", node: "n", bound: epoch,
		tolerations: []corev1.Toleration{tol("x", corev1.TolerationOpExists, "", 300)}}
	must(t, b.feed.Batch(t.Context(), 4, []engine.Event{
		upsertPod(p), {Type: engine.EventUpsert},
		{Type: engine.EventDelete, Pod: &engine.Pod{UID: "stranger"}}, {Type: engine.EventDelete, Node: &engine.Node{Name: "stranger", UID: "s"}},
	}))
	b.settle()
	if len(b.sink.recalls) != 1 || b.sink.recalls[0].Reason != engine.RecallCancelled {
		t.Fatalf("recalls %+v", b.sink.recalls)
	}
	b.answer(x, token, engine.OutcomeRecalled)
	if e := b.only(); e.State != engine.StateWaiting || !e.Due.Equal(epoch.Add(300*time.Second)) {
		t.Fatalf("%+v", e)
	}
	h, err := b.eng.History(t.Context(), engine.HistoryQuery{Cluster: cluster, Limit: 5})
	must(t, err)
	if len(h.Evictions) != 1 || h.Evictions[0].CancelCause != engine.CancelToleration {
		t.Fatalf("history %+v", h.Evictions)
	}
	st, err := b.eng.Cluster(t.Context(), cluster)
	must(t, err)
	if st.Ignored["unknown_uid"] != 2 || st.Ignored["unknown_kind"] != 1 {
		t.Fatalf("ignored %v", st.Ignored)
	}
}

// TestHistoryIsPruned lets closed evictions grow old.
func TestHistoryIsPruned(t *testing.T) {
	data := mem.New()
	c := clock.NewVirtual(epoch)
	start := func() *bench {
		eng := engine.New(engine.Options{
			Clock: c, Open: data.Open, FeedTimeout: -1, PruneEvery: time.Minute,
			HistoryQuotas: engine.HistoryQuotas{SentAge: time.Hour, SentCount: 10, EarlyAge: 90 * time.Second, EarlyCount: 10},
		})
		must(t, eng.Start(t.Context()))
		t.Cleanup(func() { eng.Stop(context.Background()) })
		return &bench{T: t, clock: c, eng: eng, sink: &sink{}}
	}
	b := start()
	b.list("a")
	must(t, b.feed.Batch(t.Context(), 4, []engine.Event{upsertNode("n", &mNode{uid: "node"})}))
	b.settle()
	closed := func() int {
		h, err := b.eng.History(t.Context(), engine.HistoryQuery{Cluster: cluster, Limit: 5})
		must(t, err)
		return len(h.Evictions)
	}
	b.advance(time.Minute)
	if n := closed(); n != 1 {
		t.Fatalf("%d closed evictions within the quota's age, want one", n)
	}
	// Of a cluster whose feed does not come back, too.
	b.eng.Stop(context.Background())
	b = start()
	b.advance(3 * time.Minute)
	if n := closed(); n != 0 {
		t.Fatalf("%d closed evictions after the quota's age", n)
	}
}

// TestBudgetWaitRunsFromTheDueInstant lets a budget refuse: each order has what
// is left of the wait, and the last back-off ends when the wait does.
func TestBudgetWaitRunsFromTheDueInstant(t *testing.T) {
	b := newBench(t, mem.New().Open)
	x := b.attach("x", 5)
	b.list("a")
	method := func(m engine.Method) {
		_, err := b.eng.SetPolicy(t.Context(), cluster, engine.PolicyUpdate{Patch: engine.PolicyPatch{
			Policy: engine.Policy{Method: m, BudgetWait: 25 * time.Second}, Fields: engine.PolicyMethod | engine.PolicyBudgetWait,
		}})
		must(t, err)
	}
	method(engine.MethodEvictThenDelete)
	b.advance(10 * time.Second)
	for _, want := range []struct{ after, left time.Duration }{
		{0, 25 * time.Second},
		{10 * time.Second, 15 * time.Second},
		{20 * time.Second, 5 * time.Second},
		{25 * time.Second, 0},
		{26 * time.Second, 0},
	} {
		b.advance(epoch.Add(10*time.Second + want.after).Sub(b.clock.Now()))
		orders := b.sink.take()
		if len(orders) != 1 || orders[0].Method != engine.MethodEvictThenDelete || orders[0].BudgetWait != want.left {
			t.Fatalf("%s after the due instant: %+v, want one order with %s left", want.after, orders, want.left)
		}
		if sent := orders[0].Eviction.LastSentAt; !sent.Equal(b.clock.Now()) {
			t.Fatalf("%s after the due instant: the order left at %s already", want.after, sent)
		}
		b.answer(x, orders[0].Token, engine.OutcomeBlocked)
	}
	method(engine.MethodEvict)
	b.advance(time.Second)
	order := b.sink.take()[0]
	if order.BudgetWait != 0 {
		t.Fatalf("budget wait of %s for a method that has none", order.BudgetWait)
	}
	b.answer(x, order.Token, engine.OutcomeBlocked)
	if e := b.only(); !e.NotBefore.Equal(b.clock.Now().Add(10 * time.Second)) {
		t.Fatalf("backs off until %s at %s", e.NotBefore, b.clock.Now())
	}
}

// TestRequestsReturnWhatIsOnDisk asks for an eviction and takes that back: each
// answer is the record as it was committed.
func TestRequestsReturnWhatIsOnDisk(t *testing.T) {
	b := newBench(t, mem.New().Open)
	b.list("a")
	ctx := t.Context()
	free := &mPod{namespace: "default", name: "free", uid: "uid-free", node: "n", bound: epoch, tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
	must(t, b.feed.Batch(ctx, 4, []engine.Event{upsertPod(free)}))
	b.settle()
	for uid, state := range map[string]engine.State{"uid-a": engine.StateWaiting, "uid-free": engine.StateClosed} {
		asked, err := b.eng.RequestEviction(ctx, engine.EvictionRequest{
			Cluster: cluster, ID: uid, Requester: "me", Pod: engine.PodRef{UID: uid}, NotBefore: epoch.Add(time.Hour),
		})
		must(t, err)
		before, err := b.eng.Get(ctx, engine.EvictionID(cluster, asked.Seq))
		if err != nil || before.Revision != asked.Revision {
			t.Errorf("%s: asked for at revision %d, on disk at %d, %v", uid, asked.Revision, before.Revision, err)
		}
		withdrawn, err := b.eng.WithdrawEviction(ctx, cluster, "me", uid)
		must(t, err)
		stored, err := b.eng.Get(ctx, engine.EvictionID(cluster, asked.Seq))
		must(t, err)
		if withdrawn.State != state || withdrawn.Revision <= asked.Revision || withdrawn.Revision != stored.Revision || withdrawn.Seq != asked.Seq {
			t.Errorf("%s: asked for at revision %d; withdrawn is %+v; on disk at revision %d", uid, asked.Revision, withdrawn, stored.Revision)
		}
		if state == engine.StateClosed && (withdrawn.ClosedAt.IsZero() || withdrawn.CloseReason != engine.CloseCancelled || withdrawn.CancelCause != engine.CancelRequestWithdrawn) {
			t.Errorf("%s: closed as %+v", uid, withdrawn)
		}
	}
}

// TestWarnsOfItself runs the engine in a pod of the cluster: it warns while that
// pod lives there and the mode is ENFORCE.
func TestWarnsOfItself(t *testing.T) {
	eng := engine.New(engine.Options{Clock: clock.NewVirtual(epoch), Open: mem.New().Open, FeedTimeout: -1, PruneEvery: -1, SelfPodUID: "uid-a"})
	must(t, eng.Start(t.Context()))
	defer eng.Stop(context.Background())
	b := &bench{T: t, eng: eng, sink: &sink{}}
	b.list("a", "b")
	ctx := t.Context()
	warned := func(want bool) {
		t.Helper()
		st, err := eng.Cluster(ctx, cluster)
		must(t, err)
		got := slices.ContainsFunc(st.Warnings, func(w string) bool {
			return strings.Contains(w, "this service runs in pod default/a with UID uid-a of this cluster")
		})
		if got != want || st.EvictsSelf() != want {
			t.Fatalf("evicts itself: %v, warnings %q; want %v", st.EvictsSelf(), st.Warnings, want)
		}
	}
	mode := func(m engine.Mode) {
		_, err := eng.SetPolicy(ctx, cluster, engine.PolicyUpdate{Patch: engine.PolicyPatch{Policy: engine.Policy{Mode: m}, Fields: engine.PolicyMode}})
		must(t, err)
	}
	warned(false)
	mode(engine.ModeEnforce)
	warned(true)
	mode(engine.ModeShadow)
	warned(false)
	mode(engine.ModeEnforce)
	must(t, b.feed.Batch(ctx, 4, []engine.Event{upsertPod(&mPod{namespace: "default", name: "a", uid: "uid-a", node: "n", bound: epoch, terminating: true})}))
	b.settle()
	warned(false)
}
