package health

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPropertyHealth runs random heartbeats, gaps, clock steps, freezes and
// restarts against a model that knows the rules in their plainest form:
//
//	N2 a node is silent if and only if its whole grace has passed while it could have been heard;
//	N5 zones, their states and their rates; all disrupted takes the NoExecute taints off;
//	N7 a restart forgets no silence, no queue, no pods to be marked, and gives no grant;
//	N8 blindness gives every node its whole grace; silence of nearly all is nobody's death.
func TestPropertyHealth(t *testing.T) {
	f := flag.Lookup("rapid.checks")
	if f.Value.String() == f.DefValue {
		if err := f.Value.Set("10000"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Value.Set(f.DefValue) }()
	}
	rapid.Check(t, func(rt *rapid.T) { newWorld(rt).run() })
}

// world is a cluster, the machine that watches it, and the model.
type world struct {
	*rapid.T
	m    *Machine
	now  time.Time
	objs map[string]*object
	// order has their names, sorted.
	order []string
	// watch: the feed tells of leases. executor: orders are carried out.
	watch, executor bool
	model           model
	// records are what is on disk.
	records map[string]Record
	cluster ClusterRecord
}

// object is a node as the API server has it, and its kubelet.
type object struct {
	Node
	dead  bool
	renew time.Time
}

func newWorld(t *rapid.T) *world {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &world{T: t, now: start, objs: map[string]*object{}, watch: true, executor: true, records: map[string]Record{}}
	w.m = New(DefaultFigures(), true, start)
	w.model = model{f: DefaultFigures(), nodes: map[string]*modelNode{}, granted: map[string]time.Time{}, zones: map[string]bool{}, ran: start}
	for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
		w.create(fmt.Sprintf("n%02d", i))
	}
	return w
}

func (w *world) create(name string) {
	o := &object{Node: Node{
		Name: name, UID: fmt.Sprintf("%s-%d", name, w.now.UnixNano()),
		Zone: rapid.SampledFrom([]string{"a", "a", "b"}).Draw(w.T, "zone"), Excluded: rapid.IntRange(0, 7).Draw(w.T, "excluded") == 0,
	}}
	if rapid.IntRange(0, 5).Draw(w.T, "posted") > 0 {
		o.post(StatusTrue, w.now)
	}
	w.objs[name], w.order = o, append(w.order, name)
}

func (o *object) post(s Status, now time.Time) {
	for c := range CondNetworkUnavailable {
		o.Conditions[c] = StatusFalse
	}
	o.Conditions[CondReady], o.ReadyReason, o.Heartbeat = s, "Kubelet", now
}

func (w *world) names() []string { return w.order }

func (w *world) run() {
	w.list()
	for range rapid.IntRange(3, 9).Draw(w.T, "steps") {
		w.step()
		w.pass(rapid.SampledFrom([]int{0, 1, 4, 11, 38, 49, 51, 56, 62, 120}).Draw(w.T, "seconds"))
	}
}

func (w *world) step() {
	switch rapid.IntRange(0, 15).Draw(w.T, "step") {
	case 0, 1:
		w.kill(func(o *object) bool { return rapid.Bool().Draw(w.T, "dies") })
	case 2:
		w.kill(func(*object) bool { return true })
	case 3:
		zone := rapid.SampledFrom([]string{"a", "b"}).Draw(w.T, "lost zone")
		w.kill(func(o *object) bool { return o.Zone == zone })
	case 4, 5:
		for _, name := range w.names() {
			if o := w.objs[name]; o.dead && rapid.Bool().Draw(w.T, "lives") {
				o.dead = false
			}
		}
	case 6, 7:
		o := w.any()
		if !o.dead {
			o.post(rapid.SampledFrom([]Status{StatusTrue, StatusFalse}).Draw(w.T, "ready"), w.now)
			w.show(o)
		}
	case 8:
		w.m.FeedLost(w.now)
		w.model.live = false
		w.model.step(w.now)
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 90).Draw(w.T, "gap")) * time.Second)
		w.list()
	case 9:
		w.restart()
	case 10:
		// Frozen, or a stepped clock.
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 200).Draw(w.T, "frozen")) * time.Second)
		w.m.Tick(w.now)
		w.model.tick(w.now)
	case 11:
		w.m.Tick(w.now.Add(-time.Hour))
		w.model.step(w.now)
	case 12:
		w.watch = !w.watch
	case 13:
		zone := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.T, "new zone")
		for _, name := range w.names() {
			if o := w.objs[name]; rapid.Bool().Draw(w.T, "moves") {
				o.Zone = zone
				w.show(o)
			}
		}
	case 14:
		o := w.any()
		o.Taints = 0
		w.show(o)
	case 15:
		w.executor = !w.executor
	}
	w.check()
}

