package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// A call that fails is one warning for each reason, with what to do about it, and
// one line when it is over.
func TestTroublesAreToldOnce(t *testing.T) {
	var out bytes.Buffer
	told := newTroubles(slog.New(slog.NewTextHandler(&out, nil)))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	for range 3 {
		told.note(t.Context(), "list pods", forbidden)
	}
	for port := range 3 {
		told.note(t.Context(), "list nodes", fmt.Errorf("read tcp 127.0.0.1:%d: %w", port, errors.New("connection reset")))
	}
	told.note(t.Context(), "list pods", apierrors.NewUnauthorized("Unauthorized"))
	told.note(t.Context(), "watch nodes", nil)
	if got := strings.Count(out.String(), "level=WARN"); got != 3 {
		t.Errorf("%d warnings, want 3:\n%s", got, out.String())
	}
	for _, want := range []string{"the ClusterRole reprieve-agent", "does not know the agent's credentials"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%q is not told once:\n%s", want, out.String())
		}
	}
	if err := told.err(); err == nil || !strings.Contains(err.Error(), "list nodes: ") || !strings.Contains(err.Error(), "list pods: Unauthorized; ") {
		t.Errorf("open: %v", err)
	}
	out.Reset()
	told.note(t.Context(), "list pods", nil)
	told.note(t.Context(), "list nodes", nil)
	if err := told.err(); err != nil || strings.Count(out.String(), "level=INFO") != 2 {
		t.Errorf("after the end: %v\n%s", err, out.String())
	}
}

// Each call's right comes from one place, which a refusal names.
func TestForbiddenCallsNameTheirRights(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))
	for call, want := range map[string]string{
		"get " + leaseCalls: "Role reprieve-agent", "list leases": "overlays/node-health", "get leases": "overlays/node-health",
		"patch nodes": "overlays/node-health", "patch nodes/status": "overlays/node-health", "list nodes": "ClusterRole reprieve-agent",
	} {
		if got := remedy(call, forbidden); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %s", call, got, want)
		}
	}
}

// An agent that cannot find out which cluster it is in does not say that it is ready.
func TestNotReadyBeforeTheClusterIsKnown(t *testing.T) {
	a := newAPI(t)
	a.on("GET /api/v1/namespaces/kube-system", refuse(http.StatusForbidden, metav1.StatusReasonForbidden, "cannot get namespaces"))
	conn, err := client.Dial(t.Context(), client.Config{Address: "127.0.0.1:1", Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	agent, err := New(Config{Cluster: "c", Kube: &rest.Config{Host: a.url}, Conn: conn, ID: "a", Workers: 1, Clock: clock.NewVirtual(epoch)})
	if err != nil {
		t.Fatal(err)
	}
	if agent.Ready() == nil {
		t.Error("ready before anything was asked")
	}
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { done <- agent.Run(ctx) }()
	a.until("the namespace is asked for", func() bool { return len(a.calls) > 0 })
	// The answer is on its way.
	for err := agent.Ready(); err == nil || !strings.Contains(err.Error(), "ClusterRole reprieve-agent"); err = agent.Ready() {
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What client-go writes by itself is not seen unless debugging is.
func TestKlogErrorsAreForDebugging(t *testing.T) {
	defer klogged.use(nil)
	for level, want := range map[slog.Level]bool{slog.LevelInfo: false, slog.LevelDebug: true} {
		var out bytes.Buffer
		klogged.use(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
		klog.ErrorS(errors.New("no"), "cannot watch")
		klogged.use(nil)
		if got := strings.Contains(out.String(), "cannot watch"); got != want {
			t.Errorf("at %s: %q", level, out.String())
		}
	}
}

func TestQPSIsANumber(t *testing.T) {
	for _, qps := range []float64{math.NaN(), math.Inf(1), -1} {
		c := Config{QPS: qps, Burst: 1}
		if err := c.Validate(); !strings.Contains(err.Error(), "QPS") {
			t.Errorf("%v is taken: %v", qps, err)
		}
	}
}

func TestEmptyKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := KubeConfig(path, ""); err == nil || !strings.Contains(err.Error(), "names no cluster") {
		t.Errorf("an empty file: %v", err)
	}
}
