package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	patchNode       = "PATCH /api/v1/nodes/n"
	patchNodeStatus = "PATCH /api/v1/nodes/n/status"
	getLease        = "GET " + leasesPath + "leases/n"
	listPods        = "GET /api/v1/pods v=0"
)

// clinic is an updater on a small API server that patches node n and the pods on
// it as a real one does, resourceVersion and all.
type clinic struct {
	*updater
	t     *testing.T
	api   *api
	clock *clock.Virtual
	told  *told
	desk  *desk
}

// told keeps what people would read.
type told struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (n *told) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, line)
}

func (n *told) nodeChanged(o *reprievev1.UpdateNode, reason, message string) {
	n.add("node " + o.GetName() + " " + reason + ": " + message)
}

func (n *told) podNotReady(p *corev1.Pod) { n.add("pod " + p.Name) }

// newClinic returns one whose node was heard last at the epoch, with its Lease
// renewed then and reported.
func newClinic(t *testing.T) *clinic {
	a := newAPI(t)
	c := &clinic{t: t, api: a, told: &told{}, desk: newDesk(t, a), updater: &updater{evictor: newEvictor(a)}}
	c.clock = clock.NewVirtual(epoch.Add(time.Minute))
	c.evictor.clock, c.nodes.clock = c.clock, c.clock
	c.notes = c.told
	c.leases = func() *leaseWatch { return c.desk.leaseWatch }
	a.put("leases", "", testLease("n", at(-10)))
	a.put("leases", "", testLease("n", at(0)))
	c.desk.awaitRenewed("n", at(0))
	c.desk.wantTold("n")
	c.set("nodes", silentNode(corev1.ConditionTrue))
	a.on(getNode, func(w http.ResponseWriter, _ []byte) { a.object(w, "nodes", "n") })
	a.on(patchNode, c.patches("nodes", "n", &corev1.Node{}))
	a.on(patchNodeStatus, c.patches("nodes", "n", &corev1.Node{}))
	for _, p := range []string{"p", "q"} {
		path := "/api/v1/namespaces/default/pods/" + p
		a.on("PATCH "+path+"/status", c.patches("pods", p, &corev1.Pod{}))
		a.on("GET "+path, func(w http.ResponseWriter, _ []byte) { a.object(w, "pods", p) })
	}
	return c
}

// silentNode is node n as the service was told of it.
func silentNode(ready corev1.ConditionStatus) *corev1.Node {
	n := testNode("n", corev1.Taint{Key: "foreign", Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: epoch}})
	n.CreationTimestamp = metav1.NewTime(at(-1000))
	for _, c := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure} {
		status := ready
		if c != corev1.NodeReady {
			status = corev1.ConditionFalse
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: c, Status: status, Reason: "Kubelet", Message: "all is well", LastHeartbeatTime: metav1.NewTime(at(0)), LastTransitionTime: metav1.NewTime(at(-900)),
		})
	}
	return n
}

func readyPod(name string, ready corev1.ConditionStatus) *corev1.Pod {
	p := testPod(name, "n")
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: ready, Reason: "Kubelet", LastTransitionTime: metav1.NewTime(epoch)},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	return p
}

// set changes an object without telling the watches.
func (c *clinic) set(resource string, o metav1.Object) { c.api.store(resource, "", o) }

// patches answers a patch of an object: a conflict at another version, else the
// object as it is then.
func (c *clinic) patches(resource, name string, kind any) func(http.ResponseWriter, []byte) {
	return func(w http.ResponseWriter, body []byte) {
		c.api.mu.Lock()
		was, ok := c.api.objects[resource][name]
		c.api.mu.Unlock()
		var patch struct {
			Metadata struct{ UID, ResourceVersion string }
		}
		if err := json.Unmarshal(body, &patch); err != nil || !ok {
			fail(w, 404, metav1.StatusReasonNotFound, "gone")
			return
		}
		meta := was.(map[string]any)["metadata"].(map[string]any)
		if patch.Metadata.ResourceVersion != meta["resourceVersion"] || patch.Metadata.UID != meta["uid"] {
			fail(w, 409, metav1.StatusReasonConflict, "the object has been modified")
			return
		}
		old, _ := json.Marshal(was)
		// The one list that is patched without being replaced is of conditions, whose
		// merge key both kinds of patch leave to this; spec.taints is atomic.
		now, err := strategicpatch.StrategicMergePatch(old, body, kind)
		if err != nil {
			c.t.Errorf("patch %s: %v", body, err)
		}
		o := reflect.New(reflect.TypeOf(kind).Elem()).Interface()
		if err := json.Unmarshal(now, o); err != nil {
			c.t.Error(err)
		}
		c.set(resource, o.(metav1.Object))
		reply(w, http.StatusOK, o)
	}
}

// node is the node as it is now.
func (c *clinic) node() *corev1.Node {
	n := &corev1.Node{}
	c.read("nodes", "n", n)
	return n
}

func (c *clinic) read(resource, name string, into any) {
	c.t.Helper()
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	raw, _ := json.Marshal(c.api.objects[resource][name])
	if err := json.Unmarshal(raw, into); err != nil {
		c.t.Fatal(err)
	}
}

// readiness is a pod's condition Ready.
func (c *clinic) readiness(name string) corev1.PodCondition {
	p := &corev1.Pod{}
	c.read("pods", name, p)
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond
		}
	}
	return corev1.PodCondition{}
}

// silenced is the order for a node that has fallen silent.
func silenced(edit func(*reprievev1.UpdateNode)) *client.Task {
	o := &reprievev1.UpdateNode{
		Cluster: "c", Name: "n", Uid: "uid-n", Reason: "no heartbeat for 50s",
		Basis:             &reprievev1.UpdateNode_Basis{ReadyStatus: "True", HeartbeatTime: timestamppb.New(at(0)), RenewTime: timestamppb.New(at(0))},
		UnknownConditions: []string{"Ready", "MemoryPressure", "DiskPressure"},
		AddTaints:         []*reprievev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: "NoSchedule"}, {Key: corev1.TaintNodeUnreachable, Effect: "NoExecute"}},
		RemoveTaints:      []*reprievev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: "NoSchedule"}, {Key: corev1.TaintNodeNotReady, Effect: "NoExecute"}},
		MarkPodsNotReady:  true,
	}
	if edit != nil {
		edit(o)
	}
	return &client.Task{Attempt: 1, Node: o}
}

func (c *clinic) carryOut(task *client.Task, want reprievev1.Outcome, message string) {
	c.t.Helper()
	if r := c.update(c.t.Context(), task); r.Outcome != want || !strings.Contains(r.Message, message) {
		c.t.Fatalf("answer %s %q, want %s %q", r.Outcome, r.Message, want, message)
	}
}

// taintsOf lists a node's taints as kubectl writes them.
func taintsOf(n *corev1.Node) (all []string) {
	for i := range n.Spec.Taints {
		all = append(all, n.Spec.Taints[i].ToString())
	}
	return all
}

func (c *clinic) listsPods(pods ...*corev1.Pod) {
	items := []any{}
	for _, p := range pods {
		c.set("pods", p)
		items = append(items, asMap(c.t, p))
	}
	c.api.on(listPods, func(w http.ResponseWriter, _ []byte) {
		reply(w, http.StatusOK, map[string]any{"kind": "PodList", "apiVersion": "v1", "items": items})
	})
}

// A node that has fallen silent: conditions, taints and pods, in this order, and
// nothing when all is so already.
func TestUpdatesASilentNode(t *testing.T) {
	c := newClinic(t)
	c.listsPods(readyPod("p", corev1.ConditionTrue), readyPod("q", corev1.ConditionFalse))
	before := len(c.api.calls)
	c.carryOut(silenced(nil), reprievev1.Outcome_OUTCOME_APPLIED,
		"set Ready, MemoryPressure, DiskPressure Unknown; added taint node.kubernetes.io/unreachable:NoSchedule, added taint node.kubernetes.io/unreachable:NoExecute; set 1 pods not ready")
	// The look before the first pod serves all of that second.
	equal(t, c.api.calls[before:], getNode, getLease, patchNodeStatus, getNode, patchNode, listPods, getNode, "PATCH /api/v1/namespaces/default/pods/p/status")

	n := c.node()
	for kind, want := range map[corev1.NodeConditionType]string{
		corev1.NodeReady:          "Unknown NodeStatusUnknown 2026-01-01T00:00:00Z 2026-01-01T00:01:00Z",
		corev1.NodeMemoryPressure: "Unknown NodeStatusUnknown 2026-01-01T00:00:00Z 2026-01-01T00:01:00Z",
		corev1.NodeDiskPressure:   "Unknown NodeStatusNeverUpdated 2025-12-31T23:43:20Z 2026-01-01T00:01:00Z",
	} {
		has := nodeCondition(n, kind)
		if has == nil {
			t.Fatalf("no condition %s", kind)
		}
		got := fmt.Sprintf("%s %s %s %s", has.Status, has.Reason, has.LastHeartbeatTime.UTC().Format(time.RFC3339), has.LastTransitionTime.UTC().Format(time.RFC3339))
		if got != want {
			t.Errorf("condition %s is %s, want %s", kind, got, want)
		}
	}
	equal(t, taintsOf(n), "foreign:NoExecute", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute")
	if at := n.Spec.Taints[2].TimeAdded; at == nil || !at.Time.Equal(epoch.Add(time.Minute)) {
		t.Errorf("the taint was added at %v", at)
	}
	if p := c.readiness("p"); p.Status != corev1.ConditionFalse || p.Reason != "Kubelet" || !p.LastTransitionTime.Time.Equal(epoch.Add(time.Minute)) {
		t.Errorf("the pod is %+v", p)
	}
	equal(t, c.told.lines,
		"node n NodeNotReady: Node n status is now: NodeNotReady: no heartbeat for 50s",
		"node n NodeNotReady: Node n: added taint node.kubernetes.io/unreachable:NoSchedule, added taint node.kubernetes.io/unreachable:NoExecute: no heartbeat for 50s",
		"pod p")

	c.listsPods(readyPod("p", corev1.ConditionFalse))
	before = c.api.count("PATCH")
	c.carryOut(silenced(nil), reprievev1.Outcome_OUTCOME_APPLIED, "")
	if n := c.api.count("PATCH"); n != before {
		t.Errorf("%d patches of what is so already", n-before)
	}
	if len(c.told.lines) != 3 {
		t.Errorf("told again: %v", c.told.lines[3:])
	}
}

// N3: a node that is ready again loses both taints at once, and one that turns
// from silent to not ready has them swapped in one patch.
func TestUpdatesTaintsInOnePatch(t *testing.T) {
	c := newClinic(t)
	recovered := func(o *reprievev1.UpdateNode) {
		o.UnknownConditions, o.MarkPodsNotReady, o.Basis = nil, false, &reprievev1.UpdateNode_Basis{ReadyStatus: "True"}
		o.RemoveTaints, o.AddTaints, o.Reason = append(o.RemoveTaints, o.AddTaints...), nil, ""
	}
	n := silentNode(corev1.ConditionTrue)
	n.Spec.Taints = append([]corev1.Taint{
		{Key: corev1.TaintNodeUnreachable, Value: "odd", Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
	}, n.Spec.Taints...)
	c.set("nodes", n)
	c.carryOut(silenced(recovered), reprievev1.Outcome_OUTCOME_APPLIED, "removed taint node.kubernetes.io/unreachable")
	equal(t, taintsOf(c.node()), "foreign:NoExecute")
	equal(t, c.told.lines, "node n NodeReady: Node n: removed taint node.kubernetes.io/unreachable=odd:NoSchedule, removed taint node.kubernetes.io/unreachable:NoExecute")
	c.carryOut(silenced(recovered), reprievev1.Outcome_OUTCOME_APPLIED, "")

	swapped := func(o *reprievev1.UpdateNode) {
		o.UnknownConditions, o.MarkPodsNotReady, o.Basis = nil, false, &reprievev1.UpdateNode_Basis{ReadyStatus: "False"}
		o.RemoveTaints, o.AddTaints = o.AddTaints, o.RemoveTaints
	}
	n = silentNode(corev1.ConditionFalse)
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	c.set("nodes", n)
	before := c.api.count(patchNode)
	c.carryOut(silenced(swapped), reprievev1.Outcome_OUTCOME_APPLIED, "")
	equal(t, taintsOf(c.node()), "node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute")
	if n := c.api.count(patchNode) - before; n != 1 {
		t.Errorf("%d patches, want 1", n)
	}
}

// What contradicts the order leaves the node as it is.
func TestUpdateIsStale(t *testing.T) {
	for name, tc := range map[string]struct {
		edit    func(*reprievev1.UpdateNode)
		change  func(*clinic)
		want    reprievev1.Outcome
		message string
	}{
		"ready again": {change: func(c *clinic) { c.set("nodes", silentNode(corev1.ConditionTrue)) }, edit: func(o *reprievev1.UpdateNode) {
			o.UnknownConditions, o.Basis.ReadyStatus = nil, "Unknown"
		}, want: reprievev1.Outcome_OUTCOME_STALE, message: "condition Ready is True by now, the order rests on Unknown"},
		"a first status": {edit: func(o *reprievev1.UpdateNode) { o.Basis = nil }, want: reprievev1.Outcome_OUTCOME_STALE, message: "rests on absent"},
		"a heartbeat": {change: func(c *clinic) {
			n := silentNode(corev1.ConditionTrue)
			n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at(-5)) // Its clock was set back.
			c.set("nodes", n)
		}, want: reprievev1.Outcome_OUTCOME_STALE, message: "the node has sent a heartbeat"},
		"a renewal": {change: func(c *clinic) { c.set("leases", testLease("n", at(10))) }, want: reprievev1.Outcome_OUTCOME_STALE, message: "renewed its Lease"},
		"a renewal that was reported after the order": {edit: func(o *reprievev1.UpdateNode) { o.Basis.RenewTime = timestamppb.New(at(-10)) },
			want: reprievev1.Outcome_OUTCOME_STALE, message: "renewed its Lease"},
		"the leases are not watched": {change: func(c *clinic) { c.leases = func() *leaseWatch { return nil } },
			want: reprievev1.Outcome_OUTCOME_FAILED, message: "the watch of the nodes' leases does not stand"},
		"the lease cannot be read": {change: func(c *clinic) { c.api.on(getLease, refuse(500, metav1.StatusReasonInternalError, "etcd is away")) },
			want: reprievev1.Outcome_OUTCOME_FAILED, message: "read the lease of node n: etcd is away"},
		"another node": {edit: func(o *reprievev1.UpdateNode) { o.Uid = "old" }, want: reprievev1.Outcome_OUTCOME_SUPERSEDED, message: "UID uid-n"},
		"no node": {change: func(c *clinic) { c.api.on(getNode, refuse(404, metav1.StatusReasonNotFound, "no")) },
			want: reprievev1.Outcome_OUTCOME_GONE, message: "node n does not exist"},
		"no right to patch": {change: func(c *clinic) {
			c.api.on(patchNodeStatus, refuse(403, metav1.StatusReasonForbidden, `nodes "n" is forbidden: User "u" cannot patch resource "nodes/status"`))
		}, want: reprievev1.Outcome_OUTCOME_DENIED, message: "cannot patch"},
		"no right to read leases": {change: func(c *clinic) { c.api.on(getLease, refuse(403, metav1.StatusReasonForbidden, "leases is forbidden")) },
			want: reprievev1.Outcome_OUTCOME_DENIED, message: "leases is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClinic(t)
			c.listsPods(readyPod("p", corev1.ConditionTrue))
			if tc.change != nil {
				tc.change(c)
			}
			c.carryOut(silenced(tc.edit), tc.want, tc.message)
			n := c.node()
			equal(t, taintsOf(n), "foreign:NoExecute")
			if status, _ := readiness(n); status != corev1.ConditionTrue || c.readiness("p").Status != corev1.ConditionTrue {
				t.Errorf("the node is %s, the pod %v", status, c.readiness("p"))
			}
			if len(c.told.lines) > 0 {
				t.Errorf("told: %v", c.told.lines)
			}
		})
	}
}

