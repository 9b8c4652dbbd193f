package engine_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/mem"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const cluster = "prod"

var podNames = []string{"a", "b", "c", "d", "e"}

// TestPropertyMem drives the engine with random clusters against the model.
// REPRIEVE_CASES or -rapid.checks change the number of cases.
func TestPropertyMem(t *testing.T) {
	// Two halves side by side, each with seeds of its own.
	for half := range 2 {
		t.Run("half"+strconv.Itoa(half), func(t *testing.T) {
			t.Parallel()
			checks(t, 5000, func(rt *rapid.T) {
				data := mem.New()
				runCase(rt, data.Open)
			})
		})
	}
}

// TestPropertyBolt is the same on real files.
func TestPropertyBolt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var n int
	checks(t, 300, func(rt *rapid.T) {
		n++
		path := fmt.Sprintf("%s/%d.db", dir, n)
		runCase(rt, func(ctx context.Context) (engine.Store, error) { return bolt.Open(ctx, bolt.Options{Path: path}) })
	})
}

var checksOnce sync.Mutex // guards the flag while rapid reads it

// checks runs a property for a number of cases, unless the flag asks for another.
func checks(t *testing.T, n int, prop func(*rapid.T)) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	checksOnce.Lock()
	if f.Value.String() == f.DefValue {
		if err := f.Value.Set(strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Value.Set(f.DefValue) }()
	}
	checksOnce.Unlock()
	rapid.Check(t, prop)
}

// rig is one case: the engine on its driver, and the model beside it.
type rig struct {
	*rapid.T
	ctx    context.Context
	d      *replay.Driver
	m      *model
	store  *watchedStore
	during *during // what happens during the commit that is held; nil while none is
	uids   int
	orders int // orders judged so far
	ledger
	oldTokens []string
	gated     gated
	// lingers are pods, by name, that stay although they are reported gone.
	lingers map[string]bool
	// early says, by token, what was wrong with an order at the moment it left.
	early map[string]string
}

// gated are evictions that a gate kept back beyond their due instant, and that a
// barrier lets go at one instant.
type gated struct {
	at   time.Time
	seqs map[uint64]bool
	// through has all that is open once the barrier is through, by sequence; nil until
	// the next step. One that leaves on other grounds was written again in the same
	// instant and waits for that commit: it may be late, but it overtakes nobody.
	through map[uint64]*engine.EvictionRecord
	// last is the one of them that left last.
	last *engine.EvictionRecord
}

// ledger is what the rig keeps of the pods' orders, by UID.
type ledger struct {
	// out are orders that nobody answers, with their deadlines and tokens.
	out    map[string]time.Time
	tokens map[string]string
	// retryAt is when a pod may be sent again after a failed order, attempts how
	// many of them failed, silent how many in a row had no answer.
	retryAt          map[string]time.Time
	attempts, silent map[string]int
	// lingering are pods reported gone that the feed goes on showing; failed are
	// those with an order that did not come about.
	lingering map[string]engine.Outcome
	failed    map[string]bool
}

// runCase runs a case in a bubble, so that it can tell during a commit when the
// shards have taken in what it did meanwhile.
func runCase(rt *rapid.T, open engine.StoreOpener) {
	rapid.SyncTest(rt, func(rt *rapid.T) { runInBubble(rt, open) })
}

