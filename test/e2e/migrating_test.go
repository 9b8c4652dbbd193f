package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// migration is a cluster that moves over from the built-in controller, and back, as docs/migrating.md says.
type migration struct {
	*testing.T
	plane     *controlplane.ControlPlane
	svc       *service.Service
	deletions *kube.Recorder
}

var (
	withBuiltIn = controlplane.ControllerManager{Controllers: []string{"*"}}
	// The flag as docs/migrating.md gives it.
	withoutBuiltIn = controlplane.ControllerManager{Controllers: []string{"*", "-taint-eviction-controller"}}
)

// The steps of docs/migrating.md, in their order.
func TestMigratingAndBack(t *testing.T) {
	built := withBuiltIn
	plane := controlplane.Start(t, controlplane.Options{Kubelets: &controlplane.Kubelets{Heartbeat: 10 * time.Second}, ControllerManager: &built})
	m := &migration{T: t, plane: plane, svc: service.Start(t, service.Options{Clusters: []string{"east"}}), deletions: kube.Record(t, plane.Admin)}
	m.svc.StartAgent(service.AgentOptions{Cluster: "east", Kubeconfig: plane.AdminKubeconfig()})
	m.svc.WaitSynced("east", syncWithin)
	m.svc.WaitExecutor("east", syncWithin)
	kube.CreateNodes(t, plane.Admin, "n1", "n2", "n3", "n4", "n5")
	kube.WaitNodesReady(t, plane.Admin, "n1", "n2", "n3", "n4", "n5")

	// 1 and 2.
	m.says(`(?m)^east +SHADOW +SYNCED `, "get", "clusters")
	first := m.pod("first", "n1", 2)
	kube.Taint(t, plane.Admin, "n1", kube.NoExecute("trial", "1"))
	m.deletions.Wait(t, time.Minute, first.UID)
	m.says(`first.* WOULD_EVICT`, "history", "--cluster", "east")
	m.says(`Agreement: +100.00% .1 pod`, "shadow", "report", "--cluster", "east", "--since", "24h")
	m.says(`mode=SHADOW`, "policy", "get", "--cluster", "east")

	// 3. Nobody may evict it.
	plane.Control(withoutBuiltIn)
	between := m.pod("between", "n2", 2)
	kube.Taint(t, plane.Admin, "n2", kube.NoExecute("trial", "1"))
	m.says(`between.* WOULD_EVICT`, "history", "--cluster", "east")
	waits := m.pod("waits", "n2", 3600)

	// 4. What fell due since, and nothing else, leaves.
	m.deletions.NoneOf(t, between.UID, waits.UID)
	if _, errs, code := m.svc.TryCLI("enforce", "east"); code == 0 || !strings.Contains(errs, "makes 1 pod due at once") {
		t.Errorf("enforce without an answer: exit %d, %s", code, errs)
	}
	m.says(`ENFORCE`, "enforce", "east", "--yes")
	m.deletions.Wait(t, time.Minute, between.UID)
	m.says(`between.* EVICTED`, "history", "--cluster", "east")
	m.says(`waits .*WAITING`, "get", "evictions", "--cluster", "east")
	m.svc.CLI("policy", "set", "--cluster", "east", "rate=5/10")

	// 5.
	after := m.pod("after", "n3", 2)
	kube.Taint(t, plane.Admin, "n3", kube.NoExecute("trial", "1"))
	m.deletions.Wait(t, time.Minute, after.UID)
	m.says(`after.* EVICTED`, "history", "--cluster", "east")
	m.event(after, "TaintManagerEviction")
	if warnings := m.svc.Cluster("east").GetWarnings(); len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	if out := m.svc.CLI("get", "clusters", "east"); strings.Contains(out, "Warning") {
		t.Errorf("get clusters: %s", out)
	}
	for _, name := range []string{"taint_eviction_controller_pod_deletions_total", "taint_eviction_controller_pod_deletion_duration_seconds"} {
		if m.svc.Metrics()[name] == nil {
			t.Errorf("no metric %s", name)
		}
	}

	// Back.
	m.says(`SHADOW`, "shadow", "east")
	plane.Control(withBuiltIn)
	back := m.pod("back", "n4", 2)
	kube.Taint(t, plane.Admin, "n4", kube.NoExecute("trial", "1"))
	m.deletions.Wait(t, time.Minute, back.UID)
	m.says(`back.* WOULD_EVICT`, "history", "--cluster", "east")
	m.deletions.NoneOf(t, waits.UID)
}

// pod creates a pod that tolerates the trial's taint for a while, and waits until it runs.
func (m *migration) pod(name, node string, seconds int64) *corev1.Pod {
	m.Helper()
	pods := kube.CreatePods(m.T, m.plane.Admin, kube.Pod{Name: name, Node: node, Tolerations: []corev1.Toleration{kube.Tolerate("trial", seconds)}})
	kube.WaitRunning(m.T, m.plane.Admin, pods)
	return pods[0]
}

// says waits until the command line says something.
func (m *migration) says(want string, args ...string) {
	m.Helper()
	pattern := regexp.MustCompile(want)
	await.Until(m.T, 30*time.Second, fmt.Sprintf("reprieve %s to say %s", strings.Join(args, " "), want), func(context.Context) error {
		out, errs, code := m.svc.TryCLI(args...)
		if code != 0 || !pattern.MatchString(out) {
			return fmt.Errorf("exit %d, it says\n%s%s", code, out, errs)
		}
		m.Logf("$ reprieve %s\n%s", strings.Join(args, " "), out)
		return nil
	})
}

// event waits for an event on a pod.
func (m *migration) event(pod *corev1.Pod, reason string) {
	m.Helper()
	await.Until(m.T, 30*time.Second, "event "+reason, func(ctx context.Context) error {
		events, err := kube.Events(ctx, m.plane.Admin, pod)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Reason == reason {
				return nil
			}
		}
		return errors.New("there is none")
	})
}