func (w *world) any() *object { return w.objs[rapid.SampledFrom(w.names()).Draw(w.T, "node")] }

func (w *world) kill(which func(*object) bool) {
	for _, name := range w.names() {
		if o := w.objs[name]; which(o) {
			o.dead = true
		}
	}
}

func (w *world) show(o *object) {
	w.m.Node(w.now, o.Node)
	w.model.see(w.now, o)
	w.m.Settle(w.now)
	w.model.step(w.now)
	w.execute()
}

func (w *world) list() {
	for _, name := range w.names() {
		w.m.Node(w.now, w.objs[name].Node)
		w.model.see(w.now, w.objs[name])
	}
	w.m.FeedLive(w.now)
	w.model.live = true
	w.model.doubt(w.now)
	w.model.step(w.now)
	w.execute()
}

// restart begins a new machine from what is on disk, after some time and a list.
func (w *world) restart() {
	w.remember()
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 90).Draw(w.T, "down")) * time.Second)
	w.m = New(DefaultFigures(), true, w.now)
	w.m.RestoreCluster(w.cluster)
	for _, name := range slices.Sorted(maps.Keys(w.records)) {
		w.m.Restore(w.records[name])
	}
	w.model.restart(w.now)
	before := map[string]TaintSet{}
	for name, o := range w.objs {
		before[name] = o.Taints
	}
	disrupted := w.model.disrupted
	w.list()
	for name, n := range w.model.nodes {
		kept := w.objs[name].Taints
		if !n.bad() || disrupted || w.model.disrupted {
			continue
		}
		// Not-ready may have been swapped for unreachable, or back (N3).
		for _, effect := range []TaintSet{noExecute, ^noExecute} {
			if before[name]&effect != 0 && kept&effect == 0 {
				w.Fatalf("N7: a restart took %s from node %s, which is %s", before[name]&^kept, name, n.ready)
			}
		}
	}
}

// remember writes to disk what the machine says is to be remembered.
func (w *world) remember() {
	for _, name := range w.m.Changed() {
		w.keep(name)
	}
	w.cluster = w.m.Cluster()
}

func (w *world) keep(name string) {
	if r, ok := w.m.Record(name); ok {
		w.records[name] = r
	} else {
		delete(w.records, name)
	}
}

// pass lets seconds pass: nodes renew every 10 s, the feed tells every 2 s.
func (w *world) pass(seconds int) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		if w.watch && w.now.Unix()%2 == 0 {
			w.report()
		}
		w.m.Tick(w.now)
		w.model.tick(w.now)
		w.execute()
		w.check()
	}
}

func (w *world) report() {
	var names []string
	var times []time.Time
	for i, name := range w.names() {
		o := w.objs[name]
		if !o.dead && (w.now.Unix()+int64(i))/10 != o.renew.Unix()/10 {
			o.renew = w.now.Add(time.Duration(int64(i)) * time.Second)
		}
		if n := w.model.nodes[name]; n != nil && !o.renew.Equal(n.renew) {
			names, times = append(names, name), append(times, o.renew)
		}
	}
	w.m.Renewed(w.now, names, times)
	w.model.renewed(w.now, names, times)
	// In the states that the zones are in now, before the nodes say how they are.
	w.checkGrants()
	for _, name := range names {
		// A kubelet that is heard again says soon how it is.
		if o := w.objs[name]; o.Conditions[CondReady] == StatusUnknown {
			o.post(StatusTrue, w.now)
			w.show(o)
		}
	}
}

