package tolerations

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMain(m *testing.M) {
	// klog's flusher belongs to the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const (
	notReady    = corev1.TaintNodeNotReady
	unreachable = corev1.TaintNodeUnreachable
)

// exists tolerates all values of a NoExecute taint for so long, or for ever if negative.
func exists(key string, seconds int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if seconds >= 0 {
		t.TolerationSeconds = &seconds
	}
	return t
}

func equal(key, value string, seconds int64) corev1.Toleration {
	t := exists(key, seconds)
	t.Operator, t.Value = "", value
	return t
}

func podWith(tols ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "p"}, Spec: corev1.PodSpec{Tolerations: tols}}
}

func TestFindings(t *testing.T) {
	both := []corev1.Toleration{exists(notReady, 300), exists(unreachable, 300)}
	with := func(more ...corev1.Toleration) []corev1.Toleration {
		return append(append([]corev1.Toleration{}, both...), more...)
	}
	anything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	controls := true
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want []Finding
	}{
		"the plugin's":    {podWith(both...), nil},
		"none":            {podWith(), []Finding{{Kind: LeavesAtOnce, Taints: []string{notReady, unreachable}}}},
		"one":             {podWith(both[0]), []Finding{{Kind: LeavesAtOnce, Taints: []string{unreachable}}}},
		"wrong effect":    {podWith(both[0], corev1.Toleration{Key: unreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}), []Finding{{Kind: LeavesAtOnce, Taints: []string{unreachable}}}},
		"no wait is kept": {podWith(exists(notReady, 0), both[1]), nil},
		"a value": {podWith(equal(notReady, "true", 60), both[1]), []Finding{
			{Kind: LeavesAtOnce, Taints: []string{notReady}}, {Kind: CannotMatch, Toleration: ptr(equal(notReady, "true", 60))}}},
		"no value": {podWith(equal(notReady, "", 60), both[1]), nil},
		"greater": {podWith(with(corev1.Toleration{Key: "memory", Operator: corev1.TolerationOpGt, Value: "4", Effect: corev1.TaintEffectNoExecute})...), []Finding{
			{Kind: CannotMatch, Toleration: &corev1.Toleration{Key: "memory", Operator: corev1.TolerationOpGt, Value: "4", Effect: corev1.TaintEffectNoExecute}}}},
		"hidden":                {podWith(with(exists(notReady, 10))...), []Finding{{Kind: Hidden, Toleration: ptr(exists(notReady, 10)), HiddenBy: &both[0]}}},
		"hidden, the same wait": {podWith(with(exists(notReady, 300), equal(unreachable, "", 300))...), nil},
		"hidden by all": {podWith(anything, both[0]), []Finding{
			{Kind: Hidden, Toleration: &both[0], HiddenBy: &anything},
			{Kind: NeverEnds, Taints: []string{notReady, unreachable}, Toleration: &anything}}},
		"all as the last resort": {podWith(with(anything)...), nil},
		"a value hidden by its key": {podWith(with(exists("rack", 60), equal("rack", "7", 600))...), []Finding{
			{Kind: Hidden, Toleration: ptr(equal("rack", "7", 600)), HiddenBy: ptr(exists("rack", 60))}}},
		"a value before its key": {podWith(with(equal("rack", "7", 600), exists("rack", 60))...), nil},
		"two values":             {podWith(with(equal("rack", "7", 600), equal("rack", "8", 60))...), nil},
		"never ends": {podWith(exists(notReady, -1), both[1]), []Finding{
			{Kind: NeverEnds, Taints: []string{notReady}, Toleration: ptr(exists(notReady, -1))}}},
		"a wait that is none (D5)": {podWith(both[0], exists(unreachable, 1<<62)), []Finding{
			{Kind: NeverEnds, Taints: []string{unreachable}, Toleration: ptr(exists(unreachable, 1<<62))}}},
		"another taint for ever": {podWith(with(exists("rack", -1))...), nil},
		"of a DaemonSet": {func() *corev1.Pod {
			p := podWith(exists(notReady, -1), exists(unreachable, -1))
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: &controls}}
			return p
		}(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, subject := newExaminer(false).findings(tc.pod)
			if diff := cmp.Diff(tc.want, got); diff != "" || !subject {
				t.Errorf("subject %t; -want +got:\n%s", subject, diff)
			}
		})
	}
}

func TestComparisonOperators(t *testing.T) {
	greater := corev1.Toleration{Key: "memory", Operator: corev1.TolerationOpGt, Value: "4", Effect: corev1.TaintEffectNoExecute}
	pod := podWith(exists(notReady, 300), exists(unreachable, 300), exists("memory", 60), greater)
	got, _ := newExaminer(true).findings(pod)
	if diff := cmp.Diff([]Finding{{Kind: Hidden, Toleration: &greater, HiddenBy: ptr(exists("memory", 60))}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Pods that never leave for taints (D2) have no findings.
func TestExempt(t *testing.T) {
	for name, shape := range map[string]func(*corev1.Pod){
		"terminating": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
		"succeeded":   func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"mirror":      func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith()
			shape(pod)
			if list, subject := newExaminer(false).findings(pod); subject || list != nil {
				t.Errorf("subject %t, findings %v", subject, list)
			}
			if lacks := newExaminer(false).missing(pod); lacks != nil {
				t.Errorf("lacks %v", lacks)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }
