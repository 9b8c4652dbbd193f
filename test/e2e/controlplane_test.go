package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// The harness itself: a node gets ready, a pod runs, a deleted pod goes.
func TestControlPlaneBoots(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{Kubelets: &controlplane.Kubelets{}})
	kube.CreateNodes(t, c.Admin, "n1", "silent")
	kube.WaitNodesReady(t, c.Admin, "n1")
	deletions := kube.Record(t, c.Admin)
	pods := kube.CreatePods(t, c.Admin, kube.Bulk("p", 20, []string{"n1"}, nil)...)
	kube.WaitRunning(t, c.Admin, pods)
	if err := c.Admin.CoreV1().Pods("default").Delete(t.Context(), "p-3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deletions.Wait(t, time.Minute, pods[3].UID)
	waitGone(t, c, pods[3])
	deletions.NoneOf(t, pods[0].UID, pods[19].UID)
	if d, _ := deletions.Of(pods[3].UID); d.Asked.IsZero() || d.Seen.Sub(d.Asked).Abs() > 5*time.Second {
		t.Errorf("the deletion was asked for at %s and seen at %s", d.Asked, d.Seen)
	}
	if _, err := c.Client("nobody").CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without roles listed nodes: %v", err)
	}
}

// What is stored outlives SIGKILL of etcd and of the API server, and watches go on.
func TestControlPlaneSurvivesKills(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{Kubelets: &controlplane.Kubelets{}})
	kube.CreateNodes(t, c.Admin, "n1")
	pods := kube.CreatePods(t, c.Admin, kube.Bulk("p", 3, []string{"n1"}, nil)...)
	kube.WaitRunning(t, c.Admin, pods)
	deletions := kube.Record(t, c.Admin)

	c.APIServer.Kill()
	c.Etcd.Kill()
	c.Etcd.Start()
	c.APIServer.Start()
	c.WaitReady()
	c.Kubelets.Restart()

	alive, err := kube.Alive(t.Context(), c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		if alive[pod.UID] == nil {
			t.Errorf("pod %s did not outlive the kill", pod.Name)
		}
	}
	if err := c.Admin.CoreV1().Pods("default").Delete(t.Context(), "p-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deletions.Wait(t, time.Minute, pods[0].UID)
	waitGone(t, c, pods[0])
}

// kube-controller-manager's own eviction works here: what the tests beside it compare with.
func TestBuiltInControllerEvicts(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{
		Kubelets: &controlplane.Kubelets{Heartbeat: time.Second},
		ControllerManager: &controlplane.ControllerManager{
			Controllers: []string{"node-lifecycle-controller", "taint-eviction-controller"}, QPS: 1000, Burst: 1000,
			NodeMonitorGrace: 6 * time.Second,
		},
	})
	kube.CreateNodes(t, c.Admin, "n1", "n2")
	kube.WaitNodesReady(t, c.Admin, "n1", "n2")
	deletions := kube.Record(t, c.Admin)
	pods := kube.CreatePods(t, c.Admin, kube.Bulk("p", 10, []string{"n1", "n2"}, nil)...)
	kube.WaitRunning(t, c.Admin, pods)
	kube.Taint(t, c.Admin, "n1", kube.NoExecute("maintenance", "now"))
	var left, stay []*corev1.Pod
	for _, pod := range pods {
		if pod.Spec.NodeName == "n1" {
			left = append(left, pod)
		} else {
			stay = append(stay, pod)
		}
	}
	deletions.Wait(t, time.Minute, kube.UIDs(left)...)
	deletions.NoneOf(t, kube.UIDs(stay)...)
	if d, _ := deletions.Of(left[0].UID); d.Reason != "DeletionByTaintManager" {
		t.Errorf("the pod's disruption reason is %q", d.Reason)
	}

	// A silent node becomes unreachable, and reachable when it speaks again.
	kube.Silence(t, c.Admin, "n2")
	kube.WaitTaint(t, c.Admin, "n2", corev1.TaintNodeUnreachable, true, time.Minute)
	kube.Revive(t, c.Admin, "n2")
	kube.WaitTaint(t, c.Admin, "n2", corev1.TaintNodeUnreachable, false, time.Minute)
	deletions.NoneOf(t, kube.UIDs(stay)...)
}

func waitGone(t *testing.T, c *controlplane.ControlPlane, pod *corev1.Pod) {
	t.Helper()
	await.Until(t, time.Minute, fmt.Sprintf("pod %s to be gone", pod.Name), func(ctx context.Context) error {
		got, err := c.Admin.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case got.UID != pod.UID:
			return nil
		}
		return errors.New("it is there")
	})
}
