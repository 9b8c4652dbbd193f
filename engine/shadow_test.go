package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/mem"
)

func (b *bench) report(edit func(*engine.ShadowQuery)) *engine.ShadowReport {
	b.Helper()
	b.settle()
	q := engine.ShadowQuery{Cluster: cluster, Tolerance: 2 * time.Second, MaxDifferences: 100}
	if edit != nil {
		edit(&q)
	}
	r, err := b.eng.ShadowReport(b.Context(), q)
	must(b.T, err)
	return r
}

// at moves to a time from the epoch and feeds events there.
func (b *bench) at(s float64, events ...engine.Event) {
	b.Helper()
	b.advance(epoch.Add(time.Duration(s * float64(time.Second))).Sub(b.clock.Now()))
	if len(events) > 0 {
		b.feedNow(events...)
	}
}

// untaintedNode begins every scenario whose taint is to be one that comes while synced.
func (b *bench) untaintedNode() {
	b.list()
	b.at(1, tainted())
	b.at(2)
}

func withTolerations(name string, list ...corev1.Toleration) engine.Event {
	return upsertPod(&mPod{namespace: "default", name: name, uid: "uid-" + name, node: "n", bound: epoch, tolerations: list})
}

func tolerates(key string, seconds int64) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}
}

// TestShadowReasons has one scenario for each reason: what the other controller
// does is what the built-in one would.
func TestShadowReasons(t *testing.T) {
	const E, L, H, O = engine.DifferenceEarlier, engine.DifferenceLater, engine.DifferenceOnlyHere, engine.DifferenceOnlyElsewhere
	for name, tc := range map[string]struct {
		play   func(b *bench)
		kind   engine.DifferenceKind
		reason engine.DifferenceReason
		says   string
	}{
		"the default toleration": {func(b *bench) {
			b.untaintedNode()
			b.at(3, tainted(notReady), onNode("p", 0))
			b.at(4, taken(onNode("p", 0)))
		}, E, engine.ReasonDefaultToleration, "default gave it 5m0s"},
		"a wait made longer": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(5, onNode("p", 60))
			b.at(12, taken(onNode("p", 60)))
		}, E, engine.ReasonTolerationChanged, "moved from 2026"},
		"a wait made shorter": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 60))
			b.at(5, onNode("p", 20))
			b.at(62, taken(onNode("p", 20)))
		}, L, engine.ReasonTolerationChanged, "moved from 2026"},
		"a wait made shorter, the other's running": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 600))
			b.at(5, onNode("p", 20))
			b.at(100)
		}, H, engine.ReasonTolerationChanged, "yet to come"},
		"not-ready became unreachable": {func(b *bench) {
			pod := withTolerations("p", tolerates(notReady, 20), tolerates(unreachable, 60))
			b.untaintedNode()
			b.at(2, tainted(notReady), pod)
			b.at(12, tainted(unreachable))
			b.at(22, taken(pod))
		}, E, engine.ReasonTaintSwap, "unreachable:NoExecute came at"},
		"a finished pod": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), finished(onNode("p", 10)))
			b.at(12, taken(finished(onNode("p", 10))))
		}, O, engine.ReasonNotASubject, "finished"},
		"a deleted node": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(5, engine.Event{Type: engine.EventDelete, Node: &engine.Node{Name: "n", UID: "node"}})
			b.at(12, taken(onNode("p", 10)))
		}, O, engine.ReasonNodeGone, "node object"},
		"adoption": {func(b *bench) {
			b.list("p")
			b.at(4, taken(onNode("p", 10)))
		}, E, engine.ReasonAdoption, "adopted"},
		"an overflow": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 9_300_000_000))
			b.at(3, taken(onNode("p", 9_300_000_000)))
		}, O, engine.ReasonTolerationOverflow, "for ever"},
		"an ignored key": {func(b *bench) {
			b.untaintedNode()
			_, err := b.eng.SetPolicy(b.Context(), cluster, engine.PolicyUpdate{Patch: engine.PolicyPatch{
				Policy: engine.Policy{IgnoredTaintKeys: []string{"x"}}, Fields: engine.PolicyIgnoredTaintKeys}})
			must(b.T, err)
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(12, taken(onNode("p", 10)))
		}, O, engine.ReasonPolicy, "ignores"},
		"due just now": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(13)
		}, H, engine.ReasonNotDeletedYet, "tolerance"},
		"due long ago": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(15)
		}, H, engine.ReasonUnexplained, "still there, 3s after"},
		"gone unseen": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(13, gone(onNode("p", 10)))
		}, H, engine.ReasonUnexplained, "gone"},
		"earlier for no reason": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(5, taken(onNode("p", 10)))
		}, E, engine.ReasonUnexplained, "due 10s after x:NoExecute"},
		"later, and alone": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", 10))
			b.at(17, taken(onNode("p", 10)))
		}, L, engine.ReasonUnexplained, "as if its wait of 10s"},
		"no taint": {func(b *bench) {
			b.untaintedNode()
			b.at(2, onNode("p", 10))
			b.at(17, taken(onNode("p", 10)))
		}, O, engine.ReasonUnexplained, "no NoExecute taint"},
		"tolerated": {func(b *bench) {
			b.untaintedNode()
			b.at(2, tainted("x"), onNode("p", -1))
			b.at(17, taken(onNode("p", -1)))
		}, O, engine.ReasonUnexplained, "for ever"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := beside(t, engine.ModeShadow, mem.New())
			tc.play(b)
			r := b.report(nil)
			if len(r.Differences) != 1 {
				t.Fatalf("%d differences, want one; %+v", len(r.Differences), r)
			}
			d := r.Differences[0]
			if d.Kind != tc.kind || d.Reason != tc.reason || !strings.Contains(d.Explanation, tc.says) || r.Reasons[tc.reason] != 1 {
				t.Errorf("%s %s %q; want %s %s %q", d.Kind, d.Reason, d.Explanation, tc.kind, tc.reason, tc.says)
			}
			if share, ok := r.Agreement(); share != 0 || ok != (tc.reason != engine.ReasonNotDeletedYet) {
				t.Errorf("agreement %v %v", share, ok)
			}
		})
	}
}

