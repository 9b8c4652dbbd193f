package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"google.golang.org/grpc/codes"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// grace is the built-in controller's, and the service's, silence after which a node is Unknown.
const grace = 50 * time.Second

// stage is a cluster in which three nodes fall silent, and who looks after it does not matter.
type stage struct {
	plane     *controlplane.ControlPlane
	hearts    *kube.Hearts
	changes   *kube.NodeRecorder
	deletions *kube.Recorder
}

// playbill is when what happened, from a node's last renewal or from its return; rows in this order.
var playbill = []string{
	"silent: Ready Unknown", "silent: NoSchedule", "silent: NoExecute", "silent: pods not ready",
	"silent: a pod that tolerates it for 5 s leaves, after NoExecute",
	"back at 40 s: any change", "back at 55 s: Ready Unknown", "back at 55 s: NoExecute", "back at 55 s: taints gone, after the return",
	"back after NoExecute: taints gone, after the return",
}

// The same timeline through kube-controller-manager's node-lifecycle-controller and taint-eviction-controller and
// through node health, at the figures that both have by default, side by side.
func TestNodeHealthBesideTheBuiltInControllers(t *testing.T) {
	var mu sync.Mutex // guards times
	times := map[string]map[string]time.Duration{}
	play := func(name string, start func(t *testing.T) *stage, check func(*testing.T, map[string]time.Duration)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := start(t).play(t)
			check(t, rows)
			mu.Lock()
			defer mu.Unlock()
			times[name] = rows
		})
	}
	t.Cleanup(func() {
		var table strings.Builder
		for _, row := range playbill {
			fmt.Fprintf(&table, "| %s | %s | %s |\n", row, shown(times["built-in"], row), shown(times["reprieve"], row))
		}
		t.Logf("what | built-in | reprieve\n%s", table.String())
	})
	play("built-in", func(t *testing.T) *stage {
		plane := controlplane.Start(t, controlplane.Options{
			Kubelets: &controlplane.Kubelets{},
			ControllerManager: &controlplane.ControllerManager{
				Controllers: []string{"node-lifecycle-controller", "taint-eviction-controller"},
				Flags:       []string{"--node-monitor-period=5s", "--node-eviction-rate=0.1", "--secondary-node-eviction-rate=0.01"},
			},
		})
		return &stage{plane: plane, hearts: kube.NewHearts(t, plane.Admin, 10*time.Second), changes: kube.RecordNodes(t, plane.Admin), deletions: kube.Record(t, plane.Admin)}
	}, func(*testing.T, map[string]time.Duration) {})
	play("reprieve", func(t *testing.T) *stage {
		w := startWard(t, nil, 10*time.Second)
		return &stage{plane: w.ControlPlane, hearts: w.hearts, changes: w.changes, deletions: w.deletions}
	}, inTime)
}

func shown(rows map[string]time.Duration, row string) string {
	if at, ok := rows[row]; ok {
		return fmt.Sprintf("%.1f s", at.Seconds())
	}
	return "-"
}

// inTime fails the test unless the times are those of N2 and N3.
func inTime(t *testing.T, rows map[string]time.Duration) {
	for _, row := range []string{"silent: Ready Unknown", "silent: NoSchedule", "silent: NoExecute", "back at 55 s: Ready Unknown"} {
		if at, ok := rows[row]; !ok || at <= grace || at > grace+detects {
			t.Errorf("%s came after %s (%t), want (%s, %s]", row, at, ok, grace, grace+detects)
		}
	}
	for _, row := range []string{"back at 40 s: any change", "back at 55 s: NoExecute"} {
		if at, ok := rows[row]; ok {
			t.Errorf("%s came after %s, and should not have", row, at)
		}
	}
	for row, most := range map[string]time.Duration{
		"silent: pods not ready": grace + detects, "back at 55 s: taints gone, after the return": 5 * time.Second,
		"back after NoExecute: taints gone, after the return": 5 * time.Second,
	} {
		if at, ok := rows[row]; !ok || at > most {
			t.Errorf("%s after %s (%t), want at most %s", row, at, ok, most)
		}
	}
	if at := rows["silent: a pod that tolerates it for 5 s leaves, after NoExecute"]; at < 4*time.Second || at > 8*time.Second {
		t.Errorf("the pod left %s after its node's taint, want 5s", at)
	}
}

