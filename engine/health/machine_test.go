package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// rig is a machine with a live feed that tells of leases.
type rig struct {
	*testing.T
	m   *Machine
	now time.Time
}

func newRig(t *testing.T, f Figures) *rig {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &rig{T: t, m: New(f, true, start), now: start}
}

// begin shows nodes of a zone that are ready, and ends the list.
func (r *rig) begin(names ...string) {
	for _, name := range names {
		r.m.Node(r.now, ready(name))
	}
	r.m.FeedLive(r.now)
	r.m.Renewed(r.now, nil, nil)
	r.m.Changed()
}

func ready(name string) Node { return nodeWith(name, StatusTrue, 0) }

func nodeWith(name string, s Status, taints TaintSet) Node {
	n := Node{Name: name, UID: "uid-" + name, Zone: "r/z", ReadyReason: "Kubelet", Heartbeat: time.Unix(1, 0), Taints: taints}
	for c := range CondNetworkUnavailable {
		n.Conditions[c] = StatusFalse
	}
	n.Conditions[CondReady] = s
	return n
}

// pass lets time pass in which the named nodes renew.
func (r *rig) pass(d time.Duration, renew ...string) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(time.Second)
		r.m.Renewed(r.now, renew, nil)
		r.m.Tick(r.now)
	}
}

func (r *rig) want(name, want string) {
	r.Helper()
	w, _ := r.m.Want(name)
	got := fmt.Sprintf("unknown=%t pods=%t +%s -%s", w.Unknown, w.MarkPods, w.Add, w.Remove)
	got = strings.ReplaceAll(got, "node.kubernetes.io/", "")
	if got != want {
		r.Errorf("at %s node %s: %s, want %s", r.now.Format("04:05"), name, got, want)
	}
}

const nothing = "unknown=false pods=false + -"

func TestN2SilenceIsFoundWithinASecondOfTheGrace(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	r.pass(50*time.Second, "b", "c")
	r.want("a", nothing)
	r.pass(time.Second, "b", "c")
	r.want("a", "unknown=true pods=true +unreachable:NoSchedule,unreachable:NoExecute -")
	r.want("b", nothing)
}

func TestN3SwapIsOneChangeAndReadyTakesBothAway(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b")
	r.m.Node(r.now, nodeWith("a", StatusFalse, 0))
	r.m.Settle(r.now)
	r.want("a", "unknown=false pods=true +not-ready:NoSchedule,not-ready:NoExecute -")
	both := Set(NotReadyNoSchedule, NotReadyNoExecute)
	first := Ordered{MarkPods: true, Add: both}
	r.m.Ordered("a", first)
	r.m.Applied("a", r.now, first)
	r.m.Node(r.now, nodeWith("a", StatusFalse, both))
	r.want("a", nothing)
	r.m.Node(r.now, nodeWith("a", StatusUnknown, both))
	r.want("a", "unknown=false pods=false +unreachable:NoSchedule,unreachable:NoExecute -not-ready:NoSchedule,not-ready:NoExecute")
	r.m.Node(r.now, nodeWith("a", StatusTrue, both))
	r.want("a", "unknown=false pods=false + -not-ready:NoSchedule,not-ready:NoExecute")
}

func TestN4ConditionsGiveTheirTaintsAndLoseThem(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b")
	n := ready("a")
	n.Conditions[CondDiskPressure], n.Conditions[CondNetworkUnavailable], n.Unschedulable = StatusTrue, StatusTrue, true
	r.m.Node(r.now, n)
	r.want("a", "unknown=false pods=false +disk-pressure:NoSchedule,network-unavailable:NoSchedule,unschedulable:NoSchedule -")
	n.Taints = Set(DiskPressure, NetworkUnavailable, Unschedulable)
	n.Conditions[CondDiskPressure], n.Unschedulable = StatusFalse, false
	r.m.Node(r.now, n)
	r.want("a", "unknown=false pods=false + -disk-pressure:NoSchedule,unschedulable:NoSchedule")
}

