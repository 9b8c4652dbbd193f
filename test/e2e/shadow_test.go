package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// shadowPods fall due shadowPerSecond at a time, so that no queue of either side delays any.
	shadowPods      = 520
	shadowPerSecond = 5
	// shadowFirst is the wait of the first of them, in seconds.
	shadowFirst = 8
	// shadowTolerance is how far apart the two controllers may be.
	shadowTolerance = 2 * time.Second
)

// Beside the built-in controller, shadow mode would have evicted the same pods at the same time, and says why where it
// would not.
func TestShadowModeAgreesWithTheBuiltInController(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{
		Kubelets: &controlplane.Kubelets{Heartbeat: 10 * time.Second},
		ControllerManager: &controlplane.ControllerManager{
			Controllers: []string{"node-lifecycle-controller", "taint-eviction-controller"}, QPS: 1000, Burst: 1000,
		},
	})
	s := service.Start(t, service.Options{Clusters: []string{"east"}})
	s.StartAgent(service.AgentOptions{Cluster: "east", Kubeconfig: c.AdminKubeconfig()})
	s.WaitSynced("east", time.Minute)

	nodes := kube.NodeNames("n", 10)
	kube.CreateNodes(t, c.Admin, append(nodes, "quiet")...)
	kube.WaitNodesReady(t, c.Admin, append(nodes, "quiet")...)
	deletions := kube.Record(t, c.Admin)
	pods := kube.CreatePods(t, c.Admin, kube.Bulk("p", shadowPods, nodes, func(i int, p *kube.Pod) {
		p.Tolerations = []corev1.Toleration{kube.Tolerate("maintenance", shadowFirst+int64(i/shadowPerSecond))}
	})...)
	odd := createOddPods(t, c, nodes[0])
	stay := kube.CreatePods(t, c.Admin, kube.Pod{Name: "tolerates", Node: nodes[0], Tolerations: tolerateForEver("maintenance")}, kube.Pod{Name: "elsewhere", Node: "quiet"})
	kube.WaitRunning(t, c.Admin, append(slices.Clone(pods), stay...))
	s.WaitPods("east", len(pods)+len(odd)+len(stay), time.Minute)

	kube.TaintAll(t, c.Admin, nodes, kube.NoExecute("maintenance", ""))
	lengthen(t, c, odd["longer"])
	deletions.Wait(t, 3*time.Minute, kube.UIDs(pods)...)

	report := waitReport(t, s, uint64(len(pods)+1)) // and the one whose wait became longer
	t.Logf("agreement %.4f over %v; distance p50 %s, p99 %s, max %s", report.GetAgreement(), report.GetTotals(),
		report.GetDifferenceP50().AsDuration(), report.GetDifferenceP99().AsDuration(), report.GetDifferenceMax().AsDuration())
	if report.GetAgreement() < 0.99 {
		t.Errorf("the report says that %.4f agree", report.GetAgreement())
	}
	checkDifferences(t, report, odd)
	checkCommand(t, s)
	compareWithWatch(t, s, deletions, pods)
	deletions.NoneOf(t, kube.UIDs(stay)...)
	for uid, past := range s.History("east") {
		for _, ev := range past {
			if ev.GetFirstSendTime() != nil {
				t.Errorf("shadow mode sent the eviction of pod %s (uid %s)", ev.GetPod(), uid)
			}
		}
	}
}

// createOddPods makes the pods that the built-in controller treats otherwise, by name.
func createOddPods(t *testing.T, c *controlplane.ControlPlane, node string) map[string]*corev1.Pod {
	t.Helper()
	made := kube.CreatePods(t, c.Admin,
		kube.Pod{Name: "finished", Node: node},
		kube.Pod{Name: "mirror", Node: node, Shape: func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "of-a-file"}
		}},
		kube.Pod{Name: "longer", Node: node, Tolerations: []corev1.Toleration{kube.Tolerate("maintenance", 15)}})
	kube.WaitRunning(t, c.Admin, made)
	odd := map[string]*corev1.Pod{}
	for _, pod := range made {
		odd[pod.Name] = pod
	}
	update(t, c, odd["finished"], func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "status")
	return odd
}

// lengthen makes a pod's wait longer while it runs.
func lengthen(t *testing.T, c *controlplane.ControlPlane, pod *corev1.Pod) {
	t.Helper()
	update(t, c, pod, func(p *corev1.Pod) {
		for i := range p.Spec.Tolerations {
			if p.Spec.Tolerations[i].Key == "maintenance" {
				*p.Spec.Tolerations[i].TolerationSeconds += 30
			}
		}
	})
}

