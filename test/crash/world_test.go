//go:build crash

package crash

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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
	bits
}

// bits are what an object's judgement depends on.
type bits struct {
	// version grows with each change that may move the due instant.
	version int
	// told is the number of the change that says so, 0 before any; settled when its acknowledgement is in.
	told    uint64
	settled time.Time
}

// world is the cluster: what is so, and what the service has acknowledged of it.
type world struct {
	mu      sync.Mutex // guards all
	rng     *rand.Rand
	tainted [nodeCount]time.Time // zero: no taint
	nodes   [nodeCount]bits
	pods    map[string]*pod // by uid
	names   map[string]string
	serial  int
	// changes counts all changes; queue has those that no stream has taken.
	changes uint64
	queue   []change
	wake    chan struct{}
	// steady is a node that keeps its taint, for probes; -1 if there is none.
	steady int
}

// change is one event and its number.
type change struct {
	number uint64
	event  *reprievev1.Event
}

func newWorld(rng *rand.Rand) *world {
	w := &world{rng: rng, pods: map[string]*pod{}, names: map[string]string{}, wake: make(chan struct{}, 1), steady: -1}
	for n := range nodeCount {
		for i := range podsPerNode {
			w.create(fmt.Sprintf("p-%d-%d", n, i), n)
		}
	}
	return w
}

func nodeName(n int) string { return fmt.Sprintf("n-%d", n) }

func (w *world) emit(e *reprievev1.Event) uint64 {
	w.changes++
	w.queue = append(w.queue, change{w.changes, e})
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return w.changes
}

func (w *world) create(name string, node int) *pod {
	w.serial++
	p := &pod{name: name, uid: fmt.Sprintf("uid-%d", w.serial), node: node, wait: w.rng.IntN(5)}
	if w.rng.IntN(10) == 0 {
		p.wait = never
	}
	w.pods[p.uid], w.names[name] = p, p.uid
	p.version, p.told = 1, w.emit(w.upsert(p))
	return p
}

// hold taints a node for good, so that what is put there leaves.
func (w *world) hold(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steady, w.tainted[n] = n, time.Now()
	w.nodes[n].version++
	w.nodes[n].told, w.nodes[n].settled = w.emit(w.nodeEvent(n)), time.Time{}
}

// probePrefix begins the names of pods that do not come back and whose orders are answered at once.
const probePrefix = "probe-"

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
	p.wait = wait
	p.version++
	p.told = w.emit(w.upsert(p))
	return p.uid
}

func (w *world) upsert(p *pod) *reprievev1.Event {
	o := &reprievev1.Pod{Namespace: "default", Name: p.name, Uid: p.uid, NodeName: nodeName(p.node), Phase: "Running"}
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
	if strings.HasPrefix(p.name, probePrefix) {
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
		if w.tainted[n].IsZero() {
			w.tainted[n] = time.Now()
		} else {
			w.tainted[n] = time.Time{}
		}
		w.nodes[n].version++
		w.nodes[n].told, w.nodes[n].settled = w.emit(w.nodeEvent(n)), time.Time{}
	case 2:
		if p := w.any(); p != nil {
			w.remove(p.uid, true)
		}
	case 3:
		if p := w.any(); p != nil && p.wait != never {
			p.wait = w.rng.IntN(5)
			p.version++
			p.told, p.settled = w.emit(w.upsert(p)), time.Time{}
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

// take empties the queue.
func (w *world) take() []change {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queue
	w.queue = nil
	return q
}

// acknowledge notes that the service has all changes up to number on its disk.
func (w *world) acknowledge(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	settle := func(b *bits) {
		if b.told <= number && b.settled.IsZero() {
			b.settled = now
		}
	}
	for n := range w.nodes {
		settle(&w.nodes[n])
	}
	for _, p := range w.pods {
		settle(&p.bits)
	}
}

// verdict is what must be true of a pod.
type verdict struct {
	known bool // the pod exists
	// leaves: it has a due instant. settled is since when the service knows; zero if it may not know yet.
	leaves  bool
	settled time.Time
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
		v.settled = p.settled
		if n.settled.After(v.settled) {
			v.settled = n.settled
		}
	}
	return v
}