// TestShadowRestart: the other controller begins every wait again at 12 s.
func TestShadowRestart(t *testing.T) {
	b, _ := beside(t, engine.ModeShadow, mem.New())
	b.untaintedNode()
	later := func() engine.Event {
		e := onNode("later", 20)
		e.Pod.BoundAt = epoch.Add(7 * time.Second)
		return e
	}
	b.at(2, tainted("x"), onNode("first", 30))
	b.at(7, later())
	b.at(32, taken(later()))
	b.at(42, taken(onNode("first", 30)))
	r := b.report(nil)
	if r.Totals.Later != 2 || r.Reasons[engine.ReasonWaitRestarted] != 2 || r.P50 != 5*time.Second || r.Max != 10*time.Second {
		t.Fatalf("%+v", r)
	}
	// One that is late by the same for all is no restart, whatever their waits.
	b, _ = beside(t, engine.ModeShadow, mem.New())
	b.untaintedNode()
	b.at(2, tainted("x"), onNode("short", 10), onNode("long", 30))
	b.at(17, taken(onNode("short", 10)))
	b.at(37, taken(onNode("long", 30)))
	if r := b.report(nil); r.Totals.Later != 2 || r.Reasons[engine.ReasonUnexplained] != 2 || r.P50 != 5*time.Second {
		t.Fatalf("%+v", r)
	}
	// A controller that is slow is no restart, however many pods it is late for.
	b, _ = beside(t, engine.ModeShadow, mem.New())
	b.untaintedNode()
	events := []engine.Event{tainted("x")}
	for i := range 20 {
		events = append(events, onNode(fmt.Sprint("p", i), 10))
	}
	b.at(2, events...)
	for i := range 20 {
		b.at(15+float64(i)/5, taken(onNode(fmt.Sprint("p", i), 10)))
	}
	if r := b.report(nil); r.Totals.Later != 20 || r.Reasons[engine.ReasonUnexplained] != 20 {
		t.Fatalf("%+v", r)
	}
}