func TestN5AllZonesDisruptedTakesTheNoExecuteTaintsOff(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b")
	both := Set(NotReadyNoSchedule, NotReadyNoExecute)
	r.m.Node(r.now, nodeWith("a", StatusFalse, both))
	r.m.Settle(r.now)
	r.want("a", "unknown=false pods=true + -")
	r.m.Node(r.now, nodeWith("b", StatusFalse, 0))
	r.m.Settle(r.now)
	r.want("a", "unknown=false pods=true + -not-ready:NoExecute")
	r.want("b", "unknown=false pods=true +not-ready:NoSchedule -")
	r.pass(time.Hour, "a", "b")
	r.want("b", "unknown=false pods=true +not-ready:NoSchedule -")
	r.m.Node(r.now, nodeWith("a", StatusFalse, Set(NotReadyNoSchedule)))
	r.m.Node(r.now, ready("b"))
	r.m.Settle(r.now)
	r.want("a", "unknown=false pods=true + -")
	r.pass(10*time.Second, "a", "b")
	r.want("a", "unknown=false pods=true +not-ready:NoExecute -")
}

func TestN5TheLastPieceOfALostClusterIsHeldAndTheRestLosesItsTaints(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	// a has its taint; then it falls silent too, which is yet to be written on the node.
	r.m.Node(r.now, nodeWith("a", StatusFalse, Set(NotReadyNoSchedule, NotReadyNoExecute)))
	r.pass(30*time.Second, "b", "c")
	r.pass(40 * time.Second)
	r.want("a", "unknown=true pods=true +unreachable:NoSchedule,unreachable:NoExecute -not-ready:NoSchedule,not-ready:NoExecute")
	r.pass(11 * time.Second)
	r.want("b", nothing)
	r.want("a", "unknown=false pods=false + -not-ready:NoExecute")
	a := nodeWith("a", StatusUnknown, Set(UnreachableNoSchedule))
	a.Conditions = [conditions]Status{StatusUnknown, StatusUnknown, StatusUnknown, StatusUnknown}
	r.m.Node(r.now, a)
	marks := Ordered{MarkPods: true}
	r.m.Ordered("a", marks)
	r.m.Applied("a", r.now, marks)
	r.pass(time.Hour)
	r.want("a", nothing)
	r.pass(time.Second, "b", "c")
	r.want("a", nothing)
	r.pass(10*time.Second, "b", "c")
	r.want("a", "unknown=false pods=false +unreachable:NoExecute -")
}

// A rate of more than one node a look is kept, and no more than that: not at once,
// and not for the time before the nodes waited.
func TestN5AHighRateIsKept(t *testing.T) {
	f := DefaultFigures()
	f.Rate = 10
	r := newRig(t, f)
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	r.begin(names...)
	r.pass(time.Hour, names...)
	for _, name := range names[:45] {
		r.m.Node(r.now, nodeWith(name, StatusFalse, 0))
	}
	r.m.Settle(r.now)
	granted := func() (n int) {
		for _, name := range names {
			if w, _ := r.m.Want(name); w.Add.Has(NotReadyNoExecute) {
				n++
			}
		}
		return n
	}
	for second, want := range []int{1, 11, 21, 31, 41, 45} {
		if got := granted(); got != want {
			t.Errorf("after %d s %d nodes are granted, want %d", second, got, want)
		}
		r.pass(time.Second, names...)
	}
}

// A service that comes back has the grant that a zone's rate gives by then, and not
// those of all the time that it was away.
func TestN7ARestartSavesUpNoGrants(t *testing.T) {
	f := DefaultFigures()
	f.Rate = 10
	r := newRig(t, f)
	r.begin("a")
	r.m.Node(r.now, nodeWith("a", StatusFalse, 0))
	r.m.Settle(r.now)
	was := r.m.Cluster()
	r.now = r.now.Add(time.Minute)
	r.m = New(f, true, r.now)
	r.m.RestoreCluster(was)
	for i := range 100 {
		status := StatusTrue
		if i < 40 {
			status = StatusFalse
		}
		r.m.Node(r.now, nodeWith(fmt.Sprintf("n%02d", i), status, 0))
	}
	r.now = r.now.Add(time.Minute)
	r.m.FeedLive(r.now)
	granted := 0
	for i := range 40 {
		if w, _ := r.m.Want(fmt.Sprintf("n%02d", i)); w.Add.Has(NotReadyNoExecute) {
			granted++
		}
	}
	if granted != 1 {
		t.Errorf("%d nodes are granted at once, want 1", granted)
	}
}

// The instant at which the last of many nodes in a slow zone gets its taint is
// further away than instants reach: it is told as never.
func TestViewOfATaintThatIsFarAway(t *testing.T) {
	f := DefaultFigures()
	f.Rate = 1e-7
	r := newRig(t, f)
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprintf("n%04d", i))
	}
	r.begin(names...)
	for _, name := range names[:1500] {
		r.m.Node(r.now, nodeWith(name, StatusFalse, 0))
	}
	r.m.Settle(r.now)
	v, _ := r.m.View("n1499")
	for _, tv := range v.Taints {
		if tv.Taint == NotReadyNoExecute && !tv.At.IsZero() {
			t.Errorf("it comes at %s", tv.At)
		}
	}
}

// An order for a taint of another cause than condition Ready tells that cause.
func TestReasonOfAnOrderIsItsTaints(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b")
	n := ready("a")
	n.Unschedulable = true
	r.m.Node(r.now, n)
	if w, ok := r.m.Want("a"); !ok || w.Reason != "spec.unschedulable is true" {
		t.Errorf("want %+v", w)
	}
}

// While nearly all nodes are silent none is promised its grace's end.
func TestN8ViewWhileSilenceIsHeld(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	r.pass(10*time.Second, "a", "b", "c")
	r.pass(52 * time.Second)
	v, _ := r.m.View("a")
	if len(v.Changes) != 1 || !strings.HasPrefix(v.Changes[0], "nearly all nodes are silent") {
		t.Errorf("what would change it: %q", v.Changes)
	}
}

// Why a taint does not come is told in words, also where the zone's rate is 0.
func TestViewOfATaintThatAZoneHolds(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d", "e")
	for _, name := range []string{"a", "b", "c"} {
		r.m.Node(r.now, nodeWith(name, StatusFalse, 0))
	}
	r.m.Settle(r.now)
	v, _ := r.m.View("c")
	want := `; zone "r/z" is PARTIAL_DISRUPTION and lets no node have it as long as it is`
	if i := slices.IndexFunc(v.Taints, func(tv TaintView) bool { return tv.Taint == NotReadyNoExecute }); i < 0 || !strings.HasSuffix(v.Taints[i].Reason, want) {
		t.Errorf("taints %+v, want the reason of %s to end with %q", v.Taints, NotReadyNoExecute, want)
	}
}

func TestN6ReadyAgainBeforeThePodsAreMarked(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b")
	r.m.Node(r.now, nodeWith("a", StatusFalse, 0))
	r.want("a", "unknown=false pods=true +not-ready:NoSchedule -")
	r.m.Node(r.now, ready("a"))
	r.want("a", nothing)
}

// The answer to an order that was out when the node came back, and turned not ready
// again, says nothing of pods that were ready in between.
func TestN6AnOrderOfBeforeMarksNoPodsOfNow(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b")
	r.m.Node(r.now, nodeWith("a", StatusFalse, 0))
	w, _ := r.m.Want("a")
	sent := r.now
	r.m.Ordered("a", w.Ordered)
	r.pass(time.Second, "a", "b")
	r.m.Node(r.now, ready("a"))
	r.pass(time.Second, "a", "b")
	r.m.Node(r.now, nodeWith("a", StatusFalse, w.Add))
	r.m.Applied("a", sent, w.Ordered)
	if w, _ := r.m.Want("a"); !w.MarkPods {
		t.Error("the pods are not to be marked again")
	}
	r.m.Applied("a", r.now, w.Ordered)
	if w, _ := r.m.Want("a"); w.MarkPods {
		t.Error("the pods are still to be marked")
	}
}

func TestN8AStaleWatchIsNoNodesDeath(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d", "e")
	r.pass(51*time.Second, "c", "d", "e")
	if w, ok := r.m.Want("a"); !ok || !w.Unknown {
		t.Fatal("silence was not found")
	}
	r.m.Stale(r.now, "a", "x")
	r.want("a", nothing)
	r.want("b", nothing) // Found silent by the same watch.
	r.m.Renewed(r.now, []string{"a"}, nil)
	r.pass(4*time.Second, "a", "c", "d", "e")
	r.want("b", nothing)
	r.pass(2*time.Second, "a", "c", "d", "e")
	r.want("b", "unknown=true pods=true +unreachable:NoSchedule -") // The zone's grant went to a.
}

func TestN8OneNodeThatRenewsLateKeepsNoDeadOneAlive(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d")
	r.pass(51*time.Second, "c", "d")
	r.m.Stale(r.now, "a", "x")
	r.pass(52*time.Second, "c", "d")
	// The feed never showed it: it is asked again, and so is the other.
	r.want("b", "unknown=true pods=true +unreachable:NoSchedule,unreachable:NoExecute -")
}

