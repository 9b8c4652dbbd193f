//go:build crash

package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	nodeCount   = 12
	podsPerNode = 15
	taintKey    = "crash.test/outage"
	clusterName = "c"
)

// never is the toleration of pods that no taint makes leave.
const never = -1

// pod is a pod as the cluster has it.
type pod struct {
	name, uid string
	node      int
	// wait is how long the pod tolerates the taint, in seconds; 0 not at all, never for ever.
	wait int
	// were are the waits it had before.
	were []past[int]
	bits
}

// past is what was so until a change, which the service may not know of yet.
type past[T any] struct {
	was T
	// told is the number of the change; fence is as in bits.
	told, fence uint64
}

// settle notes that the service has all changes up to number.
func settle[T any](were []past[T], number, fence uint64) {
	for i := range were {
		if w := &were[i]; w.told <= number && w.fence == 0 {
			w.fence = fence
		}
	}
}

// drop leaves out what no order can be of any more that comes after the fence.
func drop[T any](were []past[T], passed uint64) []past[T] {
	return slices.DeleteFunc(were, func(w past[T]) bool { return w.fence != 0 && w.fence <= passed })
}

// bits are what an object's judgement depends on.
type bits struct {
	// version grows with each change that may move the due instant.
	version int
	// told is the number of the change that says so, 0 before any; settled when its acknowledgement is in.
	told    uint64
	settled time.Time
	// fence is the one that was made when that acknowledgement was in: what comes to the executor after it was sent
	// by a service that knew. 0 while settled is zero.
	fence uint64
}

// change is to be called with the number of a change that may move the due instant.
func (b *bits) change(number uint64) {
	b.version++
	b.told, b.settled, b.fence = number, time.Time{}, 0
}

// know notes that the service has all changes up to number.
func (b *bits) know(number, fence uint64) {
	if b.told <= number && b.settled.IsZero() {
		b.settled, b.fence = time.Now(), fence
	}
}

// ledger has what changes in a cluster for its feed. Who embeds it keeps all else under the same lock.
type ledger struct {
	name string
	// settle notes what the service knows by now: all changes up to number. mu is held.
	settle func(number, fence uint64)

	mu  sync.Mutex // guards what follows but the fences
	rng *rand.Rand
	// changes counts all changes; queue has those that no stream has taken.
	changes uint64
	queue   []change
	wake    chan struct{}

	// fences counts the fences that were asked for; fence, if set, is told of a new one.
	fences atomic.Uint64
	fence  func()
}

// change is one event and its number.
type change struct {
	number uint64
	event  *reprievev1.Event
}

// emit tells of a change and returns its number. mu is held.
func (g *ledger) emit(e *reprievev1.Event) uint64 {
	g.changes++
	g.queue = append(g.queue, change{g.changes, e})
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return g.changes
}

// take empties the queue.
func (g *ledger) take() []change {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queue
	g.queue = nil
	return q
}

// woken is told of each change.
func (g *ledger) woken() <-chan struct{} { return g.wake }

// cluster is its name.
func (g *ledger) cluster() string { return g.name }

// acknowledge notes that the service has all changes up to number on its disk.
func (g *ledger) acknowledge(number uint64) {
	g.mu.Lock()
	g.settle(number, g.fences.Add(1))
	g.mu.Unlock()
	if g.fence != nil {
		g.fence()
	}
}

// world is the cluster: what is so, and what the service has acknowledged of it.
type world struct {
	ledger
	tainted [nodeCount]time.Time // zero: no taint
	were    [nodeCount][]past[time.Time]
	nodes   [nodeCount]bits
	pods    map[string]*pod // by uid
	names   map[string]string
	serial  int
	// steady is a node that keeps its taint, for probes; -1 if there is none.
	steady int
}

func newWorld(rng *rand.Rand) *world {
	w := &world{pods: map[string]*pod{}, names: map[string]string{}, steady: -1}
	w.ledger = ledger{name: clusterName, settle: w.settle, rng: rng, wake: make(chan struct{}, 1)}
	for n := range nodeCount {
		for i := range podsPerNode {
			w.create(fmt.Sprintf("p-%d-%d", n, i), n)
		}
	}
	return w
}

func nodeName(n int) string { return fmt.Sprintf("n-%d", n) }

func (w *world) create(name string, node int) *pod {
	w.serial++
	p := &pod{name: name, uid: fmt.Sprintf("uid-%d", w.serial), node: node, wait: w.rng.IntN(5)}
	if w.rng.IntN(10) == 0 {
		p.wait = never
	}
	w.pods[p.uid], w.names[name] = p, p.uid
	p.change(w.emit(w.upsert(p)))
	return p
}

// taint gives a node its taint, of now, or takes it away. mu is held.
func (w *world) taint(n int, on bool) {
	was := w.tainted[n]
	w.tainted[n] = time.Time{}
	if on {
		w.tainted[n] = time.Now()
	}
	w.nodes[n].change(w.emit(w.nodeEvent(n)))
	w.were[n] = append(w.were[n], past[time.Time]{was: was, told: w.nodes[n].told})
}

// tolerate changes a pod's wait. mu is held.
func (w *world) tolerate(p *pod, wait int) {
	was := p.wait
	p.wait = wait
	p.change(w.emit(w.upsert(p)))
	p.were = append(p.were, past[int]{was: was, told: p.told})
}

// hold taints a node for good, so that what is put there leaves.
func (w *world) hold(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steady = n
	w.taint(n, true)
}

// probePrefix begins the names of pods that do not come back and whose orders are answered at once.
const probePrefix = "probe-"

// bulkPrefix begins the names of pods that do not come back either.
const bulkPrefix = "bulk-"

