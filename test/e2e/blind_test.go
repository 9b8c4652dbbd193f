package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/link"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// The service's own blindness is nobody's death: the agent cut off from the API server or the service, and each of the
// two stopped, for twice the grace, with all nodes alive and well.
func TestBlindnessIsNoNodesDeath(t *testing.T) {
	w := startWard(t, shortFigures(), shortBeat)
	w.agent.Kill()
	api, home := link.Start(t, strings.TrimPrefix(w.URL, "https://")), link.Start(t, w.service.Addr)
	agent := w.service.StartAgent(service.AgentOptions{
		Cluster: labName, Kubeconfig: viaLink(t, w.Kubeconfig(labAgent), api), Server: home.Addr, Name: "linked",
	})
	w.service.WaitSynced(labName, soon)
	nodes := kube.NodeNames("n", 4)
	w.admit(t, "", nodes...)
	signal := func(pid func() int, sig syscall.Signal) func() {
		return func() {
			if err := syscall.Kill(pid(), sig); err != nil {
				t.Fatalf("%s: %v", sig, err)
			}
		}
	}
	for _, c := range []struct {
		name       string
		away, back func()
	}{
		{"api-server-stalled", api.Stall, api.Mend},
		{"service-stalled", home.Stall, home.Mend},
		{"agent-stopped", signal(agent.Pid, syscall.SIGSTOP), signal(agent.Pid, syscall.SIGCONT)},
		{"service-stopped", signal(w.service.Pid, syscall.SIGSTOP), signal(w.service.Pid, syscall.SIGCONT)},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := await.Now()
			c.away()
			await.Pause(t.Context(), 2*shortGrace)
			c.back()
			await.Pause(t.Context(), shortGrace)
			w.changes.Quiet(t, from, nodes...)
		})
	}
	// It sees again: the next node that dies is found in time.
	w.service.WaitSynced(labName, soon)
	w.silence(t, nodes[0])
	w.lost(t, nodes[0], shortGrace)
}
