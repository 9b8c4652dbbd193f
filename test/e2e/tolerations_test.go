package e2e

import (
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

// Pods that were created with the admission plugin DefaultTolerationSeconds off are found and mended under exactly the
// rights of deploy/rbac, nothing else of any pod changes, and a second run finds nothing.
func TestTolerationsAreFoundAndMended(t *testing.T) {
	c := controlplane.Start(t, controlplane.Options{
		Kubelets: &controlplane.Kubelets{}, APIServerFlags: []string{"--disable-admission-plugins", "DefaultTolerationSeconds"},
	})
	kube.CreateNodes(t, c.Admin, "n1")
	pods := kube.CreatePods(t, c.Admin, append(kube.Bulk("bare", 30, []string{"n1"}, nil),
		kube.Pod{Name: "half", Node: "n1", Tolerations: []corev1.Toleration{kube.Tolerate("rack", 60), kube.Tolerate(corev1.TaintNodeNotReady, 5)}},
		kube.Pod{Name: "value", Node: "n1", Tolerations: []corev1.Toleration{
			kube.Tolerate(corev1.TaintNodeNotReady, 5),
			{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpEqual, Value: "true", Effect: corev1.TaintEffectNoExecute},
		}},
		kube.Pod{Name: "whole", Node: "n1", Tolerations: []corev1.Toleration{kube.Tolerate(corev1.TaintNodeNotReady, 5), kube.Tolerate(corev1.TaintNodeUnreachable, 0)}},
		kube.Pod{Name: "all", Node: "n1", Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		kube.Pod{Name: "mirror", Node: "n1", Shape: func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}},
	)...)
	kube.WaitRunning(t, c.Admin, pods)
	before := podsByName(t, c.Admin)

	rbac := filepath.Join(process.Root(t), "deploy/rbac/tolerations.yaml")
	auditor, mender := "reprieve-tolerations-audit", "reprieve-tolerations-backfill"
	kube.Grant(t, c.Admin, auditor, kube.ClusterRules(t, rbac, auditor))
	kube.Grant(t, c.Admin, mender, kube.ClusterRules(t, rbac, mender))
	kube.WaitAllowed(t, c.Admin, auditor, "list", "", true)
	kube.WaitAllowed(t, c.Admin, mender, "patch", "", true)

	found := auditOf(t, c, auditor)
	if !maps.Equal(found, map[string]int{"LEAVES_AT_ONCE": 32, "CANNOT_MATCH": 1, "HIDDEN": 0, "NEVER_ENDS": 1}) {
		t.Errorf("the audit found %v", found)
	}
	// A dry run changes nothing, and who may not patch is told so.
	if got, want := backfillOf(t, c, auditor, 0), (backfilled{DryRun: true, Looked: 35, Lacking: 32, Left: 32}); got != want {
		t.Errorf("the dry run: %+v, want %+v", got, want)
	}
	backfillOf(t, c, auditor, 4, "--apply", "--rate", "1000")
	samePods(t, "without --apply, or without the rights", before, podsByName(t, c.Admin))

	if got, want := backfillOf(t, c, mender, 0, "--apply", "--rate", "200"), (backfilled{Looked: 35, Lacking: 32, Mended: 32}); got != want {
		t.Errorf("the backfill: %+v, want %+v", got, want)
	}
	after := podsByName(t, c.Admin)
	wait := func(key string) corev1.Toleration { return kube.Tolerate(key, 300) }
	adds := map[string][]corev1.Toleration{"half": {wait(corev1.TaintNodeUnreachable)}, "value": {wait(corev1.TaintNodeUnreachable)}, "whole": nil, "all": nil, "mirror": nil}
	for name, pod := range before {
		want, special := adds[name]
		if !special {
			want = []corev1.Toleration{wait(corev1.TaintNodeNotReady), wait(corev1.TaintNodeUnreachable)}
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, want...)
		if len(want) > 0 {
			// What the API server itself keeps of a change.
			pod.ResourceVersion, pod.Generation, pod.ManagedFields = after[name].ResourceVersion, after[name].Generation, after[name].ManagedFields
		}
	}
	samePods(t, "after the backfill", before, after)
	if got, want := backfillOf(t, c, mender, 0, "--apply"), (backfilled{Looked: 35}); got != want {
		t.Errorf("the second run: %+v, want %+v", got, want)
	}
	if found := auditOf(t, c, auditor); found["LEAVES_AT_ONCE"] != 0 || found["CANNOT_MATCH"] != 1 {
		t.Errorf("the audit after it: %v", found)
	}
}

func podsByName(t *testing.T, cs kubernetes.Interface) map[string]*corev1.Pod {
	t.Helper()
	list, err := cs.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*corev1.Pod{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

// samePods compares all of the pods.
func samePods(t *testing.T, when string, want, got map[string]*corev1.Pod) {
	t.Helper()
	for name := range want {
		a, err := json.Marshal(want[name])
		if err != nil {
			t.Fatal(err)
		}
		if b, err := json.Marshal(got[name]); err != nil || string(a) != string(b) {
			t.Errorf("%s pod %s is not as it should be (%v)\nwant %s\ngot  %s", when, name, err, a, b)
		}
	}
	if len(want) != len(got) {
		t.Errorf("%s there are %d pods, want %d", when, len(got), len(want))
	}
}

// auditOf is how many pods each finding was made at.
func auditOf(t *testing.T, c *controlplane.ControlPlane, user string) map[string]int {
	t.Helper()
	var out struct {
		Found map[string]int `json:"pods_found"`
	}
	tolerationsCommand(t, c, user, 0, &out, "audit")
	return out.Found
}

// backfilled is what is looked at of a backfill's answer.
type backfilled struct {
	DryRun  bool `json:"dry_run"`
	Looked  int  `json:"pods_looked_at"`
	Lacking int  `json:"pods_lacking"`
	Mended  int  `json:"mended"`
	Whole   int  `json:"whole_already"`
	Gone    int  `json:"gone"`
	Failed  int  `json:"failed"`
	Left    int  `json:"left"`
}

func backfillOf(t *testing.T, c *controlplane.ControlPlane, user string, code int, flags ...string) (r backfilled) {
	t.Helper()
	tolerationsCommand(t, c, user, code, &r, "backfill", flags...)
	return r
}

// tolerationsCommand runs `reprieve COMMAND tolerations` as a user and reads its answer.
func tolerationsCommand(t *testing.T, c *controlplane.ControlPlane, user string, code int, answer any, command string, flags ...string) {
	t.Helper()
	args := append([]string{command, "tolerations", "--kubeconfig", c.Kubeconfig(user), "-o", "json"}, flags...)
	out, err := exec.CommandContext(t.Context(), process.Bin(t, "reprieve"), args...).Output()
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
		t.Logf("%s: %s", command, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	if got != code {
		t.Fatalf("%v: exit code %d, want %d: %s", args, got, code, out)
	}
	if err := json.Unmarshal(out, answer); err != nil {
		t.Fatalf("%v: %v in %s", args, err, out)
	}
}
