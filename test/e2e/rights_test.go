package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// neverCalled are rights that the agent has to have and does not use here.
var neverCalled = map[string]string{
	"list nodes":   "for API servers that do not stream lists",
	"list leases":  "for API servers that do not stream lists",
	"get pods":     "asks who has the name, after a conflict",
	"patch events": "counts up an event that comes again",
}

// An agent under exactly the rights that deploy/ gives its account does all its work, is refused nothing, and uses all
// of its rights.
func TestAgentNeedsExactlyItsRights(t *testing.T) {
	dir := t.TempDir()
	audit := auditLog{t: t, path: filepath.Join(dir, "audit.log"), user: agentAccount}
	policy := filepath.Join(dir, "audit.yaml")
	if err := os.WriteFile(policy, []byte(audit.policy()), 0o600); err != nil {
		t.Fatal(err)
	}
	c := controlplane.Start(t, controlplane.Options{
		Kubelets: &controlplane.Kubelets{}, APIServerFlags: []string{"--audit-policy-file", policy, "--audit-log-path", audit.path},
	})
	kubectl(t, c).run("kubectl apply --server-side -k deploy/kustomize/overlays/member; kubectl apply --server-side -k deploy/kustomize/overlays/node-health")
	s := service.Start(t, service.Options{Clusters: []string{"east"}})
	s.Enforce("east")
	s.StartAgent(service.AgentOptions{
		Cluster: "east", Kubeconfig: c.Kubeconfig(audit.user), LeaderElect: true, Flags: []string{"--namespace", systemNamespace},
	})
	s.WaitSynced("east", time.Minute)

	hearts := kube.NewHearts(t, c.Admin, shortBeat)
	kube.CreateNodes(t, c.Admin, "n1", "n2", "n3")
	hearts.Start("n1", "n2", "n3")
	kube.WaitNodesReady(t, c.Admin, "n1", "n2", "n3")
	s.SetPolicy("east", &reprievev1.ClusterPolicy{
		NodeHealth: reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE.Enum(), NodeHealthFigures: shortFigures(),
	})
	deletions := kube.Record(t, c.Admin)
	pods := kube.CreatePods(t, c.Admin, kube.Pod{Name: "deleted", Node: "n1"}, kube.Pod{Name: "evicted", Node: "n2"})
	kube.WaitRunning(t, c.Admin, pods)
	kube.Taint(t, c.Admin, "n1", kube.NoExecute("maintenance", ""))
	deletions.Wait(t, time.Minute, pods[0].UID)
	s.SetPolicy("east", &reprievev1.ClusterPolicy{Method: reprievev1.EvictionMethod_EVICTION_METHOD_EVICT.Enum()})
	kube.Taint(t, c.Admin, "n2", kube.NoExecute("maintenance", ""))
	deletions.Wait(t, time.Minute, pods[1].UID)

	kube.Silence(t, c.Admin, "n3")
	hearts.Stop("n3")
	kube.WaitTaint(t, c.Admin, "n3", corev1.TaintNodeUnreachable, true, time.Minute)

	granted := grantedTo(t, c, systemNamespace, "reprieve-agent")
	for right := range grantedTo(t, c, corev1.NamespaceNodeLease, "reprieve-agent-node-health") {
		granted[right] = true
	}
	await.Until(t, time.Minute, "all rights to be used", func(context.Context) error {
		used := audit.calls()
		for right := range granted {
			if !used[right] && neverCalled[right] == "" {
				return fmt.Errorf("%q is granted and not used; used are %v", right, used)
			}
		}
		return nil
	})
	for right := range neverCalled {
		if !granted[right] {
			t.Errorf("%q is not granted any more", right)
		}
	}
}

// grantedTo is what roles grant an account: verb and resource, or resource/subresource.
func grantedTo(t *testing.T, c *controlplane.ControlPlane, namespace, account string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	add := func(rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all[verb+" "+resource] = true
				}
			}
		}
	}
	cluster, err := c.Admin.RbacV1().ClusterRoles().Get(t.Context(), account, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	local, err := c.Admin.RbacV1().Roles(namespace).Get(t.Context(), account, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	add(cluster.Rules)
	add(local.Rules)
	return all
}

// auditLog is kube-apiserver's record of what one user asked for.
type auditLog struct {
	t          *testing.T
	path, user string
}

// policy records that user's requests and nothing else, when they are answered; of a watch also when it begins.
func (a auditLog) policy() string {
	return fmt.Sprintf(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [%q]}
- {level: None}
`, a.user)
}

// calls returns what was asked for and granted, and fails the test if something was refused.
func (a auditLog) calls() map[string]bool {
	a.t.Helper()
	b, err := os.ReadFile(a.path)
	if err != nil {
		a.t.Fatal(err)
	}
	used := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		var e struct {
			Verb           string
			ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // It is being written.
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		if e.ResponseStatus.Code == 403 {
			a.t.Fatalf("the agent was refused to %s %s %s/%s", e.Verb, resource, e.ObjectRef.Namespace, e.ObjectRef.Name)
		}
		used[e.Verb+" "+resource] = true
	}
	return used
}
