//go:build crash

package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	nodeCluster = "nodes"
	kubeNodes   = 12
	podsOnNode  = 3
	kubeZones   = 3
	// steadyNodes are always well, so that not all zones are disrupted.
	steadyNodes    = 2
	notReadyKey    = "node.kubernetes.io/not-ready"
	unreachableKey = "node.kubernetes.io/unreachable"
	foreignKey     = "crash.test/foreign"
	noSchedule     = "NoSchedule"
	noExecute      = "NoExecute"
	statusTrue     = "True"
	statusFalse    = "False"
	statusUnknown  = "Unknown"

	// renewEvery is how often a node renews its lease.
	renewEvery = 300 * time.Millisecond
)

// kubeNode is a node as the API server has it, and its kubelet.
type kubeNode struct {
	name, zone string
	// alive: it has a kubelet that sends heartbeats.
	alive bool
	// version is the object's resourceVersion.
	version int
	// ready is condition Ready; heartbeat and renew are what the kubelet said last.
	ready            string
	heartbeat, renew time.Time
	taints           []*reprievev1.Taint
	bits             // of ready
	readies          []past[string]
	// start is since when it has a NoExecute taint for its health; zero if it has none.
	start  time.Time
	starts []past[time.Time]
	// beats are the heartbeats that count or may count, oldest first.
	beats []past[time.Time]
	// silent: it may have been found silent in an earlier life. A heartbeat that the service knows of ends that;
	// clear is the fence of its acknowledgement.
	silent bool
	clear  uint64
	// owed: its pods must become not ready, and were so before owedBefore.
	owed, owedBefore bool
}

// kubePod is a pod on one of the nodes.
type kubePod struct {
	name, uid string
	node      int
	// wait is how long it tolerates the taints of its node's health; never for ever.
	wait  int
	ready bool
}

// nodeWorld is a cluster whose nodes fall silent, turn not ready and come back.
type nodeWorld struct {
	ledger
	nodes  [kubeNodes]*kubeNode
	pods   map[string]*kubePod // by uid
	serial int
	ticked time.Time
}

func newNodeWorld(rng *rand.Rand) *nodeWorld {
	w := &nodeWorld{pods: map[string]*kubePod{}}
	w.ledger = ledger{name: nodeCluster, settle: w.settle, rng: rng, wake: make(chan struct{}, 1)}
	for i := range w.nodes {
		w.nodes[i] = &kubeNode{name: nodeName(i), zone: strconv.Itoa(i % kubeZones), alive: true, ready: statusTrue, heartbeat: time.Now(), renew: time.Now()}
		w.tell(i)
		for range podsOnNode {
			w.create(i)
		}
	}
	return w
}

// defaultWait is the policy's default toleration in seconds.
const defaultWait = 2

func (w *nodeWorld) create(node int) {
	w.serial++
	p := &kubePod{name: fmt.Sprintf("k-%d", w.serial), uid: fmt.Sprintf("kuid-%d", w.serial), node: node, wait: w.rng.IntN(4), ready: true}
	if w.rng.IntN(5) == 0 {
		p.wait = never
	}
	w.pods[p.uid] = p
	w.emit(w.podEvent(p))
}

func (w *nodeWorld) podEvent(p *kubePod) *reprievev1.Event {
	o := &reprievev1.Pod{Namespace: "default", Name: p.name, Uid: p.uid, NodeName: nodeName(p.node), Phase: "Running"}
	for _, key := range []string{notReadyKey, unreachableKey} {
		t := &reprievev1.Toleration{Key: key, Operator: "Exists", Effect: noExecute}
		switch p.wait {
		case never:
			o.Tolerations = append(o.Tolerations, t)
		case defaultWait: // As the policy has it.
		default:
			t.TolerationSeconds = proto.Int64(int64(p.wait))
			o.Tolerations = append(o.Tolerations, t)
		}
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: o}}
}