// A silence that was found, and that the node does not show yet, may have ended
// while nobody looked: over a restart, a gap, or a time without leases.
func TestN8ASilenceBeforeBlindnessIsNoNodesDeath(t *testing.T) {
	silent := func(t *testing.T) *rig {
		r := newRig(t, DefaultFigures())
		r.begin("a", "b", "c")
		r.pass(51*time.Second, "b", "c")
		r.want("a", "unknown=true pods=true +unreachable:NoSchedule,unreachable:NoExecute -")
		return r
	}
	restart := func(r *rig) {
		rec, ok := r.m.Record("a")
		if !ok {
			t.Fatal("the silence is not remembered")
		}
		r.m = New(DefaultFigures(), true, r.now)
		r.m.Restore(rec)
	}
	for name, blind := range map[string]func(r *rig){
		"restart": func(r *rig) {
			restart(r)
			r.begin("a", "b", "c")
		},
		"gap": func(r *rig) {
			r.m.FeedLost(r.now)
			r.begin("a", "b", "c")
		},
		"no leases": func(r *rig) {
			r.now = r.now.Add(3 * time.Second)
			r.m.Tick(r.now)
			r.now = r.now.Add(3 * time.Second)
			r.m.Tick(r.now)
			r.want("a", nothing)
			r.m.Renewed(r.now, nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := silent(t)
			blind(r)
			r.want("a", nothing)
			r.pass(50*time.Second, "b", "c")
			r.want("a", nothing)
			r.pass(time.Second, "b", "c")
			if w, _ := r.m.Want("a"); !w.Unknown {
				t.Error("it is not found silent again")
			}
		})
	}
	t.Run("shown already", func(t *testing.T) {
		r := silent(t)
		restart(r)
		shown := nodeWith("a", StatusUnknown, 0)
		for c := range CondNetworkUnavailable {
			shown.Conditions[c] = StatusUnknown
		}
		r.m.Node(r.now, shown)
		r.begin("b", "c")
		r.want("a", "unknown=false pods=true +unreachable:NoSchedule,unreachable:NoExecute -")
	})
}

func TestN9ARemovedTaintIsWantedAgainAndNoted(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	both := Set(NotReadyNoSchedule, NotReadyNoExecute)
	r.m.Node(r.now, nodeWith("a", StatusFalse, both))
	r.m.Settle(r.now)
	r.m.Node(r.now, nodeWith("a", StatusFalse, Set(NotReadyNoSchedule)))
	// Its zone's grant is still the node's: it waits for no other.
	r.want("a", "unknown=false pods=true +not-ready:NoExecute -")
	if v, _ := r.m.View("a"); v.Removals != 1 || !v.RemovedAt.Equal(r.now) {
		t.Errorf("%d removals at %s", v.Removals, v.RemovedAt)
	}
}

func TestN10NodesWithoutReady(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d", "e")
	bare := Node{Name: "new", UID: "u", Zone: "r/z", Taints: Set(NotReadyNoSchedule)}
	r.m.Node(r.now, bare)
	r.want("new", nothing)
	r.pass(59*time.Second, "a", "b", "c", "d", "e")
	r.want("new", nothing)
	r.pass(2*time.Second, "a", "b", "c", "d", "e")
	r.want("new", "unknown=true pods=true +unreachable:NoSchedule,unreachable:NoExecute -not-ready:NoSchedule")
	r.m.Renewed(r.now, []string{"new", "never seen"}, nil)
	r.want("new", nothing)
	r.m.Gone(r.now, "new")
	if _, ok := r.m.View("new"); ok {
		t.Error("a node that is gone is still known")
	}
}

func TestOtherControllerIsNoticed(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	seen := nodeWith("a", StatusUnknown, 0)
	seen.ReadyReason = "NodeStatusUnknown"
	r.m.Node(r.now, seen)
	if v := r.m.ClusterView(); !strings.Contains(v.Other, "node a became Unknown") {
		t.Errorf("other controller: %q", v.Other)
	}
}

func TestOwnOrderIsNoOtherController(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	r.pass(51*time.Second, "b", "c")
	w, _ := r.m.Want("a")
	r.m.Ordered("a", w.Ordered)
	seen := nodeWith("a", StatusUnknown, w.Add)
	seen.ReadyReason = "NodeStatusUnknown"
	r.m.Node(r.now, seen)
	if v := r.m.ClusterView(); v.Other != "" {
		t.Errorf("other controller: %q", v.Other)
	}
}

