package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/admission"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// refusal is how long the webhook denies deletes.
const refusal = time.Minute

// While admission denies the delete it is asked for again and again, with growing pauses, and a person can read why.
// Once it is allowed the pod goes, by one delete.
func TestDeniedDeleteIsRetriedUntilItWorks(t *testing.T) {
	const atLeast = 5
	l := startLab(t, controlplane.Options{})
	kube.CreateNodes(t, l.Admin, "n1")
	pod := kube.CreatePods(t, l.Admin, kube.Pod{Name: "guarded", Node: "n1"})[0]
	l.inSight(t, 1)
	var guard *admission.Guard
	guard = admission.Start(t, l.Admin, labAgent, func(_ context.Context, a admission.Ask) error {
		if a.Verb != admission.Delete {
			return nil
		}
		asked := guard.Asked(a.UID, admission.Delete)
		if len(asked) > atLeast && a.At.Sub(asked[0].At) > refusal {
			return nil
		}
		return errors.New("the backup of this pod is under way")
	})
	kube.Taint(t, l.Admin, "n1", kube.NoExecute("maintenance", ""))

	ev := l.open(t, pod, "denied", func(e *reprievev1.Eviction) bool { return e.GetAttempts() >= 2 })
	if ev.GetLastOutcome() != reprievev1.Outcome_OUTCOME_DENIED || !strings.Contains(ev.GetLastMessage(), "the backup of this pod is under way") {
		t.Errorf("the denied eviction is %v", ev)
	}
	if out := l.service.CLI("get", "evictions", "--cluster", labName, "-o", "json"); !strings.Contains(out, "the backup of this pod is under way") {
		t.Errorf("reprieve get evictions does not say why: %s", out)
	}
	l.deletions.NoneOf(t, pod.UID)
	// The last pause is about as long as all before it.
	l.deletions.Wait(t, 2*refusal+soon, pod.UID)

	ev = l.closed(t, pod)
	if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED || ev.GetAttempts() < atLeast || ev.GetLastOutcome() != reprievev1.Outcome_OUTCOME_EVICTED {
		t.Errorf("the eviction closed as %v", ev)
	}
	evictedByTaint(t, l, pod, "maintenance:NoExecute")
	asks := guard.Asked(pod.UID, admission.Delete)
	if allowed := asks[len(asks)-1]; allowed.Denied != nil || len(asks) != int(ev.GetAttempts())+1 {
		t.Errorf("the API server was asked for %d deletes, the last at %s; %d attempts are counted", len(asks), allowed.At, ev.GetAttempts())
	}
	for i := 1; i < len(asks); i++ {
		// The service's jitter takes at most a fifth off.
		if gap, least := asks[i].At.Sub(asks[i-1].At), time.Second<<(i-1)*4/5; gap < least {
			t.Errorf("delete %d came %s after the one before, want at least %s", i+1, gap, least)
		}
	}
	if n := len(guard.Asked(pod.UID, admission.PatchStatus)); n != 1 {
		t.Errorf("the pod's condition was set %d times, want once", n)
	}
	t.Logf("%d deletes over %s", len(asks), asks[len(asks)-1].At.Sub(asks[0].At).Round(time.Millisecond))
	l.alone(t)
}

// An agent without the right to patch pods' status evicts all the same, and says what it could not do.
func TestPodLeavesWithoutTheRightToMarkIt(t *testing.T) {
	l := startLab(t, controlplane.Options{})
	kube.CreateNodes(t, l.Admin, "n1")
	pod := kube.CreatePods(t, l.Admin, kube.Pod{Name: "unmarked", Node: "n1"})[0]
	l.inSight(t, 1)
	kube.Grant(t, l.Admin, labAgent, kube.Without(l.rules, "patch", "pods/status"))
	kube.WaitAllowed(t, l.Admin, labAgent, "patch", "status", false)
	kube.Taint(t, l.Admin, "n1", kube.NoExecute("maintenance", ""))

	l.deletions.Wait(t, soon, pod.UID)
	ev := l.closed(t, pod)
	if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED || ev.GetAttempts() != 0 {
		t.Errorf("the eviction closed as %v", ev)
	}
	for _, part := range []string{"DisruptionTarget could not be set", "forbidden", "pods/status", labAgent} {
		if !strings.Contains(ev.GetLastMessage(), part) {
			t.Errorf("the message does not say %q: %s", part, ev.GetLastMessage())
		}
	}
	if c := disruption(l.pod(t, pod)); c != nil {
		t.Errorf("the pod has the condition %v", c)
	}
	l.event(t, pod, "Marking for deletion Pod default/unmarked")
}

// An agent without the right to delete pods is told so each time, and the pod goes once the right is given.
func TestPodLeavesOnceTheRightIsGiven(t *testing.T) {
	l := startLab(t, controlplane.Options{})
	kube.CreateNodes(t, l.Admin, "n1")
	pod := kube.CreatePods(t, l.Admin, kube.Pod{Name: "forbidden", Node: "n1"})[0]
	l.inSight(t, 1)
	kube.Grant(t, l.Admin, labAgent, kube.Without(l.rules, "delete", "pods"))
	kube.WaitAllowed(t, l.Admin, labAgent, "delete", "", false)
	kube.Taint(t, l.Admin, "n1", kube.NoExecute("maintenance", ""))

	ev := l.open(t, pod, "denied twice", func(e *reprievev1.Eviction) bool { return e.GetAttempts() >= 2 })
	if m := ev.GetLastMessage(); ev.GetLastOutcome() != reprievev1.Outcome_OUTCOME_DENIED || !strings.Contains(m, "forbidden") || !strings.Contains(m, "cannot delete") {
		t.Errorf("the denied eviction is %v", ev)
	}
	l.deletions.NoneOf(t, pod.UID)
	kube.Grant(t, l.Admin, labAgent, l.rules)
	l.deletions.Wait(t, soon, pod.UID)
	if ev = l.closed(t, pod); ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED || ev.GetAttempts() < 2 {
		t.Errorf("the eviction closed as %v", ev)
	}
	evictedByTaint(t, l, pod, "maintenance:NoExecute")
	l.alone(t)
}