// execute carries out what is wanted, as an executor would.
func (w *world) execute() {
	w.checkGrants()
	for _, name := range w.m.Changed() {
		if want, ok := w.m.Want(name); ok {
			w.judgeWant(name, &want)
			if w.executor {
				w.m.Ordered(name, want.Ordered)
				w.carryOut(name, &want)
			}
		}
		w.keep(name)
	}
	w.cluster = w.m.Cluster()
}

func (w *world) carryOut(name string, want *Want) {
	o := w.objs[name]
	if want.Unknown {
		for c := range CondNetworkUnavailable {
			o.Conditions[c] = StatusUnknown
		}
		o.ReadyReason = "NodeStatusUnknown"
	}
	o.Taints = o.Taints&^want.Remove | want.Add
	w.m.Applied(name, w.now, want.Ordered)
	if want.MarkPods {
		w.model.nodes[name].pending = false
	}
	w.m.Node(w.now, o.Node)
	w.model.see(w.now, o)
	w.model.nodes[name].granted = !w.m.nodes[name].grantedAt.IsZero()
}

// judgeWant holds the rules against what is wanted.
func (w *world) judgeWant(name string, want *Want) {
	n, d := w.model.nodes[name], &w.model
	switch {
	case !d.live:
		w.Fatalf("I4: node %s is to be changed while the feed is not live", name)
	case want.Unknown && !n.silent:
		w.Fatalf("N2: node %s is to be Unknown and is not silent", name)
	case want.Unknown && !d.sighted:
		w.Fatalf("N8: node %s is to be Unknown while heartbeats are not seen", name)
	case want.Unknown && d.held:
		w.Fatalf("N8: node %s is to be Unknown while nearly all nodes are silent", name)
	case (want.Add|w.objs[name].Taints&^want.Remove)&noExecute != 0 && d.disrupted && n.shown:
		w.Fatalf("N5: node %s has, or gets, NoExecute taints although all zones are disrupted", name)
	case want.Add&noExecute != 0 && w.objs[name].Taints&noExecute == 0 && d.held:
		w.Fatalf("N8: node %s gets a NoExecute taint while nearly all nodes are silent", name)
	case want.MarkPods && !n.pending:
		w.Fatalf("N6: pods of node %s are to be marked, which is ready, or done", name)
	case want.Remove&noExecute != 0 && want.Add&noExecute == 0 && n.bad() && !d.disrupted:
		w.Fatalf("N7: node %s is to lose its NoExecute taint while it is %s", name, n.ready)
	}
}

// check compares the machine with the model.
func (w *world) check() {
	d := &w.model
	v := w.m.ClusterView()
	if (v.HeldSince.IsZero()) == d.held {
		w.Fatalf("N8: at %s: held is %t, want %t", w.at(), !v.HeldSince.IsZero(), d.held)
	}
	if (v.DisruptedSince.IsZero()) == d.disrupted {
		w.Fatalf("N5: at %s: disrupted is %t, want %t", w.at(), !v.DisruptedSince.IsZero(), d.disrupted)
	}
	for name, n := range d.nodes {
		got := w.m.nodes[name]
		switch {
		case got.silent != n.silent:
			w.Fatalf("N2: at %s: node %s: silent is %t, want %t: heard from %s", w.at(), name, got.silent, n.silent, n.base.Sub(w.now))
		case got.ready != n.ready:
			w.Fatalf("N3: at %s: node %s is taken for %s, want %s", w.at(), name, got.ready, n.ready)
		case got.podsPending != n.pending:
			w.Fatalf("N6, N7: at %s: node %s: pods pending is %t, want %t", w.at(), name, got.podsPending, n.pending)
		}
	}
	w.checkGrants()
	for _, z := range v.Zones {
		if state := d.state(z.Name); z.State != state {
			w.Fatalf("N5: at %s: zone %s is %s, want %s", w.at(), z.Name, z.State, state)
		}
	}
}

