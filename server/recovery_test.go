package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// failing opens stores in memory that fail by a script.
func failing(script *fault.Script) OpenStore {
	open := fault.New(mem.New().Open, script)
	return func(ctx context.Context, _ StoreSettings) (engine.Store, error) { return open(ctx) }
}

// watchHealth reads changes of a service's health.
func (f *fixture) watchHealth(service string) func() healthv1.HealthCheckResponse_ServingStatus {
	stream, err := healthv1.NewHealthClient(f.conn).Watch(f.ctx, &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		f.t.Fatal(err)
	}
	return func() healthv1.HealthCheckResponse_ServingStatus {
		m, err := stream.Recv()
		if err != nil {
			f.t.Fatal(err)
		}
		return m.GetStatus()
	}
}

func (f *fixture) get(path string) (int, string) {
	w := httptest.NewRecorder()
	f.svc.admin.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// TestFeedGoesOnAfterStoreFailure lets a commit fail while the store cannot be
// opened again for a while: health says so, nothing is acknowledged, executors
// are sent away, and the same feed stream goes on with a new list.
func TestFeedGoesOnAfterStoreFailure(t *testing.T) {
	script := fault.NewScript()
	f := newFixture(t, failing(script), enforce)
	health := f.watchHealth("reprieve.v1.FeedService")
	if st := health(); st != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("health %v", st)
	}
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")))
	exec := f.executor("x", 1, "*")
	gate := fault.NewGate()
	script.Add(fault.Step{Op: fault.Commit, Times: 1, Fault: fault.Fault{Effect: fault.Before}},
		fault.Step{Op: fault.Open, Times: 1, Fault: fault.Fault{Effect: fault.Block, Gate: gate}})
	lost := x.batch(upsertPod("p2", "n1", waits("k")))
	if st := health(); st != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("health %v after a failed commit", st)
	}
	wantError(t, exec.err(), codes.Unavailable, "UNAVAILABLE")
	<-gate.Reached()
	_, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{})
	wantError(t, err, codes.Unavailable, "UNAVAILABLE")
	if code, text := f.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "injected") {
		t.Errorf("readyz %d %q", code, text)
	}
	if _, text := f.get("/metrics"); !strings.Contains(text, "reprieve_serving 0") {
		t.Error("metrics do not say that the store is not open")
	}
	// Sent before the feed knows: dropped, for it has to list again anyway.
	x.batch(upsertPod("p3", "n1", waits("k")))
	gate.Release()
	for resync := false; !resync; {
		m := x.recv()
		if a := m.GetAck(); a.GetSequence() >= lost {
			t.Fatalf("I1: %v was acknowledged though it is not on disk", a)
		}
		resync = m.GetResyncRequired() != nil
	}
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")), upsertPod("p2", "n1", waits("k")))
	if st := health(); st != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("health %v after the new list", st)
	}
	got, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{Cluster: "east"})
	if err != nil || len(got.GetEvictions()) != 2 {
		t.Fatalf("evictions after the new list: %v, %v", got, err)
	}
	if code, _ := f.get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz %d", code)
	}
}

func TestHealthIsPerServiceAndOpen(t *testing.T) {
	f := newFixture(t, memory(), tenants(t))
	for name := range f.svc.grpc.GetServiceInfo() {
		if open(name) {
			continue
		}
		got, err := healthv1.NewHealthClient(f.conn).Check(f.ctx, &healthv1.HealthCheckRequest{Service: name})
		if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	health := f.watchHealth("")
	health()
	go f.svc.Stop()
	if st := health(); st != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health %v while stopping", st)
	}
}

func TestAdminHTTP(t *testing.T) {
	f := newFixture(t, boltFile, func(c *Config) { enforce(c); c.Pprof, c.SelfPodUID = true, "uid-p2" })
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1"), upsertPod("p2", "n1"))
	exec := f.executor("x", 1, "*")
	token := exec.order().GetToken()
	exec.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{Token: token, Outcome: reprievev1.Outcome_OUTCOME_EVICTED}}})
	// The second order may come before the acknowledgement: both follow the answer.
	for exec.recv().GetResultAck().GetToken() != token {
	}
	_, text := f.get("/metrics")
	for _, want := range []string{
		`reprieve_serving 1`, `reprieve_cluster_synced{cluster="east"} 1`, `reprieve_cluster_enforcing{cluster="east"} 1`,
		`reprieve_self_in_enforcing_cluster{cluster="east"} 1`, `reprieve_pods{cluster="east"} 2`, `reprieve_results_total{cluster="east",outcome="EVICTED"} 1`,
		`reprieve_open_evictions{cluster="east",state="CONFIRMING"} 1`, `reprieve_feed_events_total{cluster="east"} 3`,
		`reprieve_feed_lag_seconds_count{cluster="east"} 3`, `taint_eviction_controller_pod_deletions_total 1`,
		`taint_eviction_controller_pod_deletion_duration_seconds_count`, `reprieve_eviction_lateness_seconds_count{cluster="east"}`,
		`grpc_server_started_total{grpc_method="Evict",grpc_service="reprieve.v1.EvictionService",grpc_type="bidi_stream"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	info, err := os.Stat(filepath.Join(f.svc.conf.DataDir, dataFile))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("reprieve_store_size_bytes %g\n", float64(info.Size())); !strings.Contains(text, want) {
		t.Errorf("metrics have no %s", want)
	}
	if free := regexp.MustCompile(`(?m)^reprieve_store_free_bytes ([1-9]\S*)$`); !free.MatchString(text) {
		t.Error("metrics do not tell the free room of the data file")
	}
	for _, secret := range []string{"p1", "n1"} {
		if strings.Contains(text, `"`+secret+`"`) {
			t.Errorf("metrics name %s", secret)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/debug/pprof/cmdline": 200, "/other": 404} {
		if code, text := f.get(path); code != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}
