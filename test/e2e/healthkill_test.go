package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

const (
	// kubeletBeat is how often kubelets renew their Leases.
	kubeletBeat = 10 * time.Second
	// turn is how far apart a zone's NoExecute taints come, by the default figures.
	turn = 10 * time.Second
	// atOnce is how long what the rules want at once may take.
	atOnce = 5 * time.Second
	// seesWithin bounds how long the agent's watches take to stand again, by the pauses between their tries.
	seesWithin = 30 * time.Second
)

// kill is a program that dies in the middle of a timeline. The zero value kills nothing: the timeline is undisturbed.
type kill struct {
	name string
	pick func(*ward) (victim *process.Process, back func())
	// cutsOff: while it is away nothing can happen to the cluster's objects.
	cutsOff bool
}

// kills are those that the timelines of node health are played with.
var kills = []kill{
	{name: "nothing"},
	{name: "service", pick: func(w *ward) (*process.Process, func()) { return w.service.Process, w.service.WaitReady }},
	{name: "agent", pick: func(w *ward) (*process.Process, func()) { return w.agent.Process, w.agent.WaitReady }},
	{name: "api-server", pick: func(w *ward) (*process.Process, func()) { return w.APIServer, w.WaitReady }, cutsOff: true},
}

// sight follows whether the service sees a cluster.
type sight struct {
	mu sync.Mutex // guards blind
	// blind is when it was last found not to.
	blind time.Time
}

// follow begins to look, until the test ends.
func (s *sight) follow(t *testing.T, w *ward) {
	s.blind = await.Now()
	var looking sync.WaitGroup
	looking.Go(func() {
		for await.Pause(t.Context(), 200*time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), atOnce)
			if err := w.service.Sees(ctx, labName, w.agent); err != nil {
				s.mu.Lock()
				s.blind = await.Now()
				s.mu.Unlock()
			}
			cancel()
		}
	})
	t.Cleanup(looking.Wait)
}

// since is from when on the service has seen the cluster all the time.
func (s *sight) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blind
}

// gap is the time in which the service did not see the cluster. The zero value is none.
type gap struct {
	// killed, started and back are when the program was killed, started again and ready.
	killed, started, back time.Time
	sight                 sight
}

// outage kills the program, lets something happen, and starts the program again. It returns once the service sees.
func (k kill) outage(t *testing.T, w *ward, meanwhile func()) *gap {
	t.Helper()
	g := &gap{}
	if k.pick == nil {
		meanwhile()
		return g
	}
	victim, back := k.pick(w)
	victim.Kill()
	g.killed = await.Now()
	g.sight.follow(t, w)
	meanwhile()
	if victim != w.service.Process {
		await.Until(t, soon, "the service to know that it is blind", func(context.Context) error {
			if h := w.service.Cluster(labName).GetNodeHealth(); h.GetBlindTime() == nil {
				return fmt.Errorf("its health is %v", h)
			}
			return nil
		})
	}
	g.started = await.Now()
	victim.Start()
	back()
	g.back = await.Now()
	await.Until(t, soon, "the service to see the cluster", func(ctx context.Context) error { return w.service.Sees(ctx, labName, w.agent) })
	t.Logf("%s was away for %s and ready after %s, the service blind for %s", k.name, g.started.Sub(g.killed).Round(time.Millisecond),
		g.back.Sub(g.killed).Round(time.Millisecond), await.Now().Sub(g.killed).Round(time.Millisecond))
	return g
}

// none reports whether nothing was killed.
func (g *gap) none() bool { return g.killed.IsZero() }

// seeing is from when on the service has seen again, which is to be soon after the program was back. A watch that
// stands may be refused once more, as too old, so it is asked late.
func (g *gap) seeing(t *testing.T) time.Time {
	t.Helper()
	if g.none() {
		return time.Time{}
	}
	seeing := g.sight.since()
	if took := seeing.Sub(g.back); took > seesWithin {
		t.Errorf("the service saw again %s after what was killed was ready", took)
	}
	return seeing
}

// from is where the grace of a node that was silent before and after the gap counts from, at the earliest and at the
// latest.
func (g *gap) from(t *testing.T, last time.Time) (earliest, latest time.Time) {
	t.Helper()
	if g.none() {
		return last, last
	}
	return g.started, g.seeing(t)
}