// A lease without a change since the watch began says that the node was silent
// for as long as the service counts, whatever it knew before; so does none at all.
func TestUpdateOfANodeThatWasNeverHeard(t *testing.T) {
	for name, change := range map[string]func(*clinic){
		"an old lease": func(c *clinic) {
			c.api.put("leases", "DELETED", testLease("n", at(0)))
			c.desk.awaitRenewed("n", time.Time{})
			c.desk.store.restart()
			c.api.put("leases", "", testLease("n", at(7)))
			c.desk.awaitRenewed("n", at(7))
			c.desk.store.mu.Lock()
			c.desk.store.synced = true
			c.desk.store.mu.Unlock()
		},
		"no lease": func(c *clinic) {
			c.api.put("leases", "DELETED", testLease("n", at(0)))
			c.desk.awaitRenewed("n", time.Time{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClinic(t)
			change(c)
			c.set("nodes", func() *corev1.Node { n := silentNode(""); n.Status.Conditions = nil; return n }())
			c.carryOut(silenced(func(o *reprievev1.UpdateNode) {
				o.MarkPodsNotReady, o.Basis.ReadyStatus, o.Basis.HeartbeatTime = false, "", nil
			}), reprievev1.Outcome_OUTCOME_APPLIED, "")
			if has := nodeCondition(c.node(), corev1.NodeReady); has == nil || has.Reason != statusNeverUpdated {
				t.Errorf("condition Ready is %+v", has)
			}
		})
	}
}

// N9: who is faster with another taint is not undone, and one that was taken off
// does not come back.
func TestUpdateKeepsForeignTaints(t *testing.T) {
	c := newClinic(t)
	first := true
	usual := c.patches("nodes", "n", &corev1.Node{})
	c.api.on(patchNode, func(w http.ResponseWriter, body []byte) {
		if first {
			first = false
			n := c.node()
			n.Spec.Taints = []corev1.Taint{{Key: "theirs", Value: "new", Effect: corev1.TaintEffectNoExecute}}
			c.set("nodes", n)
		}
		usual(w, body)
	})
	order := silenced(func(o *reprievev1.UpdateNode) { o.MarkPodsNotReady = false })
	c.carryOut(order, reprievev1.Outcome_OUTCOME_APPLIED, "")
	equal(t, taintsOf(c.node()), "theirs=new:NoExecute", "node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute")

	// A node that turns ready meanwhile is judged anew.
	c = newClinic(t)
	c.set("nodes", silentNode(corev1.ConditionUnknown))
	c.api.on(patchNode, func(w http.ResponseWriter, body []byte) {
		c.set("nodes", silentNode(corev1.ConditionTrue))
		c.patches("nodes", "n", &corev1.Node{})(w, body)
	})
	order = silenced(func(o *reprievev1.UpdateNode) { o.UnknownConditions, o.Basis.ReadyStatus = nil, "Unknown" })
	c.carryOut(order, reprievev1.Outcome_OUTCOME_STALE, "condition Ready is True by now")
	equal(t, taintsOf(c.node()), "foreign:NoExecute")

	// One that does so when its conditions were set is not STALE: of that nothing was done.
	c = newClinic(t)
	c.api.on(patchNode, func(w http.ResponseWriter, body []byte) {
		n := silentNode(corev1.ConditionTrue)
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at(55))
		c.set("nodes", n)
		c.patches("nodes", "n", &corev1.Node{})(w, body)
	})
	c.carryOut(silenced(nil), reprievev1.Outcome_OUTCOME_FAILED, "the node has sent a heartbeat at 2026-01-01T00:00:55Z by its clock; set Ready, MemoryPressure, DiskPressure Unknown")

	// It does not try for ever.
	c = newClinic(t)
	c.api.on(patchNodeStatus, refuse(409, metav1.StatusReasonConflict, "the object has been modified"))
	c.carryOut(silenced(nil), reprievev1.Outcome_OUTCOME_FAILED, "the object has been modified")
	if n := c.api.count(patchNodeStatus); n != conflictTries {
		t.Errorf("%d tries, want %d", n, conflictTries)
	}
}

