package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// Node health without an agent: the leases come as one more of kubectl's streams. It is observed, and changes nothing.
func TestNodeHealthFromKubectlStreams(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{Kubelets: &controlplane.Kubelets{}})
	s := service.Start(t, service.Options{Anonymous: true})
	user := kubectl(t, c)
	user.env = append(user.env, s.Env()...)
	hearts := kube.NewHearts(t, c.Admin, shortBeat)
	nodes := []string{"n1", "n2", "n3"}
	kube.CreateNodes(t, c.Admin, nodes...)
	hearts.Start(nodes...)
	kube.WaitNodesReady(t, c.Admin, nodes...)
	user.run("bin/reprieve policy set lab node_health=observe node_health_figures=grace_period=" + shortGrace.String() + " --new-cluster --yes")
	user.start("feed", `
bin/reprieve feed --cluster lab --cluster-uid "$(kubectl get namespace kube-system -o jsonpath={.metadata.uid})" \
  -f <(kubectl get nodes -w --output-watch-events -o json) \
  -f <(kubectl get pods -A -w --output-watch-events -o json) \
  -f <(kubectl get leases -n kube-node-lease -w --output-watch-events -o json)`)
	says := func(node, want string) string {
		t.Helper()
		var out string
		await.Until(t, soon, fmt.Sprintf("explain node %s to say %q", node, want), func(context.Context) error {
			if out = user.run("bin/reprieve explain node " + node + " --cluster lab || true"); !strings.Contains(out, want) {
				return fmt.Errorf("it says %s", out)
			}
			return nil
		})
		return out
	}
	for _, node := range nodes {
		says(node, "silent in ")
	}
	before := healthOf(t, c, "n1")
	hearts.Stop("n1")
	out := says("n1", "Unknown for ")
	if silent := await.Now().Sub(hearts.Last("n1")); silent <= shortGrace {
		t.Errorf("the node is Unknown %s after its last renewal, before its grace of %s is over", silent, shortGrace)
	}
	if !strings.Contains(out, "unreachable:NoSchedule, would come") || !strings.Contains(out, "node health OBSERVE") {
		t.Errorf("explain node says %s", out)
	}
	if out = user.run("bin/reprieve get nodes --cluster lab"); !strings.Contains(out, "unreachable:NoSchedule") || !strings.Contains(out, "Unknown") {
		t.Errorf("get nodes says %s", out)
	}
	if now := healthOf(t, c, "n1"); now != before {
		t.Errorf("the node was changed, but node health observes:\nbefore %s\nafter  %s", before, now)
	}
	hearts.Start("n1")
	says("n1", "True for ")
	says("n2", "silent in ")
}

// healthOf is what node health would change of a node.
func healthOf(t *testing.T, c *controlplane.ControlPlane, name string) string {
	t.Helper()
	n, err := c.Admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%v %v", n.Spec.Taints, n.Status.Conditions)
}