// after is the later of an instant and the end of the gap.
func (g *gap) after(t *testing.T, at time.Time) time.Time {
	t.Helper()
	if seeing := g.seeing(t); seeing.After(at) {
		return seeing
	}
	return at
}

// Heartbeats stop, of one node, of a zone, of all; they come back after 40 s, after 55 s, after NoExecute; and in the
// middle of each the service, its agent or the API server is killed. The figures are the defaults. Most of the time
// passes in waiting, so that all of it goes on side by side, each in a cluster of its own.
func TestNodeHealthTimelines(t *testing.T) {
	for _, timeline := range []struct {
		name string
		play func(*testing.T, kill)
	}{
		{"nodes-and-zones", playNodesAndZones},
		{"all-come-back", playAllComeBack},
		{"all-stay-silent", playAllStaySilent},
	} {
		t.Run(timeline.name, func(t *testing.T) {
			t.Parallel()
			for _, k := range kills {
				t.Run(k.name, func(t *testing.T) {
					t.Parallel()
					timeline.play(t, k)
				})
			}
		})
	}
}

// fate is one timeline, of a node among healthy ones and of a whole zone.
type fate struct {
	lone string
	zone []string
}

func (f fate) nodes() []string { return append([]string{f.lone}, f.zone...) }

// fates are the nodes of playNodesAndZones by what becomes of them, and their pods by node.
type fates struct {
	// early are back after 40 s, late and known after 55 s: these are known to be silent when the program is killed.
	// gone have their NoExecute taints then, or wait for them; lost fall silent before and stay so.
	early, late, known, gone, lost fate
	well                           []string
	// stay are pods that may not be deleted, leave those that must be.
	stay, leave map[string]*corev1.Pod
	// patience is how many seconds those that must leave tolerate their node's loss.
	patience map[string]int64
}

// admitFates makes the nodes and pods of playNodesAndZones.
func admitFates(t *testing.T, w *ward) *fates {
	t.Helper()
	f := &fates{well: kube.NodeNames("well", 7), stay: map[string]*corev1.Pod{}, leave: map[string]*corev1.Pod{}, patience: map[string]int64{}}
	mixed := slices.Clone(f.well)
	for name, fate := range map[string]*fate{"early": &f.early, "late": &f.late, "known": &f.known, "gone": &f.gone, "lost": &f.lost} {
		fate.lone, fate.zone = name, kube.NodeNames(name, 3)
		mixed = append(mixed, name)
		w.admit(t, name, fate.zone...)
	}
	w.admit(t, "mixed", mixed...)
	var pods []kube.Pod
	for _, node := range w.nodes(t) {
		// One that tolerates nothing shows a NoExecute taint however short.
		wait := int64(0)
		if !slices.Contains(f.well, node) && !slices.Contains(f.early.nodes(), node) {
			wait = 3600
		}
		pods = append(pods, kube.Pod{Name: "stay-" + node, Node: node, Tolerations: tolerateLoss(wait)})
	}
	for _, node := range f.gone.nodes() {
		// That of the lone node falls due while the program is away, the others after.
		f.patience[node] = 30
		if node == f.gone.lone {
			f.patience[node] = 6
		}
		pods = append(pods, kube.Pod{Name: "leave-" + node, Node: node, Tolerations: tolerateLoss(f.patience[node])})
	}
	made := kube.CreatePods(t, w.Admin, pods...)
	kube.WaitRunning(t, w.Admin, made)
	for _, pod := range made {
		if strings.HasPrefix(pod.Name, "stay-") {
			f.stay[pod.Spec.NodeName] = pod
		} else {
			f.leave[pod.Spec.NodeName] = pod
		}
	}
	// New zones have used up their first turn.
	await.Pause(t.Context(), turn)
	return f
}