// An order that is carried out although its node was heard again is no other
// controller; what comes after the node was ready once more is.
func TestOwnOrderThatComesLateIsNoOtherController(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c")
	r.pass(51*time.Second, "b", "c")
	w, _ := r.m.Want("a")
	r.m.Ordered("a", w.Ordered)
	r.pass(time.Second, "a", "b", "c")
	seen := nodeWith("a", StatusUnknown, 0)
	seen.ReadyReason = "NodeStatusUnknown"
	r.m.Node(r.now, seen)
	if v := r.m.ClusterView(); v.Other != "" {
		t.Errorf("other controller: %q", v.Other)
	}
	r.m.Node(r.now, ready("a"))
	r.m.Node(r.now, seen)
	if v := r.m.ClusterView(); v.Other == "" {
		t.Error("another controller is not noticed")
	}
}

func TestViewTellsWhenATaintComes(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d", "e", "f", "g", "h")
	r.m.Node(r.now, nodeWith("a", StatusFalse, 0))
	r.m.Node(r.now, nodeWith("b", StatusFalse, 0))
	r.m.Settle(r.now)
	v, _ := r.m.View("b")
	var found bool
	for _, tv := range v.Taints {
		if tv.Taint == NotReadyNoExecute {
			found = true
			if tv.Change != ChangeAdd || tv.Hold != HoldRate || !tv.At.Equal(r.now.Add(10*time.Second)) {
				t.Errorf("%+v", tv)
			}
		}
	}
	if !found {
		t.Errorf("the coming taint is not shown: %+v", v.Taints)
	}
}

// BenchmarkRenewals is what 5,000 nodes cost that renew every 10 s: one operation
// is a second of their time.
func BenchmarkRenewals(b *testing.B) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := New(DefaultFigures(), true, start)
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("node-%04d", i)
		m.Node(start, ready(names[i]))
	}
	m.FeedLive(start)
	m.Renewed(start, nil, nil)
	m.Changed()
	b.ReportAllocs()
	for i := range b.N {
		now := start.Add(time.Duration(i+1) * time.Second)
		at := i % 10 * 500
		m.Renewed(now, names[at:at+500], nil)
		m.Tick(now)
		m.Changed()
	}
}

// A restart keeps nothing of healthy nodes: what they say of themselves tells since
// when they are so, else that they were found so.
func TestReadyCountsFromWhatIsKnown(t *testing.T) {
	r := newRig(t, DefaultFigures())
	hourAgo := r.now.Add(-time.Hour)
	a := ready("a")
	a.Transition = hourAgo
	ahead := ready("ahead")
	ahead.Transition = r.now.Add(time.Hour)
	r.m.Node(r.now, a)
	r.m.Node(r.now, ahead)
	r.begin("b")
	started := r.now
	view := func(name string, since time.Time, seen bool) {
		t.Helper()
		v, ok := r.m.View(name)
		if !ok || !v.Since.Equal(since) || v.SinceSeen != seen {
			t.Errorf("%s: %s since %s, seen %t; want %s, %t", name, v.Ready, v.Since, v.SinceSeen, since, seen)
		}
	}
	view("a", hourAgo, false)
	view("b", started, true)
	view("ahead", started, true)
	r.pass(52*time.Second, "b", "ahead")
	// It is silent, which its condition does not say yet.
	view("a", started.Add(51*time.Second), false)
	turned := nodeWith("b", StatusFalse, 0)
	turned.Transition = r.now.Add(-time.Second)
	r.m.Node(r.now, turned)
	view("b", r.now.Add(-time.Second), false)
	v, _ := r.m.View("b")
	if !v.Taints[0].Since.Equal(turned.Transition) {
		t.Errorf("%+v", v.Taints[0])
	}
	// Over a gap nobody saw when.
	r.m.FeedLost(r.now)
	r.now = r.now.Add(time.Minute)
	r.begin("b")
	view("b", r.now, true)
}

