package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// Under the method EVICT a disruption budget holds a pod for as long as it likes; that is no failed attempt.
func TestBudgetBlocksUntilItAllows(t *testing.T) {
	l := startBudgetLab(t, &reprievev1.ClusterPolicy{Method: reprievev1.EvictionMethod_EVICTION_METHOD_EVICT.Enum()})
	pod := l.guardedPod(t)
	kube.Taint(t, l.Admin, "n1", kube.NoExecute("maintenance", ""))

	ev := l.open(t, pod, "blocked", func(e *reprievev1.Eviction) bool {
		return e.GetLastOutcome() == reprievev1.Outcome_OUTCOME_BLOCKED
	})
	if ev.GetState() != reprievev1.EvictionState_EVICTION_STATE_DUE || ev.GetHold() != reprievev1.HoldReason_HOLD_REASON_BACKING_OFF ||
		ev.GetAttempts() != 0 || !strings.Contains(ev.GetLastMessage(), "disruption budget") {
		t.Errorf("the blocked eviction is %v", ev)
	}
	// It is asked for again, and still no attempt counts.
	first := ev.GetLastSendTime().AsTime()
	ev = l.open(t, pod, "blocked again", func(e *reprievev1.Eviction) bool {
		return e.GetLastSendTime().AsTime().After(first) && e.GetState() == reprievev1.EvictionState_EVICTION_STATE_DUE
	})
	if ev.GetAttempts() != 0 || ev.GetLastOutcome() != reprievev1.Outcome_OUTCOME_BLOCKED || ev.GetStuck() {
		t.Errorf("the eviction that was blocked again is %v", ev)
	}
	l.deletions.NoneOf(t, pod.UID)

	patch := []byte(`{"spec":{"minAvailable":0}}`)
	if _, err := l.Admin.PolicyV1().PodDisruptionBudgets("default").Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.deletions.Wait(t, soon, pod.UID)
	ev = l.closed(t, pod)
	if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED || ev.GetAttempts() != 0 {
		t.Errorf("the eviction closed as %v", ev)
	}
	if d, _ := l.deletions.Of(pod.UID); d.Reason != "EvictionByEvictionAPI" {
		t.Errorf("the pod's disruption reason is %q, want the Eviction API's", d.Reason)
	}
	l.event(t, pod, "Marking for deletion Pod default/web")
	l.alone(t)
}

// Under EVICT_THEN_DELETE the budget's say ends with budget_wait after the due instant.
func TestBudgetIsOverruledAtItsDeadline(t *testing.T) {
	const wait = 4 * time.Second
	l := startBudgetLab(t, &reprievev1.ClusterPolicy{
		Method: reprievev1.EvictionMethod_EVICTION_METHOD_EVICT_THEN_DELETE.Enum(), BudgetWait: durationpb.New(wait),
	})
	pod := l.guardedPod(t)
	kube.Taint(t, l.Admin, "n1", kube.NoExecute("maintenance", ""))

	ev := l.open(t, pod, "blocked", func(e *reprievev1.Eviction) bool {
		return e.GetLastOutcome() == reprievev1.Outcome_OUTCOME_BLOCKED
	})
	deadline := ev.GetDueTime().AsTime().Add(wait)
	l.deletions.Wait(t, soon, pod.UID)
	ev = l.closed(t, pod)
	if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED || ev.GetAttempts() != 0 || !strings.Contains(ev.GetLastMessage(), "budget refused to the end of budget_wait") {
		t.Errorf("the eviction closed as %v", ev)
	}
	if sent := ev.GetLastSendTime().AsTime(); sent.Before(deadline) || sent.After(deadline.Add(5*time.Second)) {
		t.Errorf("the order to delete left at %s, want %s and no more than 5 s later", sent, deadline)
	}
	if d, _ := l.deletions.Of(pod.UID); d.Reason != "DeletionByTaintManager" || d.Seen.Before(deadline) {
		t.Errorf("the pod was deleted at %s for %q; the budget's wait ended at %s", d.Seen, d.Reason, deadline)
	}
	if now := l.budget(t); now.Status.DisruptionsAllowed != 0 {
		t.Errorf("the budget allows %d disruptions", now.Status.DisruptionsAllowed)
	}
	l.alone(t)
}

// budgetLab is a lab with kubelets and the controller that keeps disruption budgets.
type budgetLab struct{ *lab }

func startBudgetLab(t *testing.T, policy *reprievev1.ClusterPolicy) budgetLab {
	t.Helper()
	l := startLab(t, controlplane.Options{
		Kubelets:          &controlplane.Kubelets{},
		ControllerManager: &controlplane.ControllerManager{Controllers: []string{"disruption-controller"}},
	})
	l.service.SetPolicy(labName, policy)
	kube.CreateNodes(t, l.Admin, "n1")
	kube.WaitNodesReady(t, l.Admin, "n1")
	return budgetLab{l}
}

// guardedPod makes a pod that runs under a budget which allows no disruption.
func (l budgetLab) guardedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	labels := map[string]string{"app": "web"}
	least := intstr.FromInt32(1)
	_, err := l.Admin.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := kube.CreatePods(t, l.Admin, kube.Pod{Name: "web", Node: "n1", Labels: labels})
	kube.WaitRunning(t, l.Admin, pods)
	await.Until(t, soon, "the budget to count the pod", func(context.Context) error {
		if s := l.budget(t).Status; s.CurrentHealthy != 1 || s.DisruptionsAllowed != 0 {
			return fmt.Errorf("its status is %v", s)
		}
		return nil
	})
	l.inSight(t, 1)
	return pods[0]
}

func (l budgetLab) budget(t *testing.T) *policyv1.PodDisruptionBudget {
	t.Helper()
	b, err := l.Admin.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
