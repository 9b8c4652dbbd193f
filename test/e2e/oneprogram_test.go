package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// One program serves one cluster: the service has its agent in its own process. When the cluster is made anew under
// the same name the agent gives up and the service stays, so that it can be told to forget the old one.
func TestOneProgram(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{Kubelets: &controlplane.Kubelets{Heartbeat: time.Second}})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	use := func(c *controlplane.ControlPlane) {
		t.Helper()
		data, err := os.ReadFile(c.AdminKubeconfig())
		if err == nil {
			err = os.WriteFile(kubeconfig, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	use(c)
	s := service.Start(t, service.Options{Config: "adopt: enforce", Flags: []string{"--kubeconfig", kubeconfig, "--cluster", "local"}})
	s.WaitSynced("local", time.Minute)
	await.Until(t, time.Minute, "the agent", s.AgentReady)

	kube.CreateNodes(t, c.Admin, "n")
	kube.WaitNodesReady(t, c.Admin, "n")
	deletions := kube.Record(t, c.Admin)
	pods := kube.CreatePods(t, c.Admin, kube.Pod{Name: "leaves", Node: "n"}, kube.Pod{Name: "stays", Node: "n", Tolerations: tolerateForEver("trial")})
	kube.WaitRunning(t, c.Admin, pods)
	kube.Taint(t, c.Admin, "n", kube.NoExecute("trial", "1"))
	deletions.Wait(t, time.Minute, pods[0].UID)
	deletions.NoneOf(t, pods[1].UID)

	s.Kill()
	use(controlplane.Start(t, controlplane.Options{}))
	s.Process.Start()
	s.WaitReady()
	await.Until(t, time.Minute, "the agent to give up", func(ctx context.Context) error {
		err := s.AgentReady(ctx)
		if err == nil || !strings.Contains(err.Error(), "bound to") {
			return errors.Join(errors.New("its health does not tell of the other cluster"), err)
		}
		return nil
	})
	s.CLI("forget", "local", "--yes")
	await.Until(t, time.Minute, "the agent to serve the new cluster", s.AgentReady)
}