func (w *nodeWorld) nodeEvent(i int) *reprievev1.Event {
	n := w.nodes[i]
	o := &reprievev1.Node{
		Name: n.name, Uid: "uid-" + n.name, Labels: map[string]string{"topology.kubernetes.io/zone": n.zone},
		Taints: slices.Clone(n.taints), ResourceVersion: strconv.Itoa(n.version),
	}
	for _, kind := range []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		c := &reprievev1.NodeCondition{Type: kind, Status: statusFalse, Reason: "Kubelet", LastHeartbeatTime: timestamppb.New(n.heartbeat)}
		switch {
		case n.ready == statusUnknown:
			c.Status, c.Reason = statusUnknown, "NodeStatusUnknown"
		case kind == "Ready":
			c.Status = n.ready
		}
		o.Conditions = append(o.Conditions, c)
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: o}}
}

// tell writes a node's change and returns its number. mu is held.
func (w *nodeWorld) tell(i int) uint64 {
	w.nodes[i].version++
	return w.emit(w.nodeEvent(i))
}

// turn sets condition Ready. mu is held.
func (w *nodeWorld) turn(i int, ready string) {
	n := w.nodes[i]
	was, known := n.ready, !n.settled.IsZero()
	n.ready = ready
	number := w.tell(i)
	if was == ready {
		return
	}
	switch {
	case ready == statusTrue:
		n.owedBefore, n.owed = n.owed, false
		w.setPods(i, true)
	case was == statusTrue:
		// If the service never knew that it was ready, it has what it owed before.
		n.owed = known || n.owedBefore
	}
	n.change(number)
	n.readies = append(n.readies, past[string]{was: was, told: number})
}

// post is the kubelet's word on condition Ready, a heartbeat too. mu is held.
func (w *nodeWorld) post(i int, ready string) {
	n := w.nodes[i]
	n.heartbeat = time.Now()
	w.turn(i, ready)
	n.beats = append(n.beats, past[time.Time]{was: n.heartbeat, told: w.changes})
}

func (w *nodeWorld) setPods(i int, ready bool) {
	for _, p := range w.pods {
		if p.node == i {
			p.ready = ready
		}
	}
}

func (n *kubeNode) has(key, effect string) bool {
	return slices.ContainsFunc(n.taints, func(t *reprievev1.Taint) bool { return t.GetKey() == key && t.GetEffect() == effect })
}

// taint adds and removes taints, by key and effect. mu is held.
func (w *nodeWorld) taint(i int, add, remove []*reprievev1.Taint) {
	n := w.nodes[i]
	for _, t := range remove {
		n.taints = slices.DeleteFunc(n.taints, func(o *reprievev1.Taint) bool { return o.GetKey() == t.GetKey() && o.GetEffect() == t.GetEffect() })
	}
	for _, t := range add {
		if !n.has(t.GetKey(), t.GetEffect()) {
			n.taints = append(n.taints, &reprievev1.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect(), TimeAdded: timestamppb.Now()})
		}
	}
	was, on := n.start, n.has(notReadyKey, noExecute) || n.has(unreachableKey, noExecute)
	switch {
	case !on:
		n.start = time.Time{}
	case was.IsZero():
		n.start = time.Now()
	}
	if number := w.tell(i); !n.start.Equal(was) {
		n.starts = append(n.starts, past[time.Time]{was: was, told: number})
	}
}

// evict takes a pod away. mu is held.
func (w *nodeWorld) evict(uid string) {
	p := w.pods[uid]
	if p == nil {
		return
	}
	delete(w.pods, uid)
	w.emit(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: w.podEvent(p).Object})
}

// fill puts another pod on a node that is well and has room for it. mu is held.
func (w *nodeWorld) fill(i int) {
	n, there := w.nodes[i], 0
	for _, p := range w.pods {
		if p.node == i {
			there++
		}
	}
	if n.alive && n.ready == statusTrue && n.start.IsZero() && there < podsOnNode {
		w.create(i)
	}
}

