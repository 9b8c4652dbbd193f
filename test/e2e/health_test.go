package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// A zone falls silent: each of its nodes becomes Unknown in time, NoExecute comes one node after the other, and the
// other zone is left alone. What somebody takes off is put back, what is theirs stays, and all goes when the zone is
// back.
func TestZoneFallsSilent(t *testing.T) {
	figures := shortFigures()
	rate := 0.5
	figures.FullDisruptionTaintRate = &rate
	w := startWard(t, figures, shortBeat)
	east, west := kube.NodeNames("east", 4), kube.NodeNames("west", 4)
	w.admit(t, "east", east...)
	w.admit(t, "west", west...)
	pods := kube.CreatePods(t, w.Admin, kube.Bulk("p", 8, append(slices.Clone(east), west...), func(_ int, p *kube.Pod) { p.Tolerations = tolerateLoss(3600) })...)
	kube.WaitRunning(t, w.Admin, pods)

	from := w.silence(t, east...)
	for _, node := range east {
		at := w.lost(t, node, shortGrace)
		for _, what := range silenced {
			if seen := w.changes.Wait(t, soon, node, what, from); seen.Sub(at).Abs() > time.Second {
				t.Errorf("node %s had %s %s after it was Unknown", node, what, seen.Sub(at))
			}
		}
	}
	var tainted []time.Time
	for _, node := range east {
		tainted = append(tainted, w.changes.Wait(t, soon, node, "+"+unreachableNoExecute, from))
	}
	slices.SortFunc(tainted, time.Time.Compare)
	for i := 1; i < len(tainted); i++ {
		if gap := tainted[i].Sub(tainted[i-1]); gap < 1500*time.Millisecond || gap > 4*time.Second {
			t.Errorf("NoExecute taints came %s apart, want about 2s: %v", gap, tainted)
		}
	}
	w.unready(t, pods[:4]...)
	w.takesTaintsBack(t, east[0])

	back := w.revive(t, east...)
	w.healed(t, back, east...)
	w.changes.Quiet(t, from, west...)
	w.deletions.NoneOf(t, kube.UIDs(pods)...)
	for _, pod := range pods[4:] {
		if s := w.readiness(t, pod); s != corev1.ConditionTrue {
			t.Errorf("pod %s on a healthy node is ready: %s", pod.Name, s)
		}
	}
	w.noticed(t, east[0])
}

// takesTaintsBack takes a silent node's taint off and gives it another: ours comes back, theirs stays.
func (w *ward) takesTaintsBack(t *testing.T, node string) {
	t.Helper()
	kube.Taint(t, w.Admin, node, corev1.Taint{Key: key, Value: "theirs", Effect: corev1.TaintEffectNoSchedule})
	taken := await.Now()
	kube.Untaint(t, w.Admin, node, corev1.TaintNodeUnreachable)
	if back := w.changes.Wait(t, soon, node, "+"+unreachableNoExecute, taken).Sub(taken); back > 5*time.Second {
		t.Errorf("a taint that was taken off was back after %s", back)
	}
	now, err := w.node(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(now.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Value == "theirs" }) {
		t.Errorf("another's taint was lost: %v", now.Spec.Taints)
	}
	if n := w.view(t, node).GetRemovals(); n != 1 {
		t.Errorf("the service noted %d removals", n)
	}
}

// noticed waits for the event on the node that people know from the built-in controller.
func (w *ward) noticed(t *testing.T, node string) {
	t.Helper()
	await.Until(t, soon, "an event on node "+node, func(ctx context.Context) error {
		list, err := w.Admin.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.kind": "Node", "involvedObject.name": node}.String(),
		})
		if err != nil {
			return err
		}
		var all []string
		for i := range list.Items {
			e := &list.Items[i]
			if e.Reason == "NodeNotReady" && strings.HasPrefix(e.Message, "Node "+node+" status is now: NodeNotReady") {
				return nil
			}
			all = append(all, e.Reason+" "+e.Message)
		}
		return fmt.Errorf("they are %q", all)
	})
}

