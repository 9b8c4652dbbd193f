package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/link"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// awayPast is how long the agent stays away after the last pod has fallen due.
const awayPast = 5 * time.Second

// An agent is cut off while pods fall due, and one of their nodes loses its taint meanwhile. Once the agent is back,
// that node's pods stay, although they were due and ordered perhaps, and those of the node still tainted leave.
func TestAgentCutOff(t *testing.T) {
	svc := service.Start(t, service.Options{Clusters: []string{"east"}, Config: "feed_timeout: 5s"})
	r := newRig(t, svc, "east")
	api, home := link.Start(t, strings.TrimPrefix(r.plane.URL, "https://")), link.Start(t, svc.Addr)
	agent := svc.StartAgent(service.AgentOptions{
		Cluster: r.name, Kubeconfig: viaLink(t, r.plane.AdminKubeconfig(), api), Server: home.Addr, LeaderElect: true,
	})
	signal := func(sig syscall.Signal) func() {
		return func() {
			if err := syscall.Kill(agent.Pid(), sig); err != nil {
				t.Fatalf("%s to the agent: %v", sig, err)
			}
		}
	}
	var left []*corev1.Pod
	for _, c := range []struct {
		name       string
		away, back func()
	}{
		{"api-server-stalled", api.Stall, api.Mend},
		{"api-server-cut", api.Cut, api.Mend},
		{"service-stalled", home.Stall, home.Mend},
		{"service-cut", home.Cut, home.Mend},
		{"agent-stopped", signal(syscall.SIGSTOP), signal(syscall.SIGCONT)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.waitServed()
			freed, kept := c.name+"-freed", c.name+"-kept"
			kube.CreateNodes(t, r.plane.Admin, freed, kept)
			pods := kube.CreatePods(t, r.plane.Admin, kube.Bulk(c.name, 40, []string{freed, kept}, func(i int, p *kube.Pod) {
				p.Tolerations = []corev1.Toleration{kube.Tolerate(key, int64(6+i%4))}
			})...)
			stay, leave := onNode(pods, freed), onNode(pods, kept)
			left = append(left, leave...)

			kube.TaintAll(t, r.plane.Admin, []string{freed, kept}, kube.NoExecute(key, ""))
			before := r.waitRecords(t, pods...)
			c.away()
			await.Pause(t.Context(), lastDue(pods, before).Add(awayPast).Sub(await.Now()))
			r.deletions.NoneOf(t, kube.UIDs(pods)...)
			kube.Untaint(t, r.plane.Admin, freed, key)
			c.back()
			back := await.Now()

			r.deletions.Wait(t, 2*time.Minute, kube.UIDs(leave)...)
			t.Logf("all that had to leave had left %s after the agent was back", await.Now().Sub(back).Round(time.Millisecond))
			after := r.waitClosed(t, time.Minute, pods...)
			r.onlyLeft(t, left)
			r.onceEach(t, leave, after)
			sameDue(t, pods, before, after)
			for _, pod := range stay {
				evs := after[string(pod.UID)]
				if len(evs) != 1 || evs[0].GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_CANCELLED ||
					evs[0].GetCancelCause() != reprievev1.CancelCause_CANCEL_CAUSE_TAINT_REMOVED {
					t.Errorf("pod %s, whose node lost the taint, has evictions %v, want one that was cancelled", pod.Name, evs)
				}
			}
		})
	}
}

// viaLink is a copy of a kubeconfig file that goes through a link.
func viaLink(t *testing.T, file string, l *link.Link) string {
	t.Helper()
	kc, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range kc.Clusters {
		cluster.Server = "https://" + l.Addr
	}
	file = t.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func onNode(pods []*corev1.Pod, node string) []*corev1.Pod {
	var on []*corev1.Pod
	for _, pod := range pods {
		if pod.Spec.NodeName == node {
			on = append(on, pod)
		}
	}
	return on
}

// lastDue is when the last of the pods falls due by its newest record.
func lastDue(pods []*corev1.Pod, all map[string][]*reprievev1.Eviction) time.Time {
	var last time.Time
	for _, pod := range pods {
		evs := all[string(pod.UID)]
		if due := evs[len(evs)-1].GetDueTime().AsTime(); due.After(last) {
			last = due
		}
	}
	return last
}