// playNodesAndZones has nodes and whole zones fall silent, and come back or not. The kill meets them all at once.
func playNodesAndZones(t *testing.T, k kill) {
	w := startWard(t, nil, kubeletBeat)
	f := admitFates(t, w)
	begin := await.Now()
	at := func(seconds int, fates ...fate) {
		await.Pause(t.Context(), begin.Add(time.Duration(seconds)*time.Second).Sub(await.Now()))
		for _, fate := range fates {
			w.fade(t, fate.nodes()...)
		}
	}
	at(0, f.gone)
	at(1, f.known)
	at(24, f.late)
	at(31, f.early, f.lost)

	was := f.beforeTheKill(t, w)
	g := k.outage(t, w, func() {
		await.Pause(t.Context(), w.hearts.Last(f.known.lone).Add(55*time.Second).Sub(await.Now()))
		if !k.cutsOff {
			// What is killed starts again at once then, before the zone's next turn, and may not take that early.
			w.revive(t, f.known.nodes()...)
			w.readyAgain(t, f.known.nodes()...)
		}
	})
	if k.cutsOff {
		w.revive(t, f.known.nodes()...)
	}
	w.healsAtOnce(t, f.known.nodes()...)
	w.returnAfter(t, 40*time.Second, f.early)
	f.lateReturn(t, w, g)
	f.lostAreFound(t, w, g)
	f.goneWentOn(t, w, g, was)

	w.revive(t, append(f.gone.nodes(), f.lost.nodes()...)...)
	w.healsAtOnce(t, append(f.gone.nodes(), f.lost.nodes()...)...)
	same := append(f.early.nodes(), f.well...)
	if !g.none() {
		same = append(same, f.late.nodes()...)
	}
	w.untouched(t, begin, f.stay, same...)
	for _, pod := range f.stay {
		w.deletions.NoneOf(t, pod.UID)
	}
	if !k.cutsOff && !g.none() {
		for _, node := range f.known.nodes() {
			if seen, ok := w.changes.First(node, "+"+unreachableNoExecute, g.killed); ok {
				t.Errorf("node %s came back while nobody could act, and got a NoExecute taint at %s", node, seen.Format(time.StampMilli))
			}
		}
	}
}

// standing is what a kill must not change: when NoExecute taints were added, and when their pods are due, by node.
type standing struct {
	added, due map[string]time.Time
}

// beforeTheKill waits until gone and known nodes are found silent, in time, and the first of those that are gone have
// their NoExecute taints.
func (f *fates) beforeTheKill(t *testing.T, w *ward) standing {
	t.Helper()
	was := standing{map[string]time.Time{}, map[string]time.Time{}}
	for _, node := range []string{f.gone.lone, w.firstTainted(t, f.gone.zone, w.hearts.Last(f.gone.lone)).Node} {
		last := w.hearts.Last(node)
		tainted := w.changes.Wait(t, grace+soon, node, "+"+unreachableNoExecute, last)
		overAt(t, node+"'s NoExecute taint", tainted, last.Add(grace), last.Add(grace))
		was.added[node] = taintedAt(t, w.ControlPlane, node, corev1.TaintNodeUnreachable)
		was.due[node] = w.open(t, f.leave[node], "waiting", func(ev *reprievev1.Eviction) bool { return ev.GetDueTime() != nil }).GetDueTime().AsTime()
	}
	for _, node := range f.gone.nodes() {
		w.unreadyInTime(t, f.stay[node], w.lostAfter(t, node, &gap{}))
	}
	for _, node := range f.known.nodes() {
		w.lostAfter(t, node, &gap{})
	}
	return was
}

// lateReturn has the late nodes return after 55 s. Undisturbed they have been Unknown by then; after a gap they have
// not, because their grace began anew.
func (f *fates) lateReturn(t *testing.T, w *ward, g *gap) {
	t.Helper()
	if g.none() {
		for _, node := range f.late.nodes() {
			w.lostAfter(t, node, &gap{})
		}
	}
	w.returnAfter(t, 55*time.Second, f.late)
	if g.none() {
		w.healsAtOnce(t, f.late.nodes()...)
	}
}

// lostAreFound judges when those that stay silent become Unknown.
func (f *fates) lostAreFound(t *testing.T, w *ward, g *gap) {
	t.Helper()
	for _, node := range f.lost.nodes() {
		w.unreadyInTime(t, f.stay[node], w.lostAfter(t, node, g))
	}
}