func TestShadowTotals(t *testing.T) {
	data := mem.New()
	b, _ := beside(t, engine.ModeShadow, data)
	b.untaintedNode()
	events := []engine.Event{tainted("x"), onNode("never", 10), onNode("early", 60), onNode("asked", 10), onNode("wanted", 60), onNode("stays", -1)}
	for i := range 95 {
		events = append(events, onNode(fmt.Sprint("p", i), 10))
	}
	b.at(2, events...)
	for pod, s := range map[string]int{"asked": 3, "wanted": 30} {
		_, err := b.eng.RequestEviction(t.Context(), engine.EvictionRequest{
			Cluster: cluster, ID: pod, Requester: "q", Reason: "test", Pod: engine.PodRef{UID: "uid-" + pod}, NotBefore: epoch.Add(time.Duration(s) * time.Second),
		})
		must(t, err)
	}
	b.at(11, taken(onNode("p0", 10)), taken(onNode("early", 60)))
	for i := 1; i < 95; i++ {
		b.at(12+float64(i)/100, taken(onNode(fmt.Sprint("p", i), 10)))
	}
	b.at(13, taken(onNode("asked", 10)))
	// A request made it due before its taint would have: no other controller knows of that.
	b.at(20, taken(onNode("wanted", 60)), taken(onNode("stays", -1)))
	check := func(when string, r *engine.ShadowReport) {
		t.Helper()
		want := engine.ShadowTotals{WouldEvict: 98, EvictedElsewhere: 98, Agreed: 96, Earlier: 1, OnlyHere: 1, OnlyElsewhere: 1}
		share, ok := r.Agreement()
		if r.Totals != want || !ok || share < 0.969 || share > 0.970 || r.P50 != 490*time.Millisecond || r.P99 != 51*time.Second || r.Max != 51*time.Second {
			t.Fatalf("%s: %+v, agreement %v", when, r, share)
		}
		if d := r.Differences; len(d) != 3 || d[0].Pod != "early" || d[1].Pod != "never" || d[2].Pod != "stays" {
			t.Fatalf("%s: differences %+v", when, d)
		}
	}
	check("at once", b.report(nil))
	b.eng.Stop(context.Background())
	b, _ = beside(t, engine.ModeShadow, data)
	b.clock.Set(epoch.Add(time.Minute))
	if r := b.report(nil); r.Totals.Agreed != 96 || r.Totals.Earlier != 1 || r.Totals.OnlyElsewhere != 1 {
		t.Fatalf("after a restart: %+v", r)
	}
	r := b.report(func(q *engine.ShadowQuery) { q.MaxDifferences = 1; q.Tolerance = 0 })
	if len(r.Differences) != 1 || !r.DifferencesTruncated || r.Totals.Agreed != 0 || r.Totals.Later != 95 {
		t.Fatalf("cut: %+v", r)
	}
	r = b.report(func(q *engine.ShadowQuery) {
		q.Since = epoch.Add(19 * time.Second)
		q.Until = epoch.Add(21 * time.Second)
	})
	if r.Totals != (engine.ShadowTotals{EvictedElsewhere: 1, OnlyElsewhere: 1}) {
		t.Fatalf("a part of the time: %+v", r.Totals)
	}
	_, err := b.eng.ShadowReport(t.Context(), engine.ShadowQuery{Cluster: cluster, Since: epoch.Add(time.Hour), Until: epoch, MaxDifferences: 1})
	if !errors.Is(err, engine.ErrInvalid) {
		t.Fatalf("since after until: %v", err)
	}
	if _, err = b.eng.ShadowReport(t.Context(), engine.ShadowQuery{Cluster: "none", MaxDifferences: 1}); !errors.Is(err, engine.ErrClusterUnknown) {
		t.Fatalf("an unknown cluster: %v", err)
	}
}

// TestShadowLeavesOwnEvictionsOut: after the mode became ENFORCE nobody else deletes them.
func TestShadowLeavesOwnEvictionsOut(t *testing.T) {
	b, _ := beside(t, engine.ModeShadow, mem.New())
	x := b.attach("x", 5)
	b.untaintedNode()
	b.at(2, tainted("x"), onNode("p", 10))
	b.at(20)
	if r := b.report(nil); r.Totals.OnlyHere != 1 {
		t.Fatalf("before: %+v", r)
	}
	_, err := b.eng.SetPolicy(t.Context(), cluster, engine.PolicyUpdate{Patch: engine.PolicyPatch{Policy: engine.Policy{Mode: engine.ModeEnforce}, Fields: engine.PolicyMode}})
	must(t, err)
	b.advance(time.Second)
	for _, o := range b.sink.take() {
		b.answer(x, o.Token, engine.OutcomeEvicted)
	}
	b.feedNow(gone(onNode("p", 10)))
	if r := b.report(nil); r.Totals != (engine.ShadowTotals{}) {
		t.Fatalf("after: %+v", r)
	}
}
