package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// systemNamespace is where the manifests put everything.
	systemNamespace = "reprieve-system"
	// agentAccount is the user that an agent's service account is.
	agentAccount = "system:serviceaccount:" + systemNamespace + ":reprieve-agent"
)

// installer runs commands as a person does who installs, with kubectl and the programs on the path, in a folder of its
// own that has the repository's deploy/.
type installer struct {
	t    *testing.T
	dir  string
	path []string
	conf string
}

func newInstaller(t *testing.T, plane *controlplane.ControlPlane) *installer {
	t.Helper()
	in := &installer{t: t, dir: t.TempDir(), conf: plane.AdminKubeconfig()}
	for _, program := range []string{process.Bin(t, "controlplane/kubectl"), process.Bin(t, "reprieved")} {
		in.path = append(in.path, filepath.Dir(program))
	}
	if err := os.Symlink(filepath.Join(process.Root(t), "deploy"), filepath.Join(in.dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	return in
}

// run returns all that the commands print.
func (in *installer) run(commands string) string {
	in.t.Helper()
	cmd := exec.CommandContext(in.t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = in.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+in.conf, "PATH="+strings.Join(append(in.path, os.Getenv("PATH")), ":"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		in.t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	return string(out)
}

// steps are the commands of a block of the guide to installing, but those that wait for pods: nobody runs them here.
func steps(t *testing.T, text string) string {
	t.Helper()
	var kept []string
	for line := range strings.Lines(block(t, "docs/install.md", text)) {
		if !strings.Contains(line, "rollout status") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// Each overlay is accepted by the API server, in a namespace that admits restricted pods only, without a warning; and
// the guide's own commands make the Secrets and install the service and the agent.
func TestManifests(t *testing.T) {
	in := newInstaller(t, controlplane.Start(t, controlplane.Options{}))
	in.run(steps(t, "openssl req"))
	in.run(steps(t, "create secret tls"))
	// In this test both go into one cluster, where the namespace is there already.
	in.run(strings.ReplaceAll(steps(t, "reprieve-agent-credentials"), "kubectl create namespace reprieve-system", ""))
	want := "statefulset.apps/reprieve deployment.apps/reprieve-agent secret/reprieve-agent-credentials secret/reprieve-tls secret/reprieve-tokens"
	if got := in.run("kubectl -n reprieve-system get statefulsets,deployments,secrets -o name"); strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("the guide installs %q; want %q", got, want)
	}
	in.run("printf '%s\n' 'tls: {cert_file: tls.crt, key_file: tls.key}' 'auth: {tokens_file: tokens.yaml}' > conf.yaml; reprieved --config conf.yaml --validate-config")

	overlays, err := os.ReadDir(filepath.Join(process.Root(t), "deploy/kustomize/overlays"))
	if err != nil || len(overlays) < 5 {
		t.Fatalf("%d overlays: %v", len(overlays), err)
	}
	for _, overlay := range overlays {
		out := in.run("kubectl kustomize deploy/kustomize/overlays/" + overlay.Name() + " | kubectl apply --server-side --dry-run=server --force-conflicts -f -")
		if strings.Contains(strings.ToLower(out), "warning") {
			t.Errorf("overlay %s: %s", overlay.Name(), out)
		}
	}
}

// Two agents run with exactly the rights that the manifests give their service account: they elect a leader, feed,
// evict in both ways, write events, and the second one takes over.
func TestAgentUnderTheManifestsRights(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	in := newInstaller(t, plane)
	in.run("kubectl create namespace reprieve-system; kubectl apply --server-side -k deploy/kustomize/overlays/member")
	kube.WaitAllowed(t, plane.Admin, agentAccount, "delete", "", true)
	svc := service.Start(t, service.Options{Clusters: []string{"east"}})
	svc.Enforce("east")
	start := func(name string) *service.Agent {
		return svc.StartAgent(service.AgentOptions{
			Cluster: "east", Kubeconfig: plane.Kubeconfig(agentAccount), LeaderElect: true, Name: name, Flags: []string{"--namespace", systemNamespace},
		})
	}
	first := start("first")
	svc.WaitSynced("east", syncWithin)
	second := start("second")
	svc.WaitExecutor("east", syncWithin)

	kube.CreateNodes(t, plane.Admin, "n1", "n2")
	pods := kube.CreatePods(t, plane.Admin, kube.Pod{Name: "deleted", Node: "n1"}, kube.Pod{Name: "evicted", Node: "n2"})
	deletions := kube.Record(t, plane.Admin)
	kube.Taint(t, plane.Admin, "n1", kube.NoExecute(key, ""))
	deletions.Wait(t, soon, pods[0].UID)
	if now, err := plane.Admin.CoreV1().Pods("default").Get(t.Context(), "deleted", metav1.GetOptions{}); err != nil || disruption(now) == nil {
		t.Errorf("the deleted pod has no condition DisruptionTarget: %v", err)
	}
	await.Until(t, soon, "an event on the pod", func(ctx context.Context) error {
		events, err := kube.Events(ctx, plane.Admin, pods[0])
		if err == nil && len(events) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})

	first.Kill()
	svc.SetPolicy("east", &reprievev1.ClusterPolicy{Method: reprievev1.EvictionMethod_EVICTION_METHOD_EVICT.Enum()})
	kube.Taint(t, plane.Admin, "n2", kube.NoExecute(key, ""))
	deletions.Wait(t, soon, pods[1].UID)
	for _, a := range []*service.Agent{first, second} {
		if log := string(a.Log()); strings.Contains(log, "orbidden") {
			t.Errorf("an agent lacks rights:\n%s", log)
		}
	}
	mayNot(t, plane)
}

// mayNot asks for rights that an agent must not have.
func mayNot(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	for _, r := range []authorizationv1.ResourceAttributes{
		{Verb: "get", Resource: "secrets", Namespace: systemNamespace}, {Verb: "list", Resource: "secrets"},
		{Verb: "patch", Resource: "nodes"}, {Verb: "delete", Resource: "nodes"}, {Verb: "create", Resource: "pods"}, {Verb: "patch", Resource: "pods"},
		{Verb: "update", Resource: "pods", Subresource: "status"}, {Verb: "create", Resource: "pods", Subresource: "exec"},
		{Verb: "list", Resource: "namespaces"}, {Verb: "get", Resource: "namespaces", Name: "default"},
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: systemNamespace, Name: "another"},
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system"},
	} {
		got, err := plane.Admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: agentAccount, ResourceAttributes: &r},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed {
			t.Errorf("an agent may %+v", r)
		}
	}
}