// goneWentOn judges the nodes in whose middle the kill was: no taint went or came again, no wait began anew, the zone's
// pass went on at its pace, and the pods left when they were due.
func (f *fates) goneWentOn(t *testing.T, w *ward, g *gap, was standing) {
	t.Helper()
	last := w.hearts.Last(f.gone.lone)
	for _, node := range f.gone.zone {
		if l := w.hearts.Last(node); l.Before(last) {
			last = l
		}
	}
	var tainted []time.Time
	for _, node := range f.gone.zone {
		tainted = append(tainted, w.changes.Wait(t, soon, node, "+"+unreachableNoExecute, last))
	}
	slices.SortFunc(tainted, time.Time.Compare)
	for i, seen := range tainted {
		turns := time.Duration(i) * turn
		// The first turn was not before the grace was over.
		earliest, latest := last.Add(grace+turns), tainted[0].Add(turns)
		if i > 0 && !g.none() {
			// The turn that came in the gap is made up for, and the next one waits for its own.
			latest = g.after(t, latest).Add(turns - turn)
		}
		if seen.Before(earliest) || seen.After(latest.Add(atOnce)) {
			t.Errorf("NoExecute taint %d of the zone came %s after its last renewals, want between %s and %s", i,
				seen.Sub(last), earliest.Sub(last), latest.Add(atOnce).Sub(last))
		}
	}
	for _, node := range f.gone.nodes() {
		changes := w.changes.Of(node, last)
		for i, c := range changes {
			again := slices.IndexFunc(changes, func(o kube.Change) bool { return o.What == c.What }) < i
			if strings.HasPrefix(c.What, "-") || c.What == "Ready=True" || again {
				t.Errorf("node %s is silent and had %s: %v", node, c.What, changes)
			}
		}
		f.leftWhenDue(t, w, g, was, node)
	}
}

// leftWhenDue judges the pod that had to leave a node that is gone.
func (f *fates) leftWhenDue(t *testing.T, w *ward, g *gap, was standing, node string) {
	t.Helper()
	pod := f.leave[node]
	w.deletions.Wait(t, soon, pod.UID)
	due := w.closed(t, pod).GetDueTime().AsTime()
	added := taintedAt(t, w.ControlPlane, node, corev1.TaintNodeUnreachable)
	// The wait begins with the taint, whose time has whole seconds, or when the service can see it.
	patience := time.Duration(f.patience[node]) * time.Second
	if start := due.Add(-patience); start.Before(added) || start.After(g.after(t, added.Add(time.Second)).Add(2*time.Second)) {
		t.Errorf("pod %s was due %s after its node's taint, want %s", pod.Name, due.Sub(added), patience)
	}
	if before, ok := was.due[node]; ok && !before.Equal(due) {
		t.Errorf("pod %s was due at %s and then at %s", pod.Name, before, due)
	}
	if before, ok := was.added[node]; ok && !before.Equal(added) {
		t.Errorf("the taint of node %s was added at %s and then at %s", node, before, added)
	}
	d, _ := w.deletions.Of(pod.UID)
	if d.Asked.Add(time.Second).Before(due) || d.Asked.After(g.after(t, due).Add(atOnce)) {
		t.Errorf("pod %s was due at %s and deleted at %s; the service saw again at %s", pod.Name, due, d.Asked, g.seeing(t))
	}
}

// playAllComeBack has all nodes fall silent, and come back after 40 s and, the service killed while it holds, after
// 55 s. Nothing happens to any of them.
func playAllComeBack(t *testing.T, k kill) {
	w := startWard(t, nil, kubeletBeat)
	nodes, pods := admitAll(t, w)

	begin := await.Now()
	w.fade(t, nodes...)
	last := w.hearts.Last(nodes[0])
	await.Pause(t.Context(), last.Add(20*time.Second).Sub(await.Now()))
	k.outage(t, w, func() { await.Pause(t.Context(), downFor) })
	await.Pause(t.Context(), last.Add(40*time.Second).Sub(await.Now()))
	w.revive(t, nodes...)
	await.Pause(t.Context(), last.Add(grace+detects+time.Second).Sub(await.Now()))
	w.untouched(t, begin, pods, nodes...)

	w.fade(t, nodes...)
	last = w.hearts.Last(nodes[0])
	await.Until(t, grace+soon, "the service to hold", func(context.Context) error {
		if h := w.service.Cluster(labName).GetNodeHealth(); h.GetSilenceHoldTime() == nil {
			return fmt.Errorf("its health is %v", h)
		}
		return nil
	})
	if held := await.Now().Sub(last); held <= grace || held > grace+detects {
		t.Errorf("the service held %s after the last renewal, want (%s, %s]", held, grace, grace+detects)
	}
	k.outage(t, w, func() {
		await.Pause(t.Context(), last.Add(55*time.Second).Sub(await.Now()))
		if !k.cutsOff {
			w.revive(t, nodes...)
		}
		await.Pause(t.Context(), 2*time.Second)
	})
	if k.cutsOff {
		w.revive(t, nodes...)
	}
	await.Until(t, soon, "the hold to end", func(context.Context) error {
		if h := w.service.Cluster(labName).GetNodeHealth(); h.GetSilenceHoldTime() != nil {
			return fmt.Errorf("its health is %v", h)
		}
		return nil
	})
	await.Pause(t.Context(), 2*atOnce)
	w.untouched(t, begin, pods, nodes...)
}