// play lets nodes fall silent for good, for 40 s, and for 55 s.
func (s *stage) play(t *testing.T) map[string]time.Duration {
	rows := map[string]time.Duration{}
	nodes := append([]string{"silent", "early", "late"}, kube.NodeNames("well", 5)...)
	kube.CreateNodes(t, s.plane.Admin, nodes...)
	// "silent" is heard last before the others are, so that it is the first in the queue for NoExecute.
	s.hearts.Start(nodes[0])
	await.Pause(t.Context(), 2*time.Second)
	s.hearts.Start(nodes[1:]...)
	kube.WaitNodesReady(t, s.plane.Admin, nodes...)
	s.changes.Wait(t, soon, "late", "-"+notReadyNoSchedule, time.Time{})
	pods := kube.CreatePods(t, s.plane.Admin,
		kube.Pod{Name: "leaves", Node: "silent", Tolerations: tolerateLoss(5)}, kube.Pod{Name: "stays", Node: "silent"},
		kube.Pod{Name: "early", Node: "early", Tolerations: tolerateLoss(0)}, kube.Pod{Name: "late", Node: "late"})
	kube.WaitRunning(t, s.plane.Admin, pods)
	// Some steady life first, as a cluster has: both controllers give a zone that is new its first taint at once.
	await.Pause(t.Context(), s.hearts.Last(nodes[0]).Add(14*time.Second).Sub(await.Now()))

	for _, node := range []string{"silent", "early", "late"} {
		kube.Silence(t, s.plane.Admin, node)
		s.hearts.Stop(node)
	}
	from := await.Now()
	last := map[string]time.Time{}
	for _, node := range nodes[:3] {
		last[node] = s.hearts.Last(node)
	}
	note := func(row, node, what string) time.Time {
		at := s.changes.Wait(t, grace+soon, node, what, from)
		rows[row] = at.Sub(last[node])
		return at
	}
	await.Pause(t.Context(), last["early"].Add(40*time.Second).Sub(await.Now()))
	s.revive(t, "early")
	note("back at 55 s: Ready Unknown", "late", "Ready=Unknown")
	await.Pause(t.Context(), last["late"].Add(55*time.Second).Sub(await.Now()))
	returned := s.revive(t, "late")
	note("silent: Ready Unknown", "silent", "Ready=Unknown")
	note("silent: NoSchedule", "silent", "+"+unreachableNoSchedule)
	tainted := note("silent: NoExecute", "silent", "+"+unreachableNoExecute)
	rows["silent: pods not ready"] = notReadySince(t, s.plane.Admin, pods[1]).Sub(last["silent"])
	s.deletions.Wait(t, soon, pods[0].UID)
	d, _ := s.deletions.Of(pods[0].UID)
	rows["silent: a pod that tolerates it for 5 s leaves, after NoExecute"] = d.Seen.Sub(tainted)
	rows["back at 55 s: taints gone, after the return"] = s.changes.Wait(t, soon, "late", "-"+unreachableNoSchedule, from).Sub(returned)
	if at, ok := s.changes.First("late", "+"+unreachableNoExecute, from); ok {
		rows["back at 55 s: NoExecute"] = at.Sub(last["late"])
	}
	returned = s.revive(t, "silent")
	rows["back after NoExecute: taints gone, after the return"] = s.changes.Wait(t, soon, "silent", "-"+unreachableNoExecute, from).Sub(returned)
	if changes := s.changes.Of("early", from); len(changes) > 0 {
		rows["back at 40 s: any change"] = changes[0].Seen.Sub(last["early"])
	}
	s.deletions.NoneOf(t, kube.UIDs(pods[1:])...)
	return rows
}

func (s *stage) revive(t *testing.T, node string) time.Time {
	t.Helper()
	now := await.Now()
	s.hearts.Start(node)
	kube.Revive(t, s.plane.Admin, node)
	return now
}

// notReadySince waits until a pod is not ready and returns when that was set, in whole seconds.
func notReadySince(t *testing.T, cs kubernetes.Interface, pod *corev1.Pod) (at time.Time) {
	t.Helper()
	await.Until(t, soon, "pod "+pod.Name+" to be not ready", func(ctx context.Context) error {
		now, err := cs.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
				at = c.LastTransitionTime.Time
				return nil
			}
		}
		return errors.New("it is ready")
	})
	return at
}

// Where kube-controller-manager's node-lifecycle-controller is seen at work ENFORCE is refused, unless forced.
func TestTwoNodeLifecycleControllersAreRefused(t *testing.T) {
	l := startLab(t, controlplane.Options{Kubelets: &controlplane.Kubelets{}, ControllerManager: &controlplane.ControllerManager{
		Controllers: []string{"node-lifecycle-controller"}, NodeMonitorGrace: shortGrace,
	}})
	kube.Grant(t, l.Admin, labAgent, append(l.rules, nodeHealthRules(t)...))
	hearts, changes := kube.NewHearts(t, l.Admin, shortBeat), kube.RecordNodes(t, l.Admin)
	observe := reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE
	l.service.SetPolicy(labName, &reprievev1.ClusterPolicy{NodeHealth: &observe})
	nodes := kube.NodeNames("n", 4)
	kube.CreateNodes(t, l.Admin, nodes...)
	hearts.Start(nodes...)
	kube.WaitNodesReady(t, l.Admin, nodes...)
	l.service.WaitSynced(labName, soon)
	from := await.Now()
	kube.Silence(t, l.Admin, nodes[0])
	hearts.Stop(nodes[0])
	changes.Wait(t, soon, nodes[0], "Ready=Unknown", from)
	await.Until(t, tellWithin, "the service to see the other controller", func(context.Context) error {
		if h := l.service.Cluster(labName).GetNodeHealth(); h.GetOtherController() == "" {
			return fmt.Errorf("it knows %v", h)
		}
		return nil
	})
	enforce := func(force bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		_, err := l.service.Conn.Admin().SetPolicy(ctx, &reprievev1.SetPolicyRequest{
			Cluster: labName, Force: force, Policy: &reprievev1.ClusterPolicy{NodeHealth: reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE.Enum()},
		})
		return err
	}
	if e, ok := client.FromError(enforce(false)); !ok || e.Code != codes.FailedPrecondition {
		t.Errorf("ENFORCE beside another controller: %v", e)
	}
	if err := enforce(true); err != nil {
		t.Errorf("ENFORCE by force: %v", err)
	}
}
