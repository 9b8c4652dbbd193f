package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// burst is how many pods fall due at once.
	burst = 1000
	// midBurst is how many of them have left when the program is killed.
	midBurst = burst / 10
	// waits is how many pods fall due one after the other, over waitsOver seconds.
	waits     = 96
	waitsOver = 16
	// downFor is how long a killed program stays away.
	downFor = 4 * time.Second
	// lateBy is how long after its due instant and the outage an order may be sent.
	lateBy = time.Minute
)

func TestKillService(t *testing.T) {
	killInBurst(t, func(r *rig, _ *service.Agent) (*process.Process, func()) { return r.svc.Process, r.svc.WaitReady })
}

func TestKillAgent(t *testing.T) {
	killInBurst(t, func(_ *rig, a *service.Agent) (*process.Process, func()) { return a.Process, a.WaitReady })
}

func TestKillAPIServer(t *testing.T) {
	killInBurst(t, func(r *rig, _ *service.Agent) (*process.Process, func()) { return r.plane.APIServer, r.plane.WaitReady })
}

func TestKillEtcd(t *testing.T) {
	killInBurst(t, func(r *rig, _ *service.Agent) (*process.Process, func()) { return r.plane.Etcd, r.plane.WaitReady })
}

// killInBurst kills a program in the middle of waits and of a burst of evictions, and starts it again. All that is due
// then leaves once, at its old due instant and not much later, and nothing else does.
func killInBurst(t *testing.T, pick func(*rig, *service.Agent) (victim *process.Process, back func())) {
	svc := service.Start(t, service.Options{Clusters: []string{"east"}})
	r := newRig(t, svc, "east")
	agent := svc.StartAgent(service.AgentOptions{Cluster: r.name, Kubeconfig: r.plane.AdminKubeconfig(), LeaderElect: true})
	load := newLoad(t, r)
	r.waitServed()

	kube.TaintAll(t, r.plane.Admin, load.waitNodes, kube.NoExecute(key, "waits"))
	r.waitRecords(t, append(load.waits, load.far...)...)
	kube.TaintAll(t, r.plane.Admin, load.burstNodes, kube.NoExecute(key, "burst"))
	before := r.waitRecords(t, append(load.gone(), load.far...)...)
	waitDeletions(t, r, midBurst)
	victim, back := pick(r, agent)
	victim.Kill()
	killed, gone := await.Now(), len(r.deletions.All())
	if gone > burst/2 {
		t.Fatalf("%d pods had left before the kill: the burst was nearly over", gone)
	}
	await.Pause(t.Context(), downFor)
	victim.Start()
	back()
	outage := await.Now().Sub(killed)

	r.deletions.Wait(t, 2*time.Minute, kube.UIDs(load.gone())...)
	after := r.waitClosed(t, time.Minute, load.gone()...)
	r.onlyLeft(t, load.gone())
	r.onceEach(t, load.gone(), after)
	sameDue(t, append(load.gone(), load.far...), before, after)
	load.stillFar(t, after)
	judgeLateness(t, load.gone(), after, killed, outage)
}

// load is what a kill meets: pods that fall due at once, one after the other, much later, and never.
type load struct {
	burstNodes, waitNodes []string
	burst, waits, far     []*corev1.Pod
}

func newLoad(t *testing.T, r *rig) *load {
	t.Helper()
	l := &load{burstNodes: kube.NodeNames("burst", 10), waitNodes: kube.NodeNames("wait", 4)}
	kube.CreateNodes(t, r.plane.Admin, append(append([]string{"quiet"}, l.burstNodes...), l.waitNodes...)...)
	pods := kube.Bulk("burst", burst, l.burstNodes, nil)
	pods = append(pods, kube.Bulk("wait", waits, l.waitNodes, func(i int, p *kube.Pod) {
		p.Tolerations = []corev1.Toleration{kube.Tolerate(key, int64(1+i%waitsOver))}
	})...)
	pods = append(pods, kube.Bulk("far", 40, l.waitNodes, func(i int, p *kube.Pod) {
		p.Tolerations = []corev1.Toleration{kube.Tolerate(key, int64(3600+i))}
	})...)
	pods = append(pods, kube.Bulk("ever", 20, l.burstNodes, func(_ int, p *kube.Pod) {
		p.Tolerations = []corev1.Toleration{kube.Tolerate(key, -1)}
	})...)
	pods = append(pods, kube.Bulk("quiet", 20, []string{"quiet"}, nil)...)
	made := kube.CreatePods(t, r.plane.Admin, pods...)
	l.burst, l.waits, l.far = made[:burst:burst], made[burst:burst+waits:burst+waits], made[burst+waits:burst+waits+40]
	return l
}

// gone are the pods that have to leave.
func (l *load) gone() []*corev1.Pod { return append(l.burst, l.waits...) }

// stillFar fails the test if an eviction that is due in an hour has begun.
func (l *load) stillFar(t *testing.T, after map[string][]*reprievev1.Eviction) {
	t.Helper()
	for _, pod := range l.far {
		if ev := after[string(pod.UID)][0]; ev.GetState() != reprievev1.EvictionState_EVICTION_STATE_WAITING {
			t.Errorf("the eviction of %s, due in an hour, is %s", pod.Name, ev.GetState())
		}
	}
}

func waitDeletions(t *testing.T, r *rig, n int) {
	t.Helper()
	await.Until(t, time.Minute, fmt.Sprintf("%d deletions", n), func(ctx context.Context) error {
		if got := len(r.deletions.All()); got < n {
			return fmt.Errorf("there are %d", got)
		}
		return nil
	})
}

// judgeLateness fails the test if an order was sent too long after its due instant and the outage, or if nothing fell
// due before, during and after the outage, and prints the worst.
func judgeLateness(t *testing.T, pods []*corev1.Pod, after map[string][]*reprievev1.Eviction, killed time.Time, outage time.Duration) {
	t.Helper()
	var worst time.Duration
	var name string
	var early, during, later, again int
	closed := map[reprievev1.CloseReason]int{}
	for _, pod := range pods {
		ev := after[string(pod.UID)][0]
		closed[ev.GetCloseReason()]++
		switch due := ev.GetDueTime().AsTime(); {
		case due.Before(killed):
			early++
		case due.Before(killed.Add(outage)):
			during++
		default:
			later++
		}
		if !ev.GetFirstSendTime().AsTime().Equal(ev.GetLastSendTime().AsTime()) {
			again++
		}
		l := late(ev)
		if l < 0 {
			t.Errorf("the order for %s was sent %s before it was due", pod.Name, -l)
		}
		if l > worst {
			worst, name = l, pod.Name
		}
	}
	t.Logf("outage %s; due before it %d, during it %d, after it %d; sent more than once %d; closed as %v; sent at most %s after due (%s)",
		outage.Round(time.Millisecond), early, during, later, again, closed, worst.Round(time.Millisecond), name)
	if worst > outage+lateBy {
		t.Errorf("pod %s: its order was sent %s after it was due, with an outage of %s", name, worst, outage)
	}
	if early == 0 || during == 0 || later == 0 {
		t.Errorf("nothing fell due before (%d), during (%d) or after (%d) the outage: this proves little", early, during, later)
	}
}