// admitAll makes a cluster of two zones, and on each node a pod that a NoExecute taint evicts at once. On the first one
// it has the waits that the API server gives, of 300 s.
func admitAll(t *testing.T, w *ward) (nodes []string, pods map[string]*corev1.Pod) {
	t.Helper()
	nodes = append(kube.NodeNames("east", 3), kube.NodeNames("west", 3)...)
	w.admit(t, "east", nodes[:3]...)
	w.admit(t, "west", nodes[3:]...)
	pods = map[string]*corev1.Pod{}
	made := kube.CreatePods(t, w.Admin, kube.Bulk("p", len(nodes), nodes, func(i int, p *kube.Pod) {
		if i > 0 {
			p.Tolerations = tolerateLoss(0)
		}
	})...)
	kube.WaitRunning(t, w.Admin, made)
	for _, pod := range made {
		pods[pod.Spec.NodeName] = pod
	}
	await.Pause(t.Context(), turn)
	return nodes, pods
}

// playAllStaySilent has one node fall silent and then all others, the hold switched off: the one has its NoExecute taint
// until the others are Unknown, nobody gets one then, and nobody leaves. One kill is before that, one after.
func playAllStaySilent(t *testing.T, k kill) {
	w := startWard(t, nil, kubeletBeat)
	off := true
	w.service.SetPolicy(labName, &reprievev1.ClusterPolicy{NodeHealthFigures: &reprievev1.NodeHealthFigures{DisableSilenceHold: &off}})
	nodes, pods := admitAll(t, w)
	first, others := nodes[0], nodes[1:]

	w.fade(t, first)
	await.Pause(t.Context(), w.hearts.Last(first).Add(grace/2).Sub(await.Now()))
	w.fade(t, others...)
	cut := await.Now()
	w.lostAfter(t, first, &gap{})
	w.changes.Wait(t, soon, first, "+"+unreachableNoExecute, w.hearts.Last(first))
	g := k.outage(t, w, func() { await.Pause(t.Context(), downFor) })
	var all time.Time // when all were Unknown
	for _, node := range others {
		seen := w.lostAfter(t, node, g)
		if seen.After(all) {
			all = seen
		}
	}
	if taken := w.changes.Wait(t, soon, first, "-"+unreachableNoExecute, cut); taken.Before(g.started) || taken.Sub(all).Abs() > atOnce {
		t.Errorf("the NoExecute taint went %s after the last node was Unknown", taken.Sub(all))
	}

	k.outage(t, w, func() { await.Pause(t.Context(), downFor) })
	await.Pause(t.Context(), turn+atOnce)
	stayed := await.Now()
	for _, node := range nodes {
		for _, c := range w.changes.Of(node, all.Add(atOnce)) {
			t.Errorf("node %s had %s in a cluster without a ready node", node, c.What)
		}
	}
	w.revive(t, nodes...)
	w.healsAtOnce(t, nodes...)
	early := map[string]string{} // by zone
	for _, node := range others {
		seen, ok := w.changes.First(node, "+"+unreachableNoExecute, cut)
		zone, _, _ := strings.Cut(node, "-")
		switch {
		case !ok:
			w.unordered(t, pods[node])
		case seen.Before(all) && early[zone] == "":
			// Its last renewal was in an earlier report than the last of another node, which was taken for ready yet: it had
			// its zone's turn, as it should.
			early[zone] = node
		default:
			t.Errorf("node %s was tainted at %s, after %q of its zone; all were Unknown at %s and silent until %s", node, seen, early[zone], all, stayed)
		}
	}
	w.deletions.NoneOf(t, pods[first].UID)
	if ev := w.closed(t, pods[first]); ev.GetCancelCause() != reprievev1.CancelCause_CANCEL_CAUSE_TAINT_REMOVED {
		t.Errorf("the eviction of pod %s is %v, want it cancelled", pods[first].Name, ev)
	}
}