// marks makes an order one for the pods of a node that is not ready.
func marks(o *reprievev1.UpdateNode) {
	o.UnknownConditions, o.AddTaints, o.RemoveTaints, o.Basis.ReadyStatus = nil, nil, nil, "False"
}

// patchP and patchQ set the two pods of newWard not ready.
const (
	patchP = "PATCH /api/v1/namespaces/default/pods/p/status"
	patchQ = "PATCH /api/v1/namespaces/default/pods/q/status"
)

// newWard is a clinic whose node is not ready, with two pods that are.
func newWard(t *testing.T) *clinic {
	t.Helper()
	c := newClinic(t)
	c.set("nodes", silentNode(corev1.ConditionFalse))
	c.listsPods(readyPod("p", corev1.ConditionTrue), readyPod("q", corev1.ConditionTrue))
	return c
}

// onFirstPod does something once the first pod was set.
func (c *clinic) onFirstPod(then func()) {
	usual := c.patches("pods", "p", &corev1.Pod{})
	c.api.on(patchP, func(w http.ResponseWriter, body []byte) {
		usual(w, body)
		then()
	})
}

// N6: what the node's pods show is set once, unless the node is ready again before it
// is done.
func TestUpdateOfPods(t *testing.T) {
	t.Run("all of them", func(t *testing.T) {
		c := newWard(t)
		c.carryOut(silenced(marks), reprievev1.Outcome_OUTCOME_APPLIED, "set 2 pods not ready")
		equal(t, c.told.lines, "node n NodeNotReady: Node n status is now: NodeNotReady: no heartbeat for 50s", "pod p", "pod q")
		again := silenced(marks)
		again.Attempt = 2
		c.carryOut(again, reprievev1.Outcome_OUTCOME_APPLIED, "")
		if n := len(c.told.lines); n != 3 {
			t.Errorf("told again at the second attempt: %v", c.told.lines[3:])
		}
	})
	t.Run("ready again", func(t *testing.T) {
		c := newWard(t)
		c.onFirstPod(func() {
			c.set("nodes", silentNode(corev1.ConditionTrue))
			c.clock.Set(c.clock.Now().Add(nodeFresh))
		})
		c.carryOut(silenced(marks), reprievev1.Outcome_OUTCOME_FAILED, "condition Ready is True by now; set 1 pods not ready")
		if c.readiness("q").Status != corev1.ConditionTrue || c.api.count(patchQ) != 0 {
			t.Error("the second pod was set not ready")
		}
	})
	t.Run("changed, gone or replaced since", func(t *testing.T) {
		c := newWard(t)
		changed := readyPod("p", corev1.ConditionTrue)
		changed.Labels = map[string]string{"x": "y"}
		c.set("pods", changed)
		replaced := readyPod("q", corev1.ConditionTrue)
		replaced.UID = "another"
		c.set("pods", replaced)
		c.carryOut(silenced(marks), reprievev1.Outcome_OUTCOME_APPLIED, "set 1 pods not ready")
		if c.readiness("p").Status != corev1.ConditionFalse || c.readiness("q").Status != corev1.ConditionTrue {
			t.Errorf("p is %v, q %v", c.readiness("p"), c.readiness("q"))
		}
		c.api.on(patchP, refuse(404, metav1.StatusReasonNotFound, "no"))
		c.carryOut(silenced(marks), reprievev1.Outcome_OUTCOME_APPLIED, "")
	})
}

