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

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// kube-controller-manager marks silent nodes unreachable; taint-eviction-controller is off there and evictions are
// ours. The pods of a node that stays away leave after their waits; those of a node that returns in time stay.
func TestUnreachableNodes(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{
		Kubelets: &controlplane.Kubelets{Heartbeat: time.Second},
		ControllerManager: &controlplane.ControllerManager{
			Controllers: []string{"node-lifecycle-controller"}, NodeMonitorGrace: 6 * time.Second,
		},
	})
	s := service.Start(t, service.Options{Clusters: []string{"east"}})
	s.Enforce("east")
	s.StartAgent(service.AgentOptions{Cluster: "east", Kubeconfig: c.AdminKubeconfig()})
	s.WaitSynced("east", time.Minute)

	// Most nodes have to be well, or node-lifecycle-controller takes the failure for its own and taints none.
	nodes := []string{"lost", "back", "well-0", "well-1", "well-2"}
	kube.CreateNodes(t, c.Admin, nodes...)
	kube.WaitNodesReady(t, c.Admin, nodes...)
	deletions := kube.Record(t, c.Admin)
	waits := []int64{0, 4, 12}
	lost := kube.CreatePods(t, c.Admin, kube.Bulk("lost", len(waits), nodes[:1], func(i int, p *kube.Pod) { p.Tolerations = tolerateLoss(waits[i]) })...)
	stay := kube.CreatePods(t, c.Admin,
		kube.Pod{Name: "lost-for-ever", Node: "lost", Tolerations: tolerateLoss(-1)},
		kube.Pod{Name: "lost-default", Node: "lost"},
		kube.Pod{Name: "back", Node: "back", Tolerations: tolerateLoss(30)},
		kube.Pod{Name: "well", Node: "well-0", Tolerations: tolerateLoss(0)})
	returns := stay[2]
	kube.WaitRunning(t, c.Admin, append(slices.Clone(lost), stay...))

	kube.Silence(t, c.Admin, "lost")
	kube.Silence(t, c.Admin, "back")
	kube.WaitTaint(t, c.Admin, "back", corev1.TaintNodeUnreachable, true, time.Minute)
	await.Until(t, 10*time.Second, "the wait of the node that returns", func(context.Context) error {
		ev := s.Open("east")[string(returns.UID)]
		if ev.GetState() != reprievev1.EvictionState_EVICTION_STATE_WAITING {
			return fmt.Errorf("its eviction is %v", ev)
		}
		return nil
	})
	kube.Revive(t, c.Admin, "back")
	kube.WaitTaint(t, c.Admin, "back", corev1.TaintNodeUnreachable, false, time.Minute)

	start := taintedAt(t, c, "lost", corev1.TaintNodeUnreachable)
	deletions.Wait(t, time.Minute, kube.UIDs(lost)...)
	for i, pod := range lost {
		d, _ := deletions.Of(pod.UID)
		due := start.Add(time.Duration(waits[i]) * time.Second)
		// timeAdded has whole seconds: the taint is up to one younger than it says.
		if early := due.Sub(d.Seen); early > 0 {
			t.Errorf("pod %s was deleted %s before it was due", pod.Name, early)
		}
		if late := d.Seen.Sub(due); late > 5*time.Second {
			t.Errorf("pod %s was deleted %s after it was due", pod.Name, late)
		}
	}
	cancelled(t, c, s, returns)
	deletions.NoneOf(t, kube.UIDs(stay)...)
}

// cancelled waits until an eviction is closed as cancelled because its taint went, and its pod has the event.
func cancelled(t *testing.T, c *controlplane.ControlPlane, s *service.Service, pod *corev1.Pod) {
	t.Helper()
	await.Until(t, 20*time.Second, "the cancellation of "+pod.Name, func(ctx context.Context) error {
		past := s.History("east")[string(pod.UID)]
		if len(past) != 1 || past[0].GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_CANCELLED ||
			past[0].GetCancelCause() != reprievev1.CancelCause_CANCEL_CAUSE_TAINT_REMOVED {
			return fmt.Errorf("its history is %v", past)
		}
		events, err := kube.Events(ctx, c.Admin, pod)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events, func(e corev1.Event) bool {
			return e.Reason == "TaintManagerEviction" && strings.HasPrefix(e.Message, "Cancelling deletion of Pod ")
		}) {
			return fmt.Errorf("no event says so: %v", events)
		}
		return nil
	})
}

// tolerateLoss are tolerations of a node's loss for so many seconds, or for ever if negative.
func tolerateLoss(seconds int64) []corev1.Toleration {
	return []corev1.Toleration{kube.Tolerate(corev1.TaintNodeUnreachable, seconds), kube.Tolerate(corev1.TaintNodeNotReady, seconds)}
}

// taintedAt is the timeAdded of a node's NoExecute taint.
func taintedAt(t *testing.T, c *controlplane.ControlPlane, node, key string) time.Time {
	t.Helper()
	n, err := c.Admin.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, taint := range n.Spec.Taints {
		if taint.Key == key && taint.Effect == corev1.TaintEffectNoExecute && taint.TimeAdded != nil {
			return taint.TimeAdded.Time
		}
	}
	t.Fatalf("node %s has no NoExecute taint %s with timeAdded: %v", node, key, n.Spec.Taints)
	return time.Time{}
}