// An executor whose view is stuck says for ever that a node was heard. That holds
// the others up for a grace, and then no more.
func TestN8AWordThatTheFeedNeverBearsOutHoldsUpItsNodeAlone(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d", "e", "f")
	stuck := func(d time.Duration, renew ...string) {
		for end := r.now.Add(d); r.now.Before(end); {
			r.pass(time.Second, renew...)
			if w, _ := r.m.Want("a"); w.Unknown {
				r.m.Stale(r.now, "a", "x")
			}
		}
	}
	stuck(52*time.Second, "b", "c", "d", "e", "f")
	if r.m.ClusterView().StaleSince.IsZero() {
		t.Fatal("the first word counts for all")
	}
	stuck(50*time.Second, "b", "c", "d", "e", "f")
	for range 3 {
		stuck(60*time.Second, "b", "c", "d", "e", "f")
		if !r.m.ClusterView().StaleSince.IsZero() {
			t.Fatalf("%s: it still counts for all", r.now)
		}
		if v := r.m.ClusterView(); v.DoubtedSince.IsZero() || v.StaleBy != "x" {
			t.Fatalf("%s: doubted since %s, of %q", r.now, v.DoubtedSince, v.StaleBy)
		}
	}
	stuck(50*time.Second, "c", "d", "e", "f")
	r.want("b", nothing)
	stuck(time.Second, "c", "d", "e", "f")
	if w, _ := r.m.Want("b"); !w.Unknown {
		t.Error("N2: b is held up")
	}
	// One that is borne out counts for all again.
	r.pass(51*time.Second, "d", "e", "f")
	r.m.Stale(r.now, "c", "x")
	if !r.m.ClusterView().StaleSince.IsZero() {
		t.Error("it is doubted no more")
	}
	r.pass(2*time.Second, "c", "d", "e", "f")
	r.pass(51*time.Second, "c", "e", "f")
	r.m.Stale(r.now, "d", "x")
	if r.m.ClusterView().StaleSince.IsZero() {
		t.Error("it is still doubted")
	}
	if v := r.m.ClusterView(); !v.DoubtedSince.IsZero() {
		t.Errorf("it is shown as doubted since %s", v.DoubtedSince)
	}
}

// While nothing is known of heartbeats, none can bear out what an executor read: that
// is not held against it, whether the blindness came before or after.
func TestADeadFeedOfLeasesIsNoExecutorsFault(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d")
	r.pass(51*time.Second, "b", "c", "d")
	r.m.Stale(r.now, "a", "x")
	blind := func(d time.Duration) {
		for end := r.now.Add(d); r.now.Before(end); r.m.Tick(r.now) {
			r.now = r.now.Add(time.Second)
		}
		if v := r.m.ClusterView(); v.BlindSince.IsZero() || !v.DoubtedSince.IsZero() {
			t.Errorf("blind since %s, doubted since %s", v.BlindSince, v.DoubtedSince)
		}
	}
	blind(2 * time.Minute)
	r.pass(53*time.Second, "b", "c", "d")
	r.m.Stale(r.now, "a", "x")
	r.pass(51*time.Second, "b", "c", "d")
	if r.m.ClusterView().DoubtedSince.IsZero() {
		t.Fatal("a word that the feed did not bear out is not doubted")
	}
	blind(10 * time.Second)
}

// A node that comes back long after such a word proves nothing of it.
func TestN8ALateReturnProvesNothing(t *testing.T) {
	r := newRig(t, DefaultFigures())
	r.begin("a", "b", "c", "d")
	r.pass(51*time.Second, "b", "c", "d")
	r.m.Stale(r.now, "a", "x")
	r.pass(time.Hour, "b", "c", "d")
	r.m.Renewed(r.now, []string{"a"}, nil)
	r.pass(51*time.Second, "a", "c", "d")
	r.m.Stale(r.now, "b", "x")
	if !r.m.ClusterView().StaleSince.IsZero() {
		t.Error("it is doubted no more")
	}
}

// A node that waits for its NoExecute taint while nearly all others are held gets
// none at the zone's rate, and it is told why.
func TestN11AHeldTaintSaysWhy(t *testing.T) {
	r := newRig(t, DefaultFigures())
	others := []string{"l", "m"}
	for i := range 20 {
		others = append(others, fmt.Sprintf("n%d", i))
	}
	r.begin(append(others, "a", "b")...)
	r.pass(20*time.Second, others...)
	r.pass(51*time.Second, "l", "m")
	r.m.Node(r.now, nodeWith("m", StatusFalse, 0))
	r.m.Settle(r.now)
	// b was granted it and is not Unknown yet; m waits.
	for name, why := range map[string]string{"b": "no heartbeat for 50s", "m": "condition Ready is False (Kubelet)"} {
		v, _ := r.m.View(name)
		i := slices.IndexFunc(v.Taints, func(t TaintView) bool { return noExecute.Has(t.Taint) })
		if i < 0 || v.Taints[i].Hold != HoldDisruption || !v.Taints[i].At.IsZero() ||
			v.Taints[i].Reason != why+"; nearly all nodes are silent, so that no node has it until more than a few are heard again" {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