// probe puts a pod that tolerates nothing on the steady node and returns its UID.
func (w *world) probe() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.put(fmt.Sprintf("%s%d", probePrefix, w.serial), 0)
}

// put puts a pod of a known wait on the steady node and returns its UID. mu is held.
func (w *world) put(name string, wait int) string {
	p := w.create(name, w.steady)
	// Told anew: its wait was of chance.
	w.tolerate(p, wait)
	return p.uid
}

func (w *world) upsert(p *pod) *reprievev1.Event {
	// Each has an owner of its own: what comes back to its node again and again would have to wait, for minutes in the end.
	owner := &reprievev1.OwnerReference{ApiVersion: "apps/v1", Kind: "ReplicaSet", Name: p.uid, Uid: "owner-" + p.uid, Controller: true}
	o := &reprievev1.Pod{
		Namespace: "default", Name: p.name, Uid: p.uid, NodeName: nodeName(p.node), Phase: "Running", OwnerReferences: []*reprievev1.OwnerReference{owner},
	}
	switch {
	case p.wait > 0:
		o.Tolerations = []*reprievev1.Toleration{{Key: taintKey, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: proto.Int64(int64(p.wait))}}
	case p.wait == never:
		o.Tolerations = []*reprievev1.Toleration{{Key: taintKey, Operator: "Exists", Effect: "NoExecute"}}
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: o}}
}

func (w *world) nodeEvent(n int) *reprievev1.Event {
	o := &reprievev1.Node{Name: nodeName(n), Uid: "uid-" + nodeName(n)}
	if !w.tainted[n].IsZero() {
		o.Taints = []*reprievev1.Taint{{Key: taintKey, Effect: "NoExecute", TimeAdded: timestamppb.New(w.tainted[n])}}
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: o}}
}

// remove takes a pod away; the answer to its order says so, or another hand did it.
func (w *world) remove(uid string, replace bool) {
	p := w.pods[uid]
	if p == nil {
		return
	}
	delete(w.pods, uid)
	delete(w.names, p.name)
	if strings.HasPrefix(p.name, probePrefix) || strings.HasPrefix(p.name, bulkPrefix) {
		w.emit(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: w.upsert(p).Object})
		return
	}
	if !replace || w.rng.IntN(2) == 0 {
		w.emit(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: w.upsert(p).Object})
	}
	// A pod of the same name comes back, sometimes before the old one's end was told.
	w.create(p.name, w.rng.IntN(nodeCount))
}

// step changes something.
func (w *world) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.rng.IntN(nodeCount)
	switch w.rng.IntN(12) {
	case 0, 1:
		if n == w.steady {
			return
		}
		w.taint(n, w.tainted[n].IsZero())
	case 2:
		if p := w.any(); p != nil {
			w.remove(p.uid, true)
		}
	case 3:
		if p := w.any(); p != nil && p.wait != never {
			w.tolerate(p, w.rng.IntN(5))
		}
	}
}

// any is some pod, but no probe: one that another hand took away would never be seen to leave.
func (w *world) any() *pod {
	for _, p := range w.pods {
		if !strings.HasPrefix(p.name, probePrefix) {
			return p
		}
	}
	return nil
}

// list is the whole cluster as events, and the number of the last change in it.
func (w *world) list() ([]*reprievev1.Event, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*reprievev1.Event
	for n := range nodeCount {
		all = append(all, w.nodeEvent(n))
	}
	for _, p := range w.pods {
		all = append(all, w.upsert(p))
	}
	w.queue = nil
	return all, w.changes
}

func (w *world) settle(number, fence uint64) {
	for n := range w.nodes {
		w.nodes[n].know(number, fence)
		settle(w.were[n], number, fence)
	}
	for _, p := range w.pods {
		p.know(number, fence)
		settle(p.were, number, fence)
	}
}

// earliest is when a pod may be due at the earliest, by what the service may take for so that sends an order which
// arrives after the fence; false if nothing of that makes it leave. mu is held.
func (w *world) earliest(p *pod, passed uint64) (at time.Time, leaves bool) {
	w.were[p.node], p.were = drop(w.were[p.node], passed), drop(p.were, passed)
	taints, waits := append([]past[time.Time]{{was: w.tainted[p.node]}}, w.were[p.node]...), append([]past[int]{{was: p.wait}}, p.were...)
	for _, t := range taints {
		for _, s := range waits {
			if t.was.IsZero() || s.was == never {
				continue
			}
			if due := t.was.Add(time.Duration(s.was) * time.Second); !leaves || due.Before(at) {
				at, leaves = due, true
			}
		}
	}
	return at, leaves
}

// verdict is what must be true of a pod.
type verdict struct {
	known bool // the pod exists
	// leaves: it has a due instant. settled is since when the service knows; zero if it may not know yet.
	leaves  bool
	settled time.Time
	fence   uint64
	// version tells due instants apart; added is the taint's time.
	version string
	added   time.Time
	wait    time.Duration
}

// of says what must be true of a pod now. mu is held.
func (w *world) of(uid string) verdict {
	p := w.pods[uid]
	if p == nil {
		return verdict{}
	}
	n := &w.nodes[p.node]
	v := verdict{known: true, leaves: !w.tainted[p.node].IsZero() && p.wait != never, added: w.tainted[p.node], wait: time.Duration(max(p.wait, 0)) * time.Second}
	v.version = fmt.Sprintf("%d/%d", p.version, n.version)
	if !p.settled.IsZero() && !n.settled.IsZero() || n.told == 0 && !p.settled.IsZero() {
		v.settled, v.fence = p.settled, max(p.fence, n.fence)
		if n.settled.After(v.settled) {
			v.settled = n.settled
		}
	}
	return v
}