// tick lets the kubelets live.
func (w *nodeWorld) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Sub(w.ticked) < renewEvery {
		return
	}
	w.ticked = now
	var names []string
	for i, n := range w.nodes {
		if !n.alive {
			continue
		}
		n.renew = now
		names = append(names, n.name)
		if n.ready == statusUnknown {
			w.post(i, statusTrue)
		}
	}
	w.renewed(names)
}

// renewed tells of leases, as the watch of a feeder that keeps up. mu is held.
func (w *nodeWorld) renewed(names []string) {
	m := &reprievev1.NodeLeaseRenewals{NodeNames: names}
	for _, n := range w.nodes {
		if slices.Contains(names, n.name) {
			m.RenewTimes = append(m.RenewTimes, timestamppb.New(n.renew))
		}
	}
	number := w.emit(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_LeaseRenewals{LeaseRenewals: m}})
	for _, n := range w.nodes {
		if slices.Contains(names, n.name) {
			n.beats = append(n.beats, past[time.Time]{was: n.renew, told: number})
		}
	}
}

// some is a node that is not steady.
func (w *nodeWorld) some() int { return steadyNodes + w.rng.IntN(kubeNodes-steadyNodes) }

// die ends a kubelet.
func (w *nodeWorld) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[w.some()].alive = false
}

// step changes something. Kubelets die and come back over many steps only, since it takes long to be found silent.
func (w *nodeWorld) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.some()
	n := w.nodes[i]
	switch roll := w.rng.IntN(400); {
	case roll < 2:
		n.alive = false
	case roll < 4:
		n.alive = true
	case roll < 54 && n.alive && n.ready != statusUnknown:
		w.post(i, map[string]string{statusTrue: statusFalse, statusFalse: statusTrue}[n.ready])
	case roll < 60:
		w.mark(i)
	case roll < 64 && len(n.taints) > 0:
		// Another hand takes a taint off (N9).
		w.taint(i, nil, n.taints[:1])
	case roll < 66:
		n.zone = strconv.Itoa(w.rng.IntN(kubeZones))
		w.tell(i)
	case roll < 106:
		w.fill(i)
	}
}

// mark has another hand put a taint of its own on a node, or take it off. mu is held.
func (w *nodeWorld) mark(i int) {
	t := []*reprievev1.Taint{{Key: foreignKey, Effect: noSchedule}}
	if w.nodes[i].has(foreignKey, noSchedule) {
		w.taint(i, nil, t)
	} else {
		w.taint(i, t, nil)
	}
}

// list is the whole cluster as events. What renewals the service may not know of are told after it.
func (w *nodeWorld) list() ([]*reprievev1.Event, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*reprievev1.Event
	for i := range w.nodes {
		all = append(all, w.nodeEvent(i))
	}
	for _, p := range w.pods {
		all = append(all, w.podEvent(p))
	}
	last := w.changes
	w.queue = nil
	var names []string
	for _, n := range w.nodes {
		if slices.ContainsFunc(n.beats, func(b past[time.Time]) bool { return b.fence == 0 && b.was.Equal(n.renew) }) {
			names = append(names, n.name)
		}
	}
	w.renewed(names)
	return all, last
}

func (w *nodeWorld) settle(number, fence uint64) {
	for _, n := range w.nodes {
		n.know(number, fence)
		settle(n.readies, number, fence)
		settle(n.starts, number, fence)
		fresh := slices.ContainsFunc(n.beats, func(b past[time.Time]) bool { return b.fence == 0 && b.told <= number })
		settle(n.beats, number, fence)
		if fresh && n.silent && n.clear == 0 {
			n.clear = fence
		}
		if len(n.beats) > 2*beatsKept {
			n.beats = slices.Delete(n.beats, 0, beatsKept)
		}
	}
}

// beatsKept is how many heartbeats of a node are kept at least: more than are ever under way.
const beatsKept = 100

// heard is the last heartbeat that a service knew of whose order arrives after the fence. mu is held.
func (n *kubeNode) heard(passed uint64) (last past[time.Time], ok bool) {
	for _, b := range n.beats {
		if b.fence != 0 && b.fence <= passed {
			last, ok = b, true
		}
	}
	return last, ok
}