// checkGrants holds new grants of NoExecute taints against their zones' rates.
func (w *world) checkGrants() {
	for _, name := range w.names() {
		n, granted := w.model.nodes[name], !w.m.nodes[name].grantedAt.IsZero()
		if granted && !n.granted && !n.tainted {
			w.model.grant(w, n)
		}
		n.granted = granted
	}
}

func (w *world) at() string { return w.now.Format("15:04:05") }

// model has the rules in their plainest form. Its figures are the machine's.
type model struct {
	f     Figures
	nodes map[string]*modelNode
	live  bool
	// ran and reported are when the machine last ran, and last heard of leases.
	ran, reported   time.Time
	sighted         bool
	held, disrupted bool
	heldAt          time.Time
	// granted is when a zone's limiter last let a node pass, zones are those seen.
	granted map[string]time.Time
	zones   map[string]bool
}

type modelNode struct {
	name, zone       string
	excluded, shown  bool
	base             time.Time
	ever, silent     bool
	object, ready    Status
	pending, granted bool
	hb, renew        time.Time
	tainted          bool
}

func (n *modelNode) bad() bool { return n.ready == StatusFalse || n.ready == StatusUnknown }

// step lets the model see that time has passed, or that it was not run.
func (d *model) step(now time.Time) {
	d.look(now)
	d.settle(now)
}

func (d *model) look(now time.Time) {
	if now.Sub(d.ran) > 5*time.Second || now.Sub(d.reported) > 5*time.Second || !d.live {
		d.sighted = false
	}
	d.ran = now
}

func (d *model) tick(now time.Time) { d.step(now) }

func (d *model) restart(now time.Time) {
	d.live, d.sighted, d.held, d.disrupted, d.ran = false, false, false, false, now
	for _, n := range d.nodes {
		n.shown = false
		if !n.silent {
			// When it was last heard is not remembered.
			n.hb, n.renew, n.ever = time.Time{}, time.Time{}, false
		}
		if !n.bad() {
			n.ready = StatusNone
		}
	}
}

func (d *model) see(now time.Time, o *object) {
	d.look(now)
	n := d.nodes[o.Name]
	if n == nil {
		n = &modelNode{name: o.Name, base: now}
		d.nodes[o.Name] = n
	}
	first := !n.shown
	n.shown, n.zone, n.excluded = true, o.Zone, o.Excluded
	if !d.zones[o.Zone] && d.live {
		// A zone that appears brings no grant with it.
		d.granted[o.Zone] = now
	}
	d.zones[o.Zone] = true
	n.object, n.tainted = o.Conditions[CondReady], o.Taints&noExecute != 0
	beat := n.object != StatusUnknown && !o.Heartbeat.IsZero() && !o.Heartbeat.Equal(n.hb) && (!first || !n.hb.IsZero())
	n.hb = o.Heartbeat
	switch {
	case beat:
		n.base, n.ever, n.silent = now, true, false
	case first && !n.silent:
		n.base, n.ever = now, n.ever || n.object != StatusNone
	}
	n.judge()
}

func (n *modelNode) judge() {
	ready := n.object
	if n.silent {
		ready = StatusUnknown
	}
	was := n.bad()
	n.ready = ready
	switch {
	case !n.bad():
		n.pending = false
	case !was:
		n.pending = true
	}
}

func (d *model) renewed(now time.Time, names []string, times []time.Time) {
	d.look(now)
	d.reported = now
	if d.live && !d.sighted {
		d.sighted, d.held = true, false
		d.doubt(now)
		d.amnesty(now)
	}
	for i, name := range names {
		n := d.nodes[name]
		n.renew, n.base, n.ever, n.silent = times[i], now, true, false
		n.judge()
	}
	d.settle(now)
}

