package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reprieve-dev/reprieve/internal/tolerations"
	"github.com/reprieve-dev/reprieve/internal/tolerations/fakekube"
)

// kubeLab is an API server with pods of every kind of finding, and the flag that reaches it.
func kubeLab(t *testing.T) (*fakekube.Server, string) {
	t.Helper()
	s := fakekube.Start(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	conf := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {}}]}`, s.URL)
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	controls := true
	pod := func(namespace, name, kind, owner string, tols ...corev1.Toleration) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": owner}}, Spec: corev1.PodSpec{Tolerations: tols}}
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: &controls}}
		}
		s.Put(p)
	}
	pod("shop", "checkout-frontend-of-the-shop-7d9c5b6f4-x2kqp", "ReplicaSet", "checkout-frontend-of-the-shop-7d9c5b6f4")
	pod("shop", "checkout-frontend-of-the-shop-7d9c5b6f4-9sj2l", "ReplicaSet", "checkout-frontend-of-the-shop-7d9c5b6f4")
	pod("shop", "lone-1", "", "")
	pod("shop", "lone-2", "", "")
	pod("payments-and-invoices-of-europe", "db-0", "StatefulSet", "db", tolerates("node.kubernetes.io/unreachable", "true", 600), tolerates("node.kubernetes.io/not-ready", "", 600))
	pod("payments-and-invoices-of-europe", "db-1", "StatefulSet", "db", tolerates("node.kubernetes.io/unreachable", "", 600), tolerates("node.kubernetes.io/not-ready", "", 600))
	pod("kube-system", "proxy-a", "DaemonSet", "proxy", tolerates("", "", -1))
	pod("kube-system", "dns-1", "ReplicaSet", "dns", tolerates("", "", -1), tolerates("node.kubernetes.io/not-ready", "", 60))
	return s, path
}

// tolerates is a NoExecute toleration: of any value without one, for ever if seconds is negative.
func tolerates(key, value string, seconds int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Value: value, Operator: corev1.TolerationOpEqual, Effect: corev1.TaintEffectNoExecute}
	if value == "" {
		t.Operator = corev1.TolerationOpExists
	}
	if seconds >= 0 {
		t.TolerationSeconds = &seconds
	}
	return t
}

func TestAuditAndBackfill(t *testing.T) {
	h := newHarness(t)
	h.width = tableWidth
	s, kubeconfig := kubeLab(t)
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errs := h.run(append(args, "--kubeconfig", kubeconfig)...)
		if code != want || errs != "" {
			t.Fatalf("%v: exit %d, stderr %q", args, code, errs)
		}
		return out
	}
	golden(t, "audit-tolerations.txt", run(exitOK, "audit", "tolerations"))
	golden(t, "audit-tolerations-wide.yaml", run(exitOK, "audit", "tolerations", "-n", "payments-and-invoices-of-europe", "-o", "yaml"))
	run(exitFailure, "audit", "tolerations", "--fail-on", "never-ends,cannot-match", "-o", "json")
	run(exitOK, "audit", "tolerations", "--fail-on", "hidden", "-l", "app=db")
	golden(t, "backfill-tolerations-dry.txt", run(exitOK, "backfill", "tolerations"))
	if n := s.Calls("PATCH"); n != 0 {
		t.Fatalf("a dry run patched %d times", n)
	}
	s.Before = func(method, path string) *metav1.Status {
		if method == http.MethodPatch && strings.HasSuffix(path, "/lone-2") {
			return fakekube.Refusal(http.StatusForbidden, metav1.StatusReasonForbidden, "webhook guard denied\x1b the request")
		}
		return nil
	}
	code, out, errs := h.run("backfill", "tolerations", "--apply", "--rate", "1000", "--unreachable-toleration", "10m", "--kubeconfig", kubeconfig)
	if code != exitFailure || !strings.HasPrefix(errs, "reprieve: backfill tolerations: 1 pod could not be mended; see to what refused them, then run it again") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	golden(t, "backfill-tolerations.txt", out)
	s.Before = nil
	var r tolerations.Backfill
	if err := json.Unmarshal([]byte(run(exitOK, "backfill", "tolerations", "--apply", "-o", "json")), &r); err != nil || r.Mended != 1 || r.DryRun || r.Failed != 0 {
		t.Errorf("the second run: %v, %+v", err, r)
	}
	if out := run(exitOK, "backfill", "tolerations", "--apply"); out != "No pod lacks tolerations, of 8 looked at.\n" {
		t.Errorf("the third run: %q", out)
	}
	if got := *s.Pod("shop", "lone-1").Spec.Tolerations[1].TolerationSeconds; got != 600 {
		t.Errorf("the pod stays %d s on an unreachable node, want 600", got)
	}
}

func TestAuditErrors(t *testing.T) {
	h := newHarness(t)
	s, kubeconfig := kubeLab(t)
	down := fmt.Sprintf("%s-down", kubeconfig)
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(down, []byte(strings.ReplaceAll(string(text), s.URL, "http://127.0.0.1:1")), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"audit":                                                        {exitUsage, "say what: audit tolerations"},
		"audit tolerations --kubeconfig " + down:                       {exitUnavailable, "is it up?"},
		"audit tolerations --kubeconfig /none":                         {exitUsage, "/none"},
		"audit tolerations --only odd":                                 {exitUsage, "use leaves-at-once"},
		"audit tolerations -l a=b=c":                                   {exitUsage, "--selector"},
		"backfill":                                                     {exitUsage, "say what: backfill tolerations"},
		"backfill tolerations --rate 0":                                {exitUsage, "--rate 0 is not above 0"},
		"backfill tolerations --rate NaN":                              {exitUsage, "--rate NaN is not above 0"},
		"backfill tolerations --not-ready-toleration 1500ms":           {exitUsage, "whole seconds"},
		"backfill tolerations --unreachable-toleration 0s":             {exitUsage, "whole seconds"},
		"backfill tolerations --timeout 0s --kubeconfig " + kubeconfig: {exitUsage, "--timeout"},
	} {
		if code, _, errs := h.run(strings.Fields(args)...); code != want.code || !strings.Contains(errs, want.text) {
			t.Errorf("%s: exit %d, want %d; stderr %q, want %q in it", args, code, want.code, errs, want.text)
		}
	}
	for code, want := range map[int]int{http.StatusForbidden: exitDenied, http.StatusUnauthorized: exitDenied, http.StatusServiceUnavailable: exitUnavailable} {
		reason := map[int]metav1.StatusReason{
			http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
		}[code]
		s.Before = func(string, string) *metav1.Status { return fakekube.Refusal(code, reason, "no") }
		for _, command := range []string{"audit", "backfill"} {
			if got, _, errs := h.run(command, "tolerations", "--kubeconfig", kubeconfig); got != want || !strings.Contains(errs, "list pods: no; ") {
				t.Errorf("%s after %d: exit %d, want %d; stderr %q", command, code, got, want, errs)
			}
		}
	}
}

// At a terminal the progress is told.
func TestBackfillProgress(t *testing.T) {
	h := newHarness(t)
	h.tty = true
	_, kubeconfig := kubeLab(t)
	code, _, errs := h.run("backfill", "tolerations", "--apply", "--rate", "1000", "--kubeconfig", kubeconfig)
	if code != exitOK || !strings.HasPrefix(errs, "\rlooked at 8 of 8 pods\n\rdone with 1 of 5 pods\r") || !strings.HasSuffix(errs, "\rdone with 5 of 5 pods\n") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}