// fade has nodes renew once more, now, and fall silent.
func (w *ward) fade(t *testing.T, nodes ...string) {
	t.Helper()
	w.silence(t, nodes...)
	// A heart beats at once when it starts, and stops after that.
	w.hearts.Start(nodes...)
	w.hearts.Stop(nodes...)
}

// returnAfter revives nodes so long after their last renewal, or as soon as there is an API server to renew with.
func (w *ward) returnAfter(t *testing.T, silent time.Duration, f fate) {
	t.Helper()
	await.Pause(t.Context(), w.hearts.Last(f.lone).Add(silent).Sub(await.Now()))
	w.revive(t, f.nodes()...)
}

// nodes are the names of all nodes.
func (w *ward) nodes(t *testing.T) (names []string) {
	t.Helper()
	list, err := w.Admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// firstTainted waits until one of the nodes has its NoExecute taint.
func (w *ward) firstTainted(t *testing.T, nodes []string, since time.Time) (first kube.Change) {
	t.Helper()
	await.Until(t, soon, "a first NoExecute taint", func(context.Context) error {
		for _, node := range nodes {
			if at, ok := w.changes.First(node, "+"+unreachableNoExecute, since); ok && (first.Node == "" || at.Before(first.Seen)) {
				first = kube.Change{Node: node, Seen: at}
			}
		}
		if first.Node == "" {
			return errors.New("none has")
		}
		return nil
	})
	return first
}

// lostAfter waits until a node that has been silent since before the gap is Unknown and tainted, and fails the test
// unless all of that came when its grace was over, and soon then. It returns when it was Unknown.
func (w *ward) lostAfter(t *testing.T, node string, g *gap) (unknown time.Time) {
	t.Helper()
	last := w.hearts.Last(node)
	for i := len(silenced) - 1; i >= 0; i-- {
		unknown = w.changes.Wait(t, 2*grace+soon, node, silenced[i], last)
		earliest, latest := g.from(t, last)
		overAt(t, node+"'s "+silenced[i], unknown, earliest.Add(grace), latest.Add(grace))
	}
	return unknown
}

// unreadyInTime waits until a pod is not ready, and fails the test unless that came with its node's turning Unknown.
func (w *ward) unreadyInTime(t *testing.T, pod *corev1.Pod, unknown time.Time) {
	t.Helper()
	// Conditions' times have whole seconds.
	if after := notReadySince(t, w.Admin, pod).Sub(unknown); after < -2*time.Second || after > atOnce {
		t.Errorf("pod %s was not ready %s after its node was Unknown", pod.Name, after)
	}
}

// readyAgain waits until nodes are ready, whatever taints they have.
func (w *ward) readyAgain(t *testing.T, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		await.Until(t, soon, "node "+node+" to be ready again", func(ctx context.Context) error {
			n, err := w.node(ctx, node)
			if err == nil && !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				err = fmt.Errorf("its conditions are %v", n.Status.Conditions)
			}
			return err
		})
	}
}

// healsAtOnce waits until nodes are ready, and fails the test unless their taints go at once then.
func (w *ward) healsAtOnce(t *testing.T, nodes ...string) {
	t.Helper()
	w.readyAgain(t, nodes...)
	ready := await.Now()
	w.healed(t, ready, nodes...)
	if took := await.Now().Sub(ready); took > atOnce {
		t.Errorf("nodes %v were ready for %s before their taints were gone", nodes, took)
	}
}

// untouched fails the test if anything was done to nodes since, or to their pods ever.
func (w *ward) untouched(t *testing.T, since time.Time, pods map[string]*corev1.Pod, nodes ...string) {
	t.Helper()
	w.changes.Quiet(t, since, nodes...)
	for _, node := range nodes {
		w.unordered(t, pods[node])
		if s := w.readiness(t, pods[node]); s != corev1.ConditionTrue {
			t.Errorf("pod %s on node %s, which is well, is ready: %s", pods[node].Name, node, s)
		}
	}
}

// unordered fails the test if a pod has ever had an eviction.
func (w *ward) unordered(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	w.deletions.NoneOf(t, pod.UID)
	if ev, past := w.service.Open(labName)[string(pod.UID)], w.service.History(labName)[string(pod.UID)]; ev != nil || len(past) > 0 {
		t.Errorf("pod %s has evictions %v %v, want none", pod.Name, ev, past)
	}
}