// doubt gives up what a blind time leaves doubtful: silence that no node shows.
func (d *model) doubt(now time.Time) {
	for _, n := range d.nodes {
		if n.silent && n.object != StatusUnknown {
			n.silent, n.base = false, now
			n.judge()
		}
	}
}

func (d *model) amnesty(now time.Time) {
	for _, n := range d.nodes {
		if !n.silent {
			n.base = now
		}
	}
}

// settle finds the silent, then the disrupted.
func (d *model) settle(now time.Time) {
	if !d.live {
		return
	}
	if d.sighted {
		d.findSilent(now)
	}
	counted, all := false, true
	for _, n := range d.nodes {
		if n.excluded {
			continue
		}
		counted = true
		unheard := d.held && !n.silent && n.ever && now.Sub(n.base) >= d.f.Grace/2
		all = all && (n.ready != StatusTrue || unheard)
	}
	all = all && counted
	if d.disrupted && !all && !d.held {
		d.amnesty(now)
	}
	d.disrupted = all
}

func (d *model) findSilent(now time.Time) {
	quiet := false
	for _, n := range d.nodes {
		quiet = quiet || !n.silent && now.Sub(n.base) > d.f.Grace
	}
	if !quiet && !d.held {
		return
	}
	heard := d.heard()
	if d.held {
		still := 0
		for _, n := range heard {
			if !n.base.After(d.heldAt) {
				still++
			}
		}
		if len(heard) > 0 && float64(still) >= d.f.SilenceShare*float64(len(heard)) {
			return
		}
		d.held = false
		d.amnesty(now)
	}
	for _, n := range heard {
		if now.Sub(n.base) <= d.f.Grace {
			break
		}
		near, of := 0, 0
		for _, o := range d.heard() {
			of++
			if !o.base.After(n.base.Add(d.f.SilenceWindow)) && !o.base.After(now.Add(-d.f.Grace/2)) {
				near++
			}
		}
		if float64(near) >= d.f.SilenceShare*float64(of) {
			d.held, d.heldAt = true, now
			return
		}
		n.silent = true
		n.judge()
	}
	for _, n := range d.nodes {
		if !n.silent && !n.ever && now.Sub(n.base) > d.f.StartupGrace {
			n.silent = true
			n.judge()
		}
	}
}

// heard are the nodes that send heartbeats, the quietest first.
func (d *model) heard() (list []*modelNode) {
	for _, n := range d.nodes {
		if !n.silent && n.ever {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *modelNode) int { return cmp.Or(a.base.Compare(b.base), cmp.Compare(a.name, b.name)) })
	return list
}

// counted is how many nodes of a zone count.
func (d *model) counted(zone string) (of int) {
	for _, n := range d.nodes {
		if n.zone == zone && !n.excluded {
			of++
		}
	}
	return of
}

func (d *model) state(zone string) ZoneState {
	of, bad := 0, 0
	for _, n := range d.nodes {
		if n.zone == zone && !n.excluded {
			of++
			if n.ready != StatusTrue {
				bad++
			}
		}
	}
	switch {
	case of > 0 && bad == of:
		return ZoneFull
	case bad >= 3 && float64(bad) >= 0.55*float64(of):
		return ZonePartial
	}
	return ZoneNormal
}

// grant holds a node's new NoExecute taint against its zone's rate.
func (d *model) grant(w *world, n *modelNode) {
	if d.held || d.disrupted {
		w.Fatalf("N5, N8: at %s: node %s got its NoExecute taint although nobody may", w.at(), n.name)
	}
	if d.state(n.zone) == ZonePartial && d.counted(n.zone) <= d.f.LargeZone {
		w.Fatalf("N5: at %s: node %s got its NoExecute taint in zone %s, which is small and partially disrupted", w.at(), n.name, n.zone)
	}
	last, before := d.granted[n.zone]
	if before && w.now.Sub(last) < 10*time.Second {
		w.Fatalf("N5: at %s: node %s got its NoExecute taint %s after another of zone %s", w.at(), n.name, w.now.Sub(last), n.zone)
	}
	d.granted[n.zone] = w.now
}
