package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
)

// settleWithin bounds what a healthy cluster does by itself, on a busy machine.
const settleWithin = 2 * time.Minute

// CreateNodes makes nodes that kwok plays, if it runs.
func CreateNodes(t testing.TB, cs kubernetes.Interface, names ...string) {
	t.Helper()
	CreateZone(t, cs, "", names...)
}

// CreateZone makes such nodes in a zone.
func CreateZone(t testing.TB, cs kubernetes.Interface, zone string, names ...string) {
	t.Helper()
	forEach(t, names, func(ctx context.Context, name string) error {
		labels := map[string]string{controlplane.KubeletLabel: controlplane.KubeletValue}
		if zone != "" {
			labels[corev1.LabelTopologyRegion], labels[corev1.LabelTopologyZone] = "region", zone
		}
		_, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		return err
	})
}

// CreateReadyNodes makes nodes that nobody plays, whose status says once that they are ready.
func CreateReadyNodes(t testing.TB, cs kubernetes.Interface, names ...string) {
	t.Helper()
	forEach(t, names, func(ctx context.Context, name string) error {
		if _, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		return setCondition(ctx, cs, name, corev1.NodeReady, corev1.ConditionTrue)
	})
}

// SetCondition sets a node's condition as a kubelet does, with a heartbeat.
func SetCondition(t testing.TB, cs kubernetes.Interface, node string, kind corev1.NodeConditionType, status corev1.ConditionStatus) {
	t.Helper()
	if err := setCondition(t.Context(), cs, node, kind, status); err != nil {
		t.Fatalf("condition %s of node %s: %v", kind, node, err)
	}
}

func setCondition(ctx context.Context, cs kubernetes.Interface, node string, kind corev1.NodeConditionType, status corev1.ConditionStatus) error {
	now := metav1.NewTime(await.Now())
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: kind, Status: status, Reason: "Kubelet", LastHeartbeatTime: now, LastTransitionTime: now},
	}}})
	if err == nil {
		_, err = cs.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	return err
}

// NodeNames returns n names: prefix-0 and on.
func NodeNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}

// WaitNodesReady waits until each node's condition Ready is True and, where node-lifecycle-controller runs, until it
// has taken its first taints off again.
func WaitNodesReady(t testing.TB, cs kubernetes.Interface, names ...string) {
	t.Helper()
	await.Until(t, settleWithin, "nodes to be ready", func(ctx context.Context) error {
		for _, name := range names {
			node, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				return fmt.Errorf("node %s is not ready: %v", name, node.Status.Conditions)
			}
			for _, taint := range node.Spec.Taints {
				if taint.Effect == corev1.TaintEffectNoExecute {
					return fmt.Errorf("node %s has taint %s", name, taint.ToString())
				}
			}
		}
		return nil
	})
}

// NoExecute is a taint of that key and value.
func NoExecute(key, value string) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoExecute}
}

// Taint adds taints to a node, as kubectl taint does: one of the same key and effect is replaced. It returns when the
// API server has answered.
func Taint(t testing.TB, cs kubernetes.Interface, node string, taints ...corev1.Taint) {
	t.Helper()
	editTaints(t, cs, node, func(have []corev1.Taint) []corev1.Taint {
		return append(slices.DeleteFunc(have, func(old corev1.Taint) bool {
			return slices.ContainsFunc(taints, func(n corev1.Taint) bool { return n.MatchTaint(&old) })
		}), taints...)
	})
}

// Untaint removes the NoExecute taints of that key from a node.
func Untaint(t testing.TB, cs kubernetes.Interface, node, key string) {
	t.Helper()
	editTaints(t, cs, node, func(have []corev1.Taint) []corev1.Taint {
		return slices.DeleteFunc(have, func(old corev1.Taint) bool {
			return old.Key == key && old.Effect == corev1.TaintEffectNoExecute
		})
	})
}

func editTaints(t testing.TB, cs kubernetes.Interface, node string, edit func([]corev1.Taint) []corev1.Taint) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := cs.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = edit(n.Spec.Taints)
		_, err = cs.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatalf("taints of node %s: %v", node, err)
	}
}

// TaintAll taints many nodes at once.
func TaintAll(t testing.TB, cs kubernetes.Interface, nodes []string, taints ...corev1.Taint) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		t.Fatal(err)
	}
	forEach(t, nodes, func(ctx context.Context, name string) error {
		_, err := cs.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// Silence makes a node's kubelet silent; Revive lets it speak again.
func Silence(t testing.TB, cs kubernetes.Interface, node string) { setKubelet(t, cs, node, "none") }

// Revive ends Silence.
func Revive(t testing.TB, cs kubernetes.Interface, node string) {
	setKubelet(t, cs, node, controlplane.KubeletValue)
}

func setKubelet(t testing.TB, cs kubernetes.Interface, node, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, controlplane.KubeletLabel, value)
	if _, err := cs.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("kubelet of node %s: %v", node, err)
	}
}

// WaitTaint waits until a node has, or no longer has, a NoExecute taint of that key.
func WaitTaint(t testing.TB, cs kubernetes.Interface, node, key string, want bool, within time.Duration) {
	t.Helper()
	await.Until(t, within, fmt.Sprintf("taint %s on node %s to be %t", key, node, want), func(ctx context.Context) error {
		n, err := cs.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		has := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == key && t.Effect == corev1.TaintEffectNoExecute
		})
		if has != want {
			return fmt.Errorf("its taints are %v", n.Spec.Taints)
		}
		return nil
	})
}