func runInBubble(rt *rapid.T, open engine.StoreOpener) {
	ctx := context.Background()
	r := &rig{
		T: rt, ctx: ctx, m: newModel(epoch), store: &watchedStore{saved: map[string]bool{}}, lingers: map[string]bool{}, early: map[string]string{},
		ledger: ledger{
			out: map[string]time.Time{}, tokens: map[string]string{}, retryAt: map[string]time.Time{},
			attempts: map[string]int{}, silent: map[string]int{}, lingering: map[string]engine.Outcome{}, failed: map[string]bool{},
		},
	}
	d, err := replay.NewDriver(ctx, r.store.opener(open), epoch, 3)
	if err != nil {
		rt.Fatal(err)
	}
	defer d.Close(ctx)
	r.d, d.OnOrder = d, r.left
	r.must(d.SetPolicy(ctx, cluster, engine.PolicyPatch{Policy: engine.Policy{UnlimitedRate: true}, Fields: engine.PolicyRate}))
	for _, name := range podNames {
		if rapid.IntRange(0, 3).Draw(rt, "lingers") == 0 {
			r.linger(name)
		}
	}
	for range rapid.IntRange(1, 3).Draw(rt, "nodes") {
		r.addNode()
	}
	for range rapid.IntRange(1, 4).Draw(rt, "pods") {
		r.addPod()
	}
	r.relist()
	for range rapid.IntRange(4, 22).Draw(rt, "steps") {
		r.step()
		r.check()
	}
	r.finish()
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// relist gives the service a whole list.
func (r *rig) relist() {
	for _, name := range r.nodeNames() {
		r.must(r.d.Apply(r.ctx, cluster, upsertNode(name, r.m.nodes[name])))
	}
	for _, uid := range slices.Sorted(maps.Keys(r.m.pods)) {
		r.must(r.d.Apply(r.ctx, cluster, upsertPod(r.m.pods[uid])))
	}
	r.opensGate()
	r.must(r.d.Synced(r.ctx, cluster))
	before := r.m.known
	r.m.list()
	for name, n := range before {
		if now := r.m.known[name]; now == nil || now.uid != n.uid {
			r.dropRequests(name)
		}
	}
	r.judge()
}

var steps = []string{
	"advance", "advance", "advance", "advance", "taint", "taint", "taint", "swap", "tolerations", "addPod", "replacePod",
	"deletePod", "terminate", "finish", "deleteNode", "addNode", "replaceNode", "lose", "restart", "pause", "policy",
	"request", "withdraw", "reprieve", "revoke", "outcome", "linger", "staleAnswer", "mode",
	"during", "during", "during", "during",
}

func (r *rig) step() {
	r.act(rapid.SampledFrom(steps).Draw(r.T, "step"))
}

func (r *rig) act(kind string) {
	r.gateOpened()
	switch kind {
	case "during":
		r.duringStep()
	case "advance":
		r.advance(rapid.SampledFrom([]int{0, 1, 4, 5, 10, 29, 31, 60, 61, 299, 300, 301}).Draw(r.T, "by"))
	case "taint", "swap", "deleteNode", "addNode", "replaceNode":
		r.nodeStep(kind)
	case "addPod", "replacePod", "deletePod", "terminate", "finish", "tolerations":
		r.podStep(kind)
	case "lose":
		r.lose()
	case "restart":
		r.restart()
	case "outcome", "linger", "staleAnswer":
		r.executorStep(kind)
	case "attach":
		r.attach()
	default:
		r.adminStep(kind)
	}
}

func (r *rig) advance(seconds int) {
	to := r.d.Now() + time.Duration(seconds)*time.Second
	r.must(r.d.RunUntil(r.ctx, to))
	r.m.now = epoch.Add(to)
	r.judge()
	r.checkSent()
	r.shadowed()
}

func (r *rig) nodeNames() []string { return slices.Sorted(maps.Keys(r.m.nodes)) }

func (r *rig) pickNode() string {
	names := r.nodeNames()
	if len(names) == 0 {
		return ""
	}
	return rapid.SampledFrom(names).Draw(r.T, "node")
}

func (r *rig) pickPod() *mPod {
	uids := slices.Sorted(maps.Keys(r.m.pods))
	if len(uids) == 0 {
		return nil
	}
	return r.m.pods[rapid.SampledFrom(uids).Draw(r.T, "pod")]
}

func (r *rig) addNode() string {
	name := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(r.T, "new node")
	if r.m.nodes[name] == nil {
		r.uids++
		r.m.nodes[name] = &mNode{uid: fmt.Sprintf("node-%d", r.uids)}
	}
	return name
}

func (r *rig) drawTolerations() []corev1.Toleration {
	var out []corev1.Toleration
	for range rapid.IntRange(0, 3).Draw(r.T, "tolerations") {
		t := corev1.Toleration{
			Key:      rapid.SampledFrom([]string{"x", "y", notReady, unreachable, ""}).Draw(r.T, "key"),
			Operator: corev1.TolerationOpExists,
			Effect:   rapid.SampledFrom([]corev1.TaintEffect{"NoExecute", "", "NoSchedule"}).Draw(r.T, "effect"),
		}
		if t.Key != "" && rapid.IntRange(0, 3).Draw(r.T, "equal") == 0 {
			t.Operator, t.Value = corev1.TolerationOpEqual, rapid.SampledFrom([]string{"", "v"}).Draw(r.T, "value")
		}
		if s := rapid.SampledFrom([]int64{-5, 0, 5, 30, 60, 300, 1 << 40, -1 << 40, 77}).Draw(r.T, "seconds"); s != 77 {
			t.TolerationSeconds = &s
		}
		out = append(out, t)
	}
	return out
}

func (r *rig) addPod() *mPod {
	name := rapid.SampledFrom(podNames).Draw(r.T, "new pod")
	for _, p := range r.m.pods {
		if p.name == name {
			return nil
		}
	}
	return r.newPod(name)
}

func (r *rig) newPod(name string) *mPod {
	r.uids++
	ago := rapid.SampledFrom([]int{0, 0, 3, 100}).Draw(r.T, "bound ago")
	p := &mPod{
		namespace: "default", name: name, uid: fmt.Sprintf("uid-%s-%d", name, r.uids), tolerations: r.drawTolerations(),
		node:  rapid.SampledFrom([]string{"n1", "n2", "n3", ""}).Draw(r.T, "pod's node"),
		bound: r.m.now.Add(-time.Duration(ago) * time.Second), mirror: rapid.IntRange(0, 9).Draw(r.T, "mirror") == 0,
		requests: map[string]time.Time{},
	}
	r.m.pods[p.uid] = p
	return p
}

func (r *rig) drawTaints() []mTaint {
	var out []mTaint
	for _, key := range []string{"x", "y", notReady, unreachable} {
		if rapid.IntRange(0, 2).Draw(r.T, "taint "+key) != 0 {
			continue
		}
		t := mTaint{key: key, value: rapid.SampledFrom([]string{"", "", "v"}).Draw(r.T, "taint value")}
		if ago := rapid.SampledFrom([]int{-20, 0, 7, 50, 1000, 77, 77}).Draw(r.T, "added ago"); ago != 77 {
			t.added = r.m.now.Add(-time.Duration(ago) * time.Second)
		}
		out = append(out, t)
	}
	return out
}

// show sends an event if the feed is live; while it is lost, the next list has it.
func (r *rig) show(ev engine.Event) {
	if !r.m.live {
		return
	}
	r.must(r.d.Apply(r.ctx, cluster, ev))
	if r.during != nil {
		r.must(r.d.Send(r.ctx))
	}
}

// see is the service's look at a node that was shown.
func (r *rig) see(name string) {
	if r.m.live {
		r.m.see(name)
	}
}

func (r *rig) nodeStep(kind string) {
	if kind == "addNode" {
		name := r.addNode()
		r.show(upsertNode(name, r.m.nodes[name]))
		r.see(name)
		return
	}
	name := r.pickNode()
	n := r.m.nodes[name]
	if n == nil {
		return
	}
	switch kind {
	case "taint":
		n.taints = r.drawTaints()
	case "swap":
		for i := range n.taints {
			switch n.taints[i].key {
			case notReady:
				n.taints[i].key = unreachable
			case unreachable:
				n.taints[i].key = notReady
			}
		}
	case "deleteNode":
		delete(r.m.nodes, name)
		r.show(engine.Event{Type: engine.EventDelete, Node: &engine.Node{Name: name, UID: n.uid}})
		r.see(name)
		r.dropRequests(name)
		return
	case "replaceNode":
		r.uids++
		r.m.nodes[name] = &mNode{uid: fmt.Sprintf("node-%d", r.uids), taints: n.taints}
		n = r.m.nodes[name]
		r.dropRequests(name)
	}
	r.show(upsertNode(name, n))
	r.see(name)
}

// dropRequests: what was open on a node that is gone is closed, requests with it (D15).
func (r *rig) dropRequests(node string) {
	for _, p := range r.m.pods {
		if p.node == node {
			clear(p.requests)
			if _, lingers := r.lingering[p.uid]; lingers {
				// What was to be confirmed is closed.
				r.lingering[p.uid] = engine.OutcomeGone
			}
			if r.out[p.uid].After(r.m.now) {
				// Called back: after its deadline another eviction begins.
				r.retryAt[p.uid] = r.out[p.uid]
				delete(r.attempts, p.uid)
				delete(r.silent, p.uid)
			}
			r.over(p.uid)
		}
	}
}

// over forgets what was counted for an eviction that is closed.
func (r *rig) over(uid string) {
	if _, lingers := r.lingering[uid]; lingers || r.out[uid].After(r.m.now) {
		return
	}
	delete(r.retryAt, uid)
	delete(r.attempts, uid)
	delete(r.silent, uid)
	delete(r.failed, uid)
}

func (r *rig) podStep(kind string) {
	if kind == "addPod" {
		if p := r.addPod(); p != nil {
			r.show(upsertPod(p))
		}
		return
	}
	p := r.pickPod()
	if p == nil {
		return
	}
	switch kind {
	case "tolerations":
		p.tolerations = r.drawTolerations()
		if p.node == "" {
			p.node, p.bound = "n1", r.m.now
		}
	case "terminate":
		p.terminating = true
		clear(p.requests)
	case "finish":
		p.finished = true
		clear(p.requests)
	case "deletePod":
		delete(r.m.pods, p.uid)
		r.show(engine.Event{Type: engine.EventDelete, Pod: &engine.Pod{Namespace: p.namespace, Name: p.name, UID: p.uid}})
		return
	case "replacePod":
		delete(r.m.pods, p.uid)
		p = r.newPod(p.name)
	}
	r.show(upsertPod(p))
}

// forgotten: a restart remembers nothing of what was closed before it.
func (r *rig) forgotten() {
	for uid, o := range r.lingering {
		if o == engine.OutcomeGone {
			delete(r.lingering, uid)
			delete(r.retryAt, uid)
		}
	}
}

// gap takes the feed away, lets the cluster change unseen, and lists again.
func (r *rig) gap(lose func()) {
	r.flush()
	r.m.live, r.m.lastLive = false, r.m.now
	lose()
	r.judge()
	r.unseen()
	r.relist()
}

// lose takes the feed away. During a commit the list comes after it.
func (r *rig) lose() {
	if r.during == nil {
		r.gap(func() { r.must(r.d.FeedLost(r.ctx, cluster)) })
		return
	}
	if r.m.live {
		r.m.live, r.m.lastLive = false, r.m.now
		r.must(r.d.DropFeed(r.ctx, cluster))
	}
}

// unseen lets the cluster change while there is no feed.
func (r *rig) unseen() {
	for range rapid.IntRange(0, 2).Draw(r.T, "unseen") {
		switch kind := rapid.SampledFrom([]string{"advance", "taint", "deletePod", "addPod", "swap", "deleteNode", "addNode"}).Draw(r.T, "unseen step"); kind {
		case "advance":
			r.advance(rapid.SampledFrom([]int{1, 20, 100}).Draw(r.T, "by"))
		default:
			r.act(kind)
		}
	}
}

func (r *rig) restart() {
	r.gap(func() {
		r.must(r.d.Heartbeat(r.ctx))
		before := r.open()
		down := rapid.SampledFrom([]int{0, 1, 30, 400}).Draw(r.T, "down")
		r.must(r.d.Restart(r.ctx, time.Duration(down)*time.Second))
		r.forgotten()
		if after := r.open(); !sameDues(before, after) {
			r.Fatalf("I2: open before the restart %v, after it %v", describe(before), describe(after))
		}
		r.m.now = epoch.Add(r.d.Now())
	})
}

func sameDues(a, b map[string]*engine.EvictionRecord) bool {
	return maps.EqualFunc(a, b, func(x, y *engine.EvictionRecord) bool {
		return x.Due.Equal(y.Due) && x.Seq == y.Seq && x.Cause.Start.Equal(y.Cause.Start)
	})
}

func describe(open map[string]*engine.EvictionRecord) (out []string) {
	for _, uid := range slices.Sorted(maps.Keys(open)) {
		out = append(out, fmt.Sprintf("%s %s due %s", uid, open[uid].State, open[uid].Due.Sub(epoch)))
	}
	return out
}

func (r *rig) executorStep(kind string) {
	switch kind {
	case "outcome":
		name := rapid.SampledFrom(podNames).Draw(r.T, "outcome of")
		o := rapid.SampledFrom([]engine.Outcome{
			engine.OutcomeEvicted, engine.OutcomeGone, engine.OutcomeDenied, engine.OutcomeFailed, engine.OutcomeStale,
			engine.OutcomeBlocked, engine.OutcomeNoAnswer,
		}).Draw(r.T, "outcome")
		r.d.SetOutcome(cluster, "default", name, o)
	case "linger":
		r.linger(rapid.SampledFrom(podNames).Draw(r.T, "lingers"))
	case "staleAnswer":
		if len(r.oldTokens) == 0 {
			return
		}
		token := rapid.SampledFrom(r.oldTokens).Draw(r.T, "old token")
		r.flush()
		before := r.open()
		if r.d.Answer(token, engine.OutcomeEvicted) {
			r.Fatalf("I6: the answer with the old token %s was accepted", token)
		}
		if after := r.open(); !sameDues(before, after) {
			r.Fatalf("I6: an old token changed %v to %v", describe(before), describe(after))
		}
	}
}

// linger makes pods of a name stay although they are reported gone, or go again.
func (r *rig) linger(name string) {
	r.lingers[name] = !r.lingers[name]
	r.d.SetLinger(cluster, "default", name, r.lingers[name])
}

func (r *rig) adminStep(kind string) {
	switch kind {
	case "pause":
		paused := r.m.paused
		r.opensGate()
		r.call(func(eng *engine.Engine) (err error) {
			if paused {
				_, err = eng.Resume(r.ctx, engine.PauseScope{Cluster: cluster}, false)
			} else {
				_, err = eng.Pause(r.ctx, cluster, engine.Pause{Reason: "test"})
			}
			return err
		}, r.must)
		r.m.paused = !paused
	case "mode":
		r.m.shadow = !r.m.shadow
		r.opensGate()
		mode := engine.ModeEnforce
		if r.m.shadow {
			mode = engine.ModeShadow
		}
		r.setPolicy(engine.PolicyPatch{Policy: engine.Policy{Mode: mode}, Fields: engine.PolicyMode})
	case "policy":
		r.policyStep()
	case "request", "withdraw":
		r.requestStep(kind)
	case "reprieve", "revoke":
		r.reprieveStep(kind)
	}
}

func (r *rig) setPolicy(p engine.PolicyPatch) {
	r.call(func(eng *engine.Engine) error {
		_, err := eng.SetPolicy(r.ctx, cluster, engine.PolicyUpdate{Patch: p})
		return err
	}, r.must)
}

func (r *rig) policyStep() {
	var p engine.PolicyPatch
	switch rapid.IntRange(0, 3).Draw(r.T, "policy field") {
	case 0:
		p.DefaultNotReady = time.Duration(rapid.SampledFrom([]int{0, 10, 300, 600}).Draw(r.T, "not ready")) * time.Second
		p.Fields = engine.PolicyDefaultNotReady
		r.m.defaults[notReady] = p.DefaultNotReady
	case 1:
		p.DefaultUnreachable = time.Duration(rapid.SampledFrom([]int{0, 10, 300, 600}).Draw(r.T, "unreachable")) * time.Second
		p.Fields = engine.PolicyDefaultUnreachable
		r.m.defaults[unreachable] = p.DefaultUnreachable
	case 2:
		p.DisableDefaults, p.Fields = !r.m.noDefaults, engine.PolicyDisableDefaults
		r.m.noDefaults = p.DisableDefaults
	case 3:
		clear(r.m.ignored)
		p.Fields = engine.PolicyIgnoredTaintKeys
		for _, key := range []string{"x", notReady} {
			if rapid.Bool().Draw(r.T, "ignore "+key) {
				r.m.ignored[key] = true
				p.IgnoredTaintKeys = append(p.IgnoredTaintKeys, key)
			}
		}
	}
	r.setPolicy(p)
}

func (r *rig) requestStep(kind string) {
	p := r.pickPod()
	if p == nil || !r.m.live {
		return
	}
	id := rapid.SampledFrom([]string{"r1", "r2"}).Draw(r.T, "request id")
	_, had := p.requests[id]
	// While an order is out or to be confirmed, its eviction keeps what was asked for.
	_, lingers := r.lingering[p.uid]
	unsure := lingers || !r.out[p.uid].IsZero()
	if kind == "withdraw" {
		r.call(func(eng *engine.Engine) error {
			_, err := eng.WithdrawEviction(r.ctx, cluster, "backend", p.uid+id)
			return err
		}, func(err error) {
			if had != (err == nil) && !unsure {
				r.Fatalf("withdrawing %s of %s: request there: %t, error: %v", id, p.uid, had, err)
			}
		})
		delete(p.requests, id)
		return
	}
	if had {
		return
	}
	in := time.Duration(rapid.SampledFrom([]int{-10, 0, 20, 100}).Draw(r.T, "not before")) * time.Second
	req := engine.EvictionRequest{
		Cluster: cluster, ID: p.uid + id, Requester: "backend", Pod: engine.PodRef{UID: p.uid}, NotBefore: r.m.now.Add(in),
	}
	subject := p.node != "" && r.m.known[p.node] != nil && !p.terminating && !p.finished && !p.mirror
	r.call(func(eng *engine.Engine) error {
		_, err := eng.RequestEviction(r.ctx, req)
		return err
	}, func(err error) {
		if subject != (err == nil) && (subject || !unsure) {
			r.Fatalf("requesting the eviction of %s: subject: %t, error: %v", p.uid, subject, err)
		}
	})
	if subject {
		p.requests[id] = r.m.now.Add(max(in, 0))
	}
}

func (r *rig) reprieveStep(kind string) {
	p := r.pickPod()
	if p == nil || !r.m.live {
		return
	}
	if kind == "revoke" {
		had := r.m.reprieves[p.uid].After(r.m.now) && !p.terminating && !p.finished
		r.call(func(eng *engine.Engine) error {
			return eng.RevokeReprieve(r.ctx, cluster, engine.PodRef{UID: p.uid})
		}, func(err error) {
			if had && err != nil {
				r.Fatalf("revoking the reprieve of %s: %v", p.uid, err)
			}
		})
		delete(r.m.reprieves, p.uid)
		return
	}
	until := r.m.now.Add(time.Duration(rapid.SampledFrom([]int{1, 30, 500}).Draw(r.T, "reprieve for")) * time.Second)
	r.call(func(eng *engine.Engine) error {
		_, err := eng.GrantReprieve(r.ctx, cluster, engine.PodRef{UID: p.uid}, engine.ReprieveRecord{Until: until, Reason: "test"})
		return err
	}, r.must)
	r.m.reprieves[p.uid] = until
}

// flush lets what was sent have its effect, without a timer of the instant.
func (r *rig) flush() {
	r.must(r.d.AdvanceTo(r.ctx, r.d.Now()))
}

// open lists the open evictions by UID.
func (r *rig) open() map[string]*engine.EvictionRecord {
	page, err := r.d.Engine().List(r.ctx, engine.ListQuery{Limit: 1000})
	r.must(err)
	out := map[string]*engine.EvictionRecord{}
	for _, e := range page.Evictions {
		if out[e.UID] != nil {
			r.Fatalf("I5: two open evictions of %s", e.UID)
		}
		out[e.UID] = e
	}
	return out
}

// judge looks at the orders that have left since it last did.
func (r *rig) judge() {
	all := r.d.Orders()
	now := r.m.now
	for ; r.orders < len(all); r.orders++ {
		o := all[r.orders]
		r.m.now = epoch.Add(o.At)
		r.judgeOrder(&o)
	}
	r.m.now = now
}

func (r *rig) judgeOrder(o *replay.Order) {
	if why := r.early[o.Token]; why != "" {
		r.Fatalf("order of %s at %s, at the moment it left: %s", o.UID, o.At, why)
	}
	if why := r.m.maySend(o.UID); why != "" {
		r.Fatalf("order of %s at %s: %s", o.UID, o.At, why)
	}
	_, lingers := r.lingering[o.UID]
	if due, _ := r.m.due(r.m.pods[o.UID]); !lingers && !due.Equal(epoch.Add(o.Due)) {
		r.Fatalf("order of %s at %s says due %s, it is %s", o.UID, o.At, o.Due, due.Sub(epoch))
	}
	r.judgePlace(o.Record)
	if r.out[o.UID].After(r.m.now) {
		r.Fatalf("I5: order of %s at %s while another is out", o.UID, o.At)
	}
	if at := r.retryAt[o.UID]; at.After(r.m.now) {
		r.Fatalf("order of %s at %s, not before %s", o.UID, o.At, at.Sub(epoch))
	}
	delete(r.out, o.UID)
	r.oldTokens = append(r.oldTokens, o.Token)
	r.answered(o)
}

// opensGate notes what is overdue before a barrier that may let it go.
func (r *rig) opensGate() {
	if r.during != nil {
		return
	}
	r.flush()
	r.gated = gated{at: r.m.now, seqs: map[uint64]bool{}}
	for uid, e := range r.open() {
		// One whose own time of rest ends now is let go by its timer.
		rests := !r.retryAt[uid].Before(r.m.now) || r.m.reprieves[uid].Equal(r.m.now)
		r.gated.seqs[e.Seq] = e.Hold != engine.HoldNone && e.Due.Before(r.m.now) && !rests
	}
}

// gateOpened notes what there is once a barrier is through.
func (r *rig) gateOpened() {
	if r.during != nil || r.gated.through != nil || !r.gated.at.Equal(r.m.now) {
		return
	}
	r.flush()
	r.gated.through = map[uint64]*engine.EvictionRecord{}
	for _, e := range r.open() {
		r.gated.through[e.Seq] = e
	}
}

// judgePlace looks at an order's place among those that one barrier let go (I8).
func (r *rig) judgePlace(e *engine.EvictionRecord) {
	if !r.gated.at.Equal(r.m.now) || !r.gated.seqs[e.Seq] {
		return
	}
	if last := r.gated.last; last != nil && (e.Due.Before(last.Due) || e.Due.Equal(last.Due) && e.Seq < last.Seq) {
		if was := r.gated.through[e.Seq]; was != nil && !reflect.DeepEqual(was.Cause, e.Cause) {
			return
		}
		r.Fatalf("I8: order of %s, due %s, after that of %s, due %s", e.UID, e.Due.Sub(epoch), last.UID, last.Due.Sub(epoch))
	}
	r.gated.last = e
}

func (r *rig) answered(o *replay.Order) {
	uid := o.UID
	// Nothing of an earlier answer is to be confirmed any more.
	delete(r.lingering, uid)
	switch o.Outcome {
	case engine.OutcomeEvicted, engine.OutcomeGone:
		if !r.lingers[o.Pod] {
			delete(r.m.pods, uid)
			return
		}
		if o.Outcome == engine.OutcomeGone {
			// Closed, and what was asked for with it; later requests are for what comes next.
			clear(r.m.pods[uid].requests)
		}
		r.lingering[uid] = o.Outcome
		r.retryAt[uid] = r.m.now.Add(60 * time.Second)
	case engine.OutcomeNoAnswer:
		r.unanswered(uid, o.Token)
		r.oldTokens = r.oldTokens[:len(r.oldTokens)-1]
	case engine.OutcomeStale:
		r.retryAt[uid] = r.m.now.Add(5 * time.Second)
	case engine.OutcomeBlocked:
		r.retryAt[uid] = r.m.now.Add(10 * time.Second)
	default:
		r.attempts[uid]++
		r.retryAt[uid] = r.m.now.Add(back(r.attempts[uid]))
	}
	r.failed[uid] = true
	if o.Outcome != engine.OutcomeNoAnswer {
		delete(r.silent, uid)
	}
}

// unanswered notes an order that nobody will answer.
func (r *rig) unanswered(uid, token string) {
	r.silent[uid]++
	r.attempts[uid]++
	r.out[uid], r.tokens[uid] = r.m.now.Add(30*time.Second), token
	r.retryAt[uid] = r.out[uid]
	if n := r.silent[uid]; n > 1 {
		r.retryAt[uid] = r.retryAt[uid].Add(back(n - 1))
	}
}

// back is the wait after the n-th attempt.
func back(n int) time.Duration { return min(time.Second<<min(n-1, 20), 5*time.Minute) }

// check compares what is open with what should be, once everything of the
// instant is in. It fires no timer.
func (r *rig) check() {
	r.flush()
	r.judge()
	if !r.m.live {
		return
	}
	open := r.open()
	for _, uid := range slices.Sorted(maps.Keys(r.m.pods)) {
		r.checkPod(r.m.pods[uid], open[uid])
	}
	for uid, e := range open {
		if r.m.pods[uid] == nil && !r.out[uid].After(r.m.now) && e.State != engine.StateDelivered && e.State != engine.StateRecalling {
			r.Fatalf("%s is gone and its eviction is open: %+v", uid, e)
		}
	}
}

func (r *rig) checkPod(p *mPod, e *engine.EvictionRecord) {
	due, leaves := r.m.due(p)
	out := r.out[p.uid].After(r.m.now) || !r.out[p.uid].IsZero() && e != nil && (e.State == engine.StateDelivered || e.State == engine.StateRecalling)
	if out && r.recallSeen(p, due, leaves) {
		// Called back: what comes next is another eviction, or the same without a back-off.
		r.retryAt[p.uid] = r.out[p.uid]
		delete(r.attempts, p.uid)
		delete(r.silent, p.uid)
	}
	if _, lingers := r.lingering[p.uid]; out || lingers {
		return
	}
	switch {
	case !leaves && e != nil:
		r.Fatalf("%s: nothing makes it leave, and it has an open eviction: %+v", p.uid, e)
	case !leaves:
		// Closed: what was counted for it is over.
		r.over(p.uid)
	case r.m.shadow && !due.After(r.m.now):
		// Said already, or about to be.
	case e == nil:
		r.Fatalf("I2: %s is due at %s and has no open eviction", p.uid, due.Sub(epoch))
	case !e.Due.Equal(due):
		r.Fatalf("I10: %s is due at %s, its eviction says %s (%+v)", p.uid, due.Sub(epoch), e.Due.Sub(epoch), e.Cause)
	}
}

// recallSeen says whether an order that is out has become unwanted.
func (r *rig) recallSeen(p *mPod, due time.Time, leaves bool) bool {
	return !leaves || due.After(r.m.now) || r.m.paused || r.m.shadow || r.m.reprieves[p.uid].After(r.m.now)
}

// checkSent is liveness: what may leave has left. It holds when the timers of
// the instant have fired.
func (r *rig) checkSent() {
	for _, uid := range slices.Sorted(maps.Keys(r.m.pods)) {
		p := r.m.pods[uid]
		if r.failed[uid] || !r.out[uid].IsZero() {
			continue
		}
		if r.m.maySend(uid) == "" {
			r.Fatalf("%s may leave since %s and is still here at %s", uid, func() time.Duration { d, _ := r.m.due(p); return d.Sub(epoch) }(), r.d.Now())
		}
	}
}

// shadowed takes away the requests of pods of which shadow mode has said that they would leave.
func (r *rig) shadowed() {
	if !r.m.shadow || r.m.paused || !r.m.live {
		return
	}
	for uid, p := range r.m.pods {
		due, leaves := r.m.due(p)
		if _, lingers := r.lingering[uid]; lingers {
			continue
		}
		if r.retryAt[uid].After(r.m.now) {
			// Held back, so nothing has been said of it yet.
			continue
		}
		if leaves && !due.After(r.m.now) && !r.m.reprieves[uid].After(r.m.now) && !r.out[uid].After(r.m.now) {
			clear(p.requests)
			r.over(uid)
		}
	}
}

// finish opens all gates and lets everything go that has to.
func (r *rig) finish() {
	if r.m.paused {
		r.adminStep("pause")
	}
	if r.m.shadow {
		r.adminStep("mode")
	}
	for _, name := range podNames {
		r.d.SetOutcome(cluster, "default", name, engine.OutcomeEvicted)
		r.d.SetLinger(cluster, "default", name, false)
		r.lingers[name] = false
	}
	r.check()
	r.advance(30)
	r.check()
	r.advance(2000)
	open := r.open()
	for _, uid := range slices.Sorted(maps.Keys(r.m.pods)) {
		if due, leaves := r.m.due(r.m.pods[uid]); leaves && !due.After(r.m.now) && r.lingering[uid] == 0 {
			r.Fatalf("I2: %s was due at %s and is still here at the end (%v)", uid, due.Sub(epoch), describe(open))
		}
	}
}