func update(t *testing.T, c *controlplane.ControlPlane, pod *corev1.Pod, change func(*corev1.Pod), subresource ...string) {
	t.Helper()
	pods := c.Admin.CoreV1().Pods(pod.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(now)
		if len(subresource) > 0 {
			_, err = pods.UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
		} else {
			_, err = pods.Update(t.Context(), now, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		t.Fatalf("change pod %s: %v", pod.Name, err)
	}
}

// waitReport waits until the report has so many pods that would have been evicted and nothing is still expected.
func waitReport(t *testing.T, s *service.Service, wouldEvict uint64) *reprievev1.ShadowReport {
	t.Helper()
	var report *reprievev1.ShadowReport
	await.Until(t, time.Minute, "the shadow report", func(ctx context.Context) error {
		resp, err := s.Conn.Query().GetShadowReport(ctx, &reprievev1.GetShadowReportRequest{
			Cluster: "east", Tolerance: durationpb.New(shadowTolerance),
		})
		if err != nil {
			return err
		}
		report = resp.GetReport()
		if n := report.GetTotals().GetWouldEvict(); n < wouldEvict {
			return fmt.Errorf("%d of %d would have been evicted", n, wouldEvict)
		}
		for _, r := range report.GetReasons() {
			if r.GetReason() == reprievev1.ShadowDifference_REASON_NOT_DELETED_YET {
				return errors.New("pods are not deleted yet")
			}
		}
		return nil
	})
	return report
}

// checkDifferences wants each odd pod among the differences under its name, and no other that is not explained.
func checkDifferences(t *testing.T, report *reprievev1.ShadowReport, odd map[string]*corev1.Pod) {
	t.Helper()
	want := map[string]reprievev1.ShadowDifference_Reason{
		"finished": reprievev1.ShadowDifference_REASON_NOT_A_SUBJECT,
		"mirror":   reprievev1.ShadowDifference_REASON_NOT_A_SUBJECT,
		"longer":   reprievev1.ShadowDifference_REASON_TOLERATION_CHANGED,
	}
	for _, d := range report.GetDifferences() {
		t.Logf("difference: %s/%s %s %s by %s: %s", d.GetNamespace(), d.GetPod(), d.GetKind(), d.GetReason(), d.GetDifference().AsDuration(), d.GetExplanation())
		if odd[d.GetPod()] == nil {
			t.Errorf("pod %s differs: %v", d.GetPod(), d)
			continue
		}
		if d.GetReason() != want[d.GetPod()] || d.GetUid() != string(odd[d.GetPod()].UID) {
			t.Errorf("pod %s differs because of %s, want %s", d.GetPod(), d.GetReason(), want[d.GetPod()])
		}
		delete(want, d.GetPod())
	}
	for name := range want {
		t.Errorf("the report does not have the difference of pod %s", name)
	}
}

// checkCommand wants the same from the command line, whose exit code a migration's script reads.
func checkCommand(t *testing.T, s *service.Service) {
	t.Helper()
	out := s.CLI("shadow", "report", "--cluster", "east", "--fail-below", "99")
	for _, want := range []string{"default/longer", "TOLERATION_CHANGED", "default/mirror", "NOT_A_SUBJECT"} {
		if !strings.Contains(out, want) {
			t.Errorf("reprieve shadow report does not show %q:\n%s", want, out)
		}
	}
	if _, _, code := s.TryCLI("shadow", "report", "--cluster", "east", "--fail-below", "99.9"); code != 1 {
		t.Errorf("reprieve shadow report --fail-below 99.9 exited with %d", code)
	}
}

// compareWithWatch compares what the service recorded with what a watch of this test's own saw, so that the report is
// not taken at its word.
func compareWithWatch(t *testing.T, s *service.Service, deletions *kube.Recorder, pods []*corev1.Pod) {
	t.Helper()
	history, agreed := s.History("east"), 0
	for _, pod := range pods {
		d, _ := deletions.Of(pod.UID)
		due, ok := firstDue(history[string(pod.UID)])
		if apart := d.Seen.Sub(due); !ok || apart.Abs() > shadowTolerance {
			t.Logf("pod %s was due at %s (%t) and seen going %s after that", pod.Name, due.Format(time.StampMilli), ok, apart)
			continue
		}
		agreed++
	}
	t.Logf("by the test's own watch %d of %d agree", agreed, len(pods))
	if agreed*100 < len(pods)*99 {
		t.Errorf("by the test's own watch %d of %d agree", agreed, len(pods))
	}
}

// firstDue is when shadow mode would have evicted a pod: the record says WOULD_EVICT, or that the pod was deleted by
// another while its wait was about to end.
func firstDue(past []*reprievev1.Eviction) (time.Time, bool) {
	var first time.Time
	for _, ev := range past {
		if due := ev.GetDueTime(); due != nil && (first.IsZero() || due.AsTime().Before(first)) {
			first = due.AsTime()
		}
	}
	return first, !first.IsZero()
}