// All nodes fall silent at once: that is the control plane's trouble, and nothing happens but that it is told. One
// after the other it is the nodes': all become Unknown, but a cluster without a ready node evicts nobody.
func TestAllNodesFallSilent(t *testing.T) {
	w := startWard(t, shortFigures(), shortBeat)
	nodes := append(kube.NodeNames("east", 3), kube.NodeNames("west", 3)...)
	w.admit(t, "east", nodes[:3]...)
	w.admit(t, "west", nodes[3:]...)
	pods := kube.CreatePods(t, w.Admin, kube.Bulk("p", 6, nodes, func(_ int, p *kube.Pod) { p.Tolerations = tolerateLoss(3) })...)
	kube.WaitRunning(t, w.Admin, pods)

	from := w.silence(t, nodes...)
	await.Until(t, shortGrace+soon, "the service to hold", func(context.Context) error {
		if h := w.service.Cluster(labName).GetNodeHealth(); h.GetSilenceHoldTime() == nil {
			return fmt.Errorf("its health is %v", h)
		}
		return nil
	})
	await.Pause(t.Context(), 2*shortGrace)
	w.changes.Quiet(t, from, nodes...)
	w.hearts.Start(nodes...)
	await.Until(t, soon, "the hold to end", func(context.Context) error {
		if h := w.service.Cluster(labName).GetNodeHealth(); h.GetSilenceHoldTime() != nil {
			return fmt.Errorf("its health is %v", h)
		}
		return nil
	})
	w.changes.Quiet(t, from, nodes...)

	figures, off := shortFigures(), true
	figures.DisableSilenceHold = &off
	w.service.SetPolicy(labName, &reprievev1.ClusterPolicy{NodeHealthFigures: figures})
	// The first node is Unknown and tainted before the others follow.
	w.hearts.Stop(nodes[0])
	first := w.lost(t, nodes[0], shortGrace)
	w.changes.Wait(t, soon, nodes[0], "+"+unreachableNoExecute, from)
	w.hearts.Stop(nodes[1:]...)
	for _, node := range nodes[1:] {
		w.changes.Wait(t, soon, node, "+"+unreachableNoSchedule, from)
	}
	w.changes.Wait(t, soon, nodes[0], "-"+unreachableNoExecute, first)
	w.deletions.Wait(t, soon, pods[0].UID) // Its wait was over before the others fell silent.
	stopped := await.Now()
	await.Pause(t.Context(), 6*time.Second)
	for _, node := range nodes {
		if at, ok := w.changes.First(node, "+"+unreachableNoExecute, stopped); ok {
			t.Errorf("node %s was tainted at %s in a cluster without a ready node", node, at)
		}
	}
	w.deletions.NoneOf(t, kube.UIDs(pods[1:])...)
	back := await.Now()
	for _, node := range nodes {
		kube.Revive(t, w.Admin, node)
	}
	w.hearts.Start(nodes...)
	w.healed(t, back, nodes...)
	w.deletions.NoneOf(t, kube.UIDs(pods[1:])...)
}

// The conditions that a kubelet sets itself, and unschedulable nodes, get their taints, and lose them; a node that
// turns from not ready to silent has them swapped.
func TestConditionsBecomeTaints(t *testing.T) {
	w := startWard(t, shortFigures(), shortBeat)
	nodes := kube.NodeNames("n", 4)
	w.admit(t, "", nodes...)
	from := await.Now()
	node := nodes[0]
	// kwok would set the node's conditions itself.
	kube.Silence(t, w.Admin, node)
	kube.SetCondition(t, w.Admin, node, corev1.NodeMemoryPressure, corev1.ConditionTrue)
	w.cordon(t, node, true)
	w.changes.Wait(t, soon, node, "+node.kubernetes.io/memory-pressure:NoSchedule", from)
	w.changes.Wait(t, soon, node, "+node.kubernetes.io/unschedulable:NoSchedule", from)
	kube.SetCondition(t, w.Admin, node, corev1.NodeMemoryPressure, corev1.ConditionFalse)
	w.cordon(t, node, false)
	w.changes.Wait(t, soon, node, "-node.kubernetes.io/memory-pressure:NoSchedule", from)
	w.changes.Wait(t, soon, node, "-node.kubernetes.io/unschedulable:NoSchedule", from)

	kube.SetCondition(t, w.Admin, node, corev1.NodeReady, corev1.ConditionFalse)
	w.changes.Wait(t, soon, node, "+"+notReadyNoSchedule, from)
	w.changes.Wait(t, soon, node, "+"+notReadyNoExecute, from)
	w.hearts.Stop(node)
	w.lost(t, node, shortGrace)
	swapped := w.changes.Wait(t, soon, node, "+"+unreachableNoExecute, from)
	for _, what := range []string{"-" + notReadyNoExecute, "-" + notReadyNoSchedule, "+" + unreachableNoSchedule} {
		if at := w.changes.Wait(t, soon, node, what, from); !at.Equal(swapped) {
			t.Errorf("%s came %s after +%s, want one patch: %v", what, at.Sub(swapped), unreachableNoExecute, w.changes.Of(node, from))
		}
	}
	w.healed(t, w.revive(t, node), node)
	w.changes.Quiet(t, from, nodes[1:]...)
}

func (w *ward) cordon(t *testing.T, node string, on bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
	if _, err := w.Admin.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("cordon node %s: %v", node, err)
	}
}

// While the service only observes it says what it would do and does nothing.
func TestObservedNodeHealthChangesNothing(t *testing.T) {
	w := startWard(t, shortFigures(), shortBeat)
	nodes := kube.NodeNames("n", 4)
	w.admit(t, "", nodes...)
	w.service.SetPolicy(labName, &reprievev1.ClusterPolicy{NodeHealth: reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE.Enum()})
	from := w.silence(t, nodes[0])
	await.Until(t, shortGrace+soon, "the service to take the node for silent", func(context.Context) error {
		if h := w.view(t, nodes[0]); !h.GetSilent() || len(h.GetTaints()) == 0 {
			return fmt.Errorf("it says %v", h)
		}
		return nil
	})
	await.Pause(t.Context(), detects)
	w.changes.Quiet(t, from, nodes...)
	w.service.SetPolicy(labName, &reprievev1.ClusterPolicy{
		NodeHealth:        reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE.Enum(),
		NodeHealthFigures: &reprievev1.NodeHealthFigures{GracePeriod: durationpb.New(time.Hour)},
	})
	w.changes.Quiet(t, from, nodes[1:]...)
}