// N6: a recall ends it, before the first pod or after it.
func TestRecallOfAnUpdateOfPods(t *testing.T) {
	t.Run("recalled", func(t *testing.T) {
		c := newWard(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		c.onFirstPod(func() { cancel(client.ErrRecalled) })
		if r := c.update(ctx, silenced(marks)); r.Outcome != reprievev1.Outcome_OUTCOME_FAILED || r.Message != "recalled when this was done; set 1 pods not ready" {
			t.Errorf("answer %s %q", r.Outcome, r.Message)
		}
		if c.api.count(patchQ) != 0 {
			t.Error("the second pod was set not ready")
		}
	})
	t.Run("recalled before the first", func(t *testing.T) {
		c := newWard(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		c.api.on(listPods, func(w http.ResponseWriter, _ []byte) {
			cancel(client.ErrRecalled)
			reply(w, http.StatusOK, map[string]any{"kind": "PodList", "apiVersion": "v1", "items": []any{asMap(t, readyPod("p", corev1.ConditionTrue))}})
		})
		if r := c.update(ctx, silenced(marks)); r.Outcome != reprievev1.Outcome_OUTCOME_RECALLED || c.api.count("PATCH") != 0 {
			t.Errorf("answer %s %q; calls %v", r.Outcome, r.Message, c.api.calls)
		}
	})
}

// An order whose time is over touches nothing.
func TestUpdateIsRecalled(t *testing.T) {
	c := newClinic(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	c.api.on(getLease, func(w http.ResponseWriter, _ []byte) {
		c.api.object(w, "leases", "n")
		cancel(client.ErrRecalled)
	})
	if r := c.update(ctx, silenced(nil)); r.Outcome != reprievev1.Outcome_OUTCOME_RECALLED || c.api.count("PATCH") != 0 {
		t.Errorf("answer %s %q; calls %v", r.Outcome, r.Message, c.api.calls)
	}
}

func TestLifecycleController(t *testing.T) {
	const call = "GET /api/v1/namespaces/kube-system/pods"
	for name, tc := range map[string]struct {
		command []string
		runs    bool
	}{
		"by default":               {[]string{"kube-controller-manager", "--leader-elect=true"}, true},
		"all":                      {[]string{"kube-controller-manager", "--controllers=*,bootstrapsigner"}, true},
		"all but it":               {[]string{"kube-controller-manager", "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"}, false},
		"all but it, of old":       {[]string{"kube-controller-manager", "--controllers", "*,-nodelifecycle"}, false},
		"some others":              {[]string{"kube-controller-manager", "--controllers=garbage-collector-controller"}, false},
		"it alone":                 {[]string{"kube-controller-manager", "--controllers", "node-lifecycle-controller"}, true},
		"all but the evicting one": {[]string{"kube-controller-manager", "--controllers=*,-taint-eviction-controller"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			p := testPod("kube-controller-manager-a", "a")
			p.Namespace = "kube-system"
			p.Spec.Containers = []corev1.Container{{Command: tc.command[:1], Args: tc.command[1:]}}
			a.on(call, func(w http.ResponseWriter, _ []byte) {
				reply(w, http.StatusOK, map[string]any{"kind": "PodList", "apiVersion": "v1", "items": []any{asMap(t, p)}})
			})
			look := &lifecycleLook{core: a.kube().CoreV1(), timeout: time.Minute}
			got := look.controller(t.Context())
			if strings.Contains(got, "pod kube-system/kube-controller-manager-a") != tc.runs || (got != "") != tc.runs {
				t.Errorf("%q of %v", got, tc.command)
			}
			a.on(call, func(w http.ResponseWriter, _ []byte) { w.WriteHeader(http.StatusInternalServerError) })
			if again := look.controller(t.Context()); again != got {
				t.Errorf("%q once the pods cannot be listed, %q before", again, got)
			}
		})
	}
	a := newAPI(t)
	look := &lifecycleLook{core: a.kube().CoreV1(), timeout: time.Minute}
	if got := look.controller(t.Context()); got != "" {
		t.Errorf("%q of pods that cannot be listed", got)
	}
}

func TestTaintReasons(t *testing.T) {
	for key, reasons := range taintReasons {
		taints := []corev1.Taint{{Key: "foreign"}, {Key: key}}
		if got := []string{taintReason(taints, nil), taintReason(nil, taints)}; !slices.Equal(got, reasons[:]) {
			t.Errorf("taint %s has %v, want %v", key, got, reasons)
		}
	}
	if got := taintReason([]corev1.Taint{{Key: "foreign"}}, nil); got != "TaintsChanged" {
		t.Errorf("another taint has %s", got)
	}
}
