package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/admission"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// A pod that is replaced under its name while its eviction is in flight, as a StatefulSet does: the API server holds
// the agent's call, for the condition or for the delete, until the other pod has the name. The other pod keeps its
// whole wait and is left alone until then.
func TestReplacementIsLeftAloneUntilItsOwnTime(t *testing.T) {
	const (
		key  = "maintenance"
		wait = 4 * time.Second
	)
	l := startLab(t, controlplane.Options{})
	kube.CreateNodes(t, l.Admin, "n1")
	webPod := func(name string) kube.Pod {
		return kube.Pod{Name: name, Node: "n1", Tolerations: []corev1.Toleration{kube.Tolerate(key, int64(wait/time.Second))}}
	}
	held := map[admission.Verb]string{admission.PatchStatus: "web-0", admission.Delete: "web-1"}
	arrived, release := make(chan admission.Ask, len(held)), make(chan struct{})
	olds := map[string]*corev1.Pod{}
	for _, pod := range kube.CreatePods(t, l.Admin, webPod("web-0"), webPod("web-1")) {
		olds[pod.Name] = pod
	}
	guard := admission.Start(t, l.Admin, labAgent, func(ctx context.Context, a admission.Ask) error {
		if held[a.Verb] != a.Name || a.UID != olds[a.Name].UID {
			return nil
		}
		arrived <- a
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	l.inSight(t, 2)
	kube.Taint(t, l.Admin, "n1", kube.NoExecute(key, ""))

	news := map[string]*corev1.Pod{}
	for range held {
		var a admission.Ask
		select {
		case a = <-arrived:
		case <-t.Context().Done():
			t.Fatal("the agent's calls did not come")
		}
		now := int64(0)
		if err := l.Admin.CoreV1().Pods(a.Namespace).Delete(t.Context(), a.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
		news[a.Name] = kube.CreatePods(t, l.Admin, webPod(a.Name))[0]
	}
	close(release)

	for name, old := range olds {
		ev := l.closed(t, old)
		if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_SUPERSEDED || ev.GetAttempts() != 0 {
			t.Errorf("%s: the replaced pod's eviction closed as %v", name, ev)
		}
		if want := "another pod has the name: UID " + string(news[name].UID); ev.GetLastMessage() != want {
			t.Errorf("%s: the replaced pod's eviction says %q, want %q", name, ev.GetLastMessage(), want)
		}
	}
	for name, pod := range news {
		l.deletions.Wait(t, soon, pod.UID)
		ev := l.closed(t, pod)
		if ev.GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED {
			t.Errorf("%s: the other pod's eviction closed as %v", name, ev)
		}
		due := pod.CreationTimestamp.Add(wait)
		if got := ev.GetDueTime().AsTime(); got.Before(due) || got.After(due.Add(5*time.Second)) {
			t.Errorf("%s: the other pod was due at %s, want %s after its creation at %s", name, got, wait, pod.CreationTimestamp)
		}
		for _, verb := range []admission.Verb{admission.PatchStatus, admission.Delete} {
			asks := guard.Asked(pod.UID, verb)
			if len(asks) != 1 || asks[0].At.Before(ev.GetDueTime().AsTime()) {
				t.Errorf("%s: the agent's calls to %s the other pod, due at %s: %v", name, verb, ev.GetDueTime().AsTime(), asks)
			}
		}
	}
	l.alone(t)
}
