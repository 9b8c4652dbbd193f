package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

const (
	// shortGrace stands in for the grace of 50 s where the rule is tested and not the figure.
	shortGrace = 6 * time.Second
	// detects is how long after its grace a silent node's conditions and taints may take.
	detects = 5 * time.Second
	// shortBeat is how often hearts beat beside shortGrace.
	shortBeat = time.Second

	unreachableNoExecute  = "node.kubernetes.io/unreachable:NoExecute"
	unreachableNoSchedule = "node.kubernetes.io/unreachable:NoSchedule"
	notReadyNoExecute     = "node.kubernetes.io/not-ready:NoExecute"
	notReadyNoSchedule    = "node.kubernetes.io/not-ready:NoSchedule"
)

// ward is a lab whose nodes' health is the service's: no kube-controller-manager runs. Their Leases are renewed by the
// test, so that it knows when each was heard last.
type ward struct {
	*lab
	hearts  *kube.Hearts
	changes *kube.NodeRecorder
}

// shortFigures are those of shortGrace, with taints as fast as they come.
func shortFigures() *reprievev1.NodeHealthFigures {
	fast := 100.0
	return &reprievev1.NodeHealthFigures{GracePeriod: durationpb.New(shortGrace), StartupGracePeriod: durationpb.New(time.Minute), TaintRate: &fast, FullDisruptionTaintRate: &fast}
}

// startWard boots a ward that enforces by these figures; nil are the defaults.
func startWard(t *testing.T, figures *reprievev1.NodeHealthFigures, beat time.Duration) *ward {
	t.Helper()
	l := startLab(t, controlplane.Options{Kubelets: &controlplane.Kubelets{}})
	kube.Grant(t, l.Admin, labAgent, append(slices.Clone(l.rules), nodeHealthRules(t)...))
	w := &ward{lab: l, hearts: kube.NewHearts(t, l.Admin, beat), changes: kube.RecordNodes(t, l.Admin)}
	w.service.SetPolicy(labName, &reprievev1.ClusterPolicy{NodeHealth: reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE.Enum(), NodeHealthFigures: figures})
	return w
}

// nodeHealthRules are the rights that deploy/ gives an agent for node health.
func nodeHealthRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	return kube.ClusterRules(t, filepath.Join(process.Root(t), "deploy/kustomize/base/node-health/rbac.yaml"), "reprieve-agent-node-health")
}

// admit makes nodes of a zone that are well: ready, heard, and rid of the taint that the API server gives new nodes.
func (w *ward) admit(t *testing.T, zone string, nodes ...string) {
	t.Helper()
	kube.CreateZone(t, w.Admin, zone, nodes...)
	w.hearts.Start(nodes...)
	kube.WaitNodesReady(t, w.Admin, nodes...)
	for _, node := range nodes {
		w.changes.Wait(t, soon, node, "-"+notReadyNoSchedule, time.Time{})
	}
}

// silence stops all life of nodes and returns when that was, at most a beat after their last renewals.
func (w *ward) silence(t *testing.T, nodes ...string) time.Time {
	t.Helper()
	for _, node := range nodes {
		kube.Silence(t, w.Admin, node)
	}
	w.hearts.Stop(nodes...)
	return await.Now()
}

// revive lets nodes live again.
func (w *ward) revive(t *testing.T, nodes ...string) time.Time {
	t.Helper()
	now := await.Now()
	for _, node := range nodes {
		kube.Revive(t, w.Admin, node)
	}
	w.hearts.Start(nodes...)
	return now
}

// lost waits until a node is Unknown and fails the test unless that is right: after its whole grace, and soon then.
func (w *ward) lost(t *testing.T, node string, grace time.Duration) time.Time {
	t.Helper()
	last := w.hearts.Last(node)
	at := w.changes.Wait(t, grace+soon, node, "Ready=Unknown", last)
	overAt(t, node+"'s Ready=Unknown", at, last.Add(grace), last.Add(grace))
	return at
}

// overAt fails the test unless what the end of a grace brings came after that end, and soon. The end was between two
// instants.
func overAt(t *testing.T, what string, at, earliest, latest time.Time) {
	t.Helper()
	if !at.After(earliest) || at.After(latest.Add(detects)) {
		t.Errorf("%s came between %s and %s after the grace was over, want (0s, %s]", what,
			at.Sub(latest).Round(time.Millisecond), at.Sub(earliest).Round(time.Millisecond), detects)
	}
}

// silenced are what a node's silence brings at once.
var silenced = []string{"Ready=Unknown", "MemoryPressure=Unknown", "DiskPressure=Unknown", "PIDPressure=Unknown", "+" + unreachableNoSchedule}

// healed waits until nodes are ready and have no taint of node health any more.
func (w *ward) healed(t *testing.T, since time.Time, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		await.Until(t, soon, "node "+node+" to be well", func(ctx context.Context) error {
			n, err := w.node(ctx, node)
			if err != nil {
				return err
			}
			for i := range n.Spec.Taints {
				if key := n.Spec.Taints[i].Key; key == corev1.TaintNodeUnreachable || key == corev1.TaintNodeNotReady {
					return fmt.Errorf("it has taint %s; since %s: %v", n.Spec.Taints[i].ToString(), since.Format(time.StampMilli), w.changes.Of(node, since))
				}
			}
			return nil
		})
	}
	kube.WaitNodesReady(t, w.Admin, nodes...)
}

// view is what the service says of a node's health.
func (w *ward) view(t *testing.T, node string) *reprievev1.NodeHealth {
	t.Helper()
	for _, v := range w.service.Nodes(labName) {
		if v.GetName() == node {
			return v.GetHealth()
		}
	}
	t.Fatalf("the service does not know node %s", node)
	return nil
}

// readiness is the status of a pod's condition Ready.
func (w *ward) readiness(t *testing.T, pod *corev1.Pod) corev1.ConditionStatus {
	t.Helper()
	for _, c := range w.pod(t, pod).Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return ""
}

// unready waits until pods show that they are not ready.
func (w *ward) unready(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		await.Until(t, soon, "pod "+pod.Name+" to be not ready", func(context.Context) error {
			if s := w.readiness(t, pod); s != corev1.ConditionFalse {
				return fmt.Errorf("its condition Ready is %s", s)
			}
			return nil
		})
	}
}

// node reads a node as it is now.
func (w *ward) node(ctx context.Context, name string) (*corev1.Node, error) {
	return w.Admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}
