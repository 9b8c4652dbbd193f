package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// A taint evicts the pods that it must, at once or after their wait, in the way of the built-in controller, and no
// others. Without kubelets a deleted pod stays terminating, to be looked at.
func TestTaintEvictsWhatItMust(t *testing.T) {
	l := startLab(t, controlplane.Options{})
	kube.CreateNodes(t, l.Admin, "n1", "n2")
	const key = "maintenance"
	finalizer := func(p *corev1.Pod) { p.Finalizers = []string{"e2e.reprieve.dev/stay"} }
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"} }
	pods := kube.CreatePods(t, l.Admin,
		kube.Pod{Name: "plain", Node: "n1"},
		kube.Pod{Name: "patient", Node: "n1", Tolerations: []corev1.Toleration{kube.Tolerate(key, 3)}},
		kube.Pod{Name: "mirror", Node: "n1", Shape: mirror},
		kube.Pod{Name: "succeeded", Node: "n1"},
		kube.Pod{Name: "failed", Node: "n1"},
		kube.Pod{Name: "terminating", Node: "n1", Shape: finalizer},
		kube.Pod{Name: "tolerant", Node: "n1", Tolerations: []corev1.Toleration{kube.Tolerate(key, -1)}},
		kube.Pod{Name: "elsewhere", Node: "n2"},
	)
	plain, patient, stay := pods[0], pods[1], pods[2:]
	setPhase(t, l, pods[3], corev1.PodSucceeded)
	setPhase(t, l, pods[4], corev1.PodFailed)
	if err := l.Admin.CoreV1().Pods("default").Delete(t.Context(), "terminating", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, l, stay)
	l.deletions.Wait(t, soon, pods[5].UID)
	l.inSight(t, uint64(len(pods)))

	kube.Taint(t, l.Admin, "n1", kube.NoExecute(key, "now"))
	l.deletions.Wait(t, soon, plain.UID, patient.UID)
	for _, pod := range pods[:2] {
		ev := l.closed(t, pod)
		if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED || ev.GetAttempts() != 0 || ev.GetLastMessage() != "" {
			t.Errorf("%s: the eviction closed as %v", pod.Name, ev)
		}
		evictedByTaint(t, l, pod, key+"=now:NoExecute")
	}
	taken, due := l.closed(t, patient).GetFirstSendTime().AsTime(), l.closed(t, patient).GetDueTime().AsTime()
	if start := l.closed(t, patient).GetCause().GetTaint().GetStart().AsTime(); due.Sub(start) != 3*time.Second || taken.Before(due) {
		t.Errorf("the patient pod's wait began at %s, was due at %s and the order left at %s", start, due, taken)
	}
	l.event(t, patient, "tolerated for 3s since")
	l.event(t, plain, "not tolerated")

	// By now what was to stay has stayed longer than what went.
	for name, was := range before {
		now := l.pod(t, was)
		if now.UID != was.UID || now.ResourceVersion != was.ResourceVersion {
			t.Errorf("pod %s was touched: it was %v and is %v", name, was.ObjectMeta, now.ObjectMeta)
		}
		if events, err := kube.Events(t.Context(), l.Admin, was); err != nil || len(events) > 0 {
			t.Errorf("pod %s has events: %v %v", name, events, err)
		}
		if len(l.service.History(labName)[string(was.UID)])+len(l.service.Open(labName)) > 0 {
			t.Errorf("pod %s has evictions: open %v, closed %v", name, l.service.Open(labName), l.service.History(labName)[string(was.UID)])
		}
	}
	l.alone(t)
}

// A wait that ends because its taint is removed leaves the pod as it was, and an event that says so.
func TestCancelledWaitLeavesItsEventAlone(t *testing.T) {
	l := startLab(t, controlplane.Options{})
	kube.CreateNodes(t, l.Admin, "n1")
	const key = "maintenance"
	pod := kube.CreatePods(t, l.Admin, kube.Pod{Name: "patient", Node: "n1", Tolerations: []corev1.Toleration{kube.Tolerate(key, 8)}})[0]
	l.inSight(t, 1)
	kube.Taint(t, l.Admin, "n1", kube.NoExecute(key, ""))
	due := l.open(t, pod, "waiting", func(e *reprievev1.Eviction) bool {
		return e.GetState() == reprievev1.EvictionState_EVICTION_STATE_WAITING
	}).GetDueTime().AsTime()
	kube.Untaint(t, l.Admin, "n1", key)

	ev := l.closed(t, pod)
	if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_CANCELLED || ev.GetCancelCause() != reprievev1.CancelCause_CANCEL_CAUSE_TAINT_REMOVED || ev.GetFirstSendTime() != nil {
		t.Errorf("the eviction closed as %v", ev)
	}
	event := l.event(t, pod, "Cancelling deletion of Pod default/patient")
	if event.Reason != "TaintManagerEviction" || !strings.Contains(event.Message, key+":NoExecute was removed from node n1") {
		t.Errorf("the event is %s: %s", event.Reason, event.Message)
	}
	// It outlives the instant at which it would have gone.
	await.Until(t, soon, "the due instant to pass", func(context.Context) error {
		if await.Now().Before(due.Add(2 * time.Second)) {
			return fmt.Errorf("it is at %s", due)
		}
		return nil
	})
	l.deletions.NoneOf(t, pod.UID)
	if now := l.pod(t, pod); now.ResourceVersion != pod.ResourceVersion || now.UID != pod.UID {
		t.Errorf("the pod was touched: its status was %v and is %v", pod.Status, now.Status)
	}
	if events, err := kube.Events(t.Context(), l.Admin, pod); err != nil || len(events) != 1 || events[0].Count > 1 {
		t.Errorf("the pod's events are %v (%v), want the one", events, err)
	}
	l.alone(t)
}

// evictedByTaint fails the test unless the pod shows, and its events tell, what the built-in controller's would.
func evictedByTaint(t *testing.T, l *lab, pod *corev1.Pod, taint string) {
	t.Helper()
	now := l.pod(t, pod)
	if now.UID != pod.UID || now.DeletionTimestamp == nil {
		t.Errorf("pod %s is %v, want the one of UID %s to be terminating", pod.Name, now.ObjectMeta, pod.UID)
	}
	c := disruption(now)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "DeletionByTaintManager" || !strings.Contains(c.Message, taint) || c.LastTransitionTime.IsZero() {
		t.Errorf("pod %s has the condition %v", pod.Name, c)
	}
	e := l.event(t, pod, "Marking for deletion Pod default/"+pod.Name)
	if e.Reason != "TaintManagerEviction" || e.Type != corev1.EventTypeNormal || e.InvolvedObject.UID != pod.UID || e.InvolvedObject.Kind != "Pod" || !strings.Contains(e.Message, taint) {
		t.Errorf("pod %s has the event %v", pod.Name, e)
	}
}

func setPhase(t *testing.T, l *lab, pod *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	done := pod.DeepCopy()
	done.Status.Phase = phase
	if _, err := l.Admin.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), done, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// snapshot reads the pods as they are, by name.
func snapshot(t *testing.T, l *lab, pods []*corev1.Pod) map[string]*corev1.Pod {
	t.Helper()
	now := map[string]*corev1.Pod{}
	for _, pod := range pods {
		now[pod.Name] = l.pod(t, pod)
	}
	return now
}
