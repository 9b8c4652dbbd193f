package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"google.golang.org/grpc"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

// askWithin bounds a question that the service should answer at once, retries after its restart included.
const askWithin = 30 * time.Second

// watches are an agent's where node health is on: of nodes, of pods and of leases.
const watches = 3

// patient waits for the connection, which takes a moment to come back after the service has.
var patient = grpc.WaitForReady(true)

// page is how many evictions one call asks for.
const page = 1000

// WaitSynced waits until the service has the whole of a cluster and its feed is live.
func (s *Service) WaitSynced(cluster string, within time.Duration) {
	s.t.Helper()
	await.Until(s.t, within, "cluster "+cluster+" to be synced", func(ctx context.Context) error {
		c, err := s.cluster(ctx, cluster)
		if err == nil && c.GetSyncState() != reprievev1.Cluster_SYNC_STATE_SYNCED {
			err = fmt.Errorf("it is in %s", c.GetSyncState())
		}
		return err
	})
}

// WaitPods waits until the service knows so many pods of a cluster, as after a test has made them.
func (s *Service) WaitPods(cluster string, pods int, within time.Duration) {
	s.t.Helper()
	await.Until(s.t, within, fmt.Sprintf("the service to know %d pods of %s", pods, cluster), func(ctx context.Context) error {
		c, err := s.cluster(ctx, cluster)
		if err == nil && c.GetPods() != uint64(pods) {
			err = fmt.Errorf("it knows %d", c.GetPods())
		}
		return err
	})
}

// WaitExecutor waits until an executor serves a cluster.
func (s *Service) WaitExecutor(cluster string, within time.Duration) {
	s.t.Helper()
	await.Until(s.t, within, "an executor of "+cluster, func(ctx context.Context) error {
		c, err := s.cluster(ctx, cluster)
		if err == nil && len(c.GetExecutors()) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
}

// Cluster returns what the service knows of a cluster.
func (s *Service) Cluster(cluster string) *reprievev1.Cluster {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), askWithin)
	defer cancel()
	c, err := s.cluster(ctx, cluster)
	if err != nil {
		s.t.Fatalf("cluster %s: %v", cluster, err)
	}
	return c
}

func (s *Service) cluster(ctx context.Context, cluster string) (*reprievev1.Cluster, error) {
	resp, err := s.Conn.Query().GetCluster(ctx, &reprievev1.GetClusterRequest{Cluster: cluster}, patient)
	return resp.GetCluster(), err
}

// Nodes returns what the service knows of all nodes of a cluster.
func (s *Service) Nodes(cluster string) []*reprievev1.NodeView {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), askWithin)
	defer cancel()
	resp, err := s.Conn.Query().ListNodes(ctx, &reprievev1.ListNodesRequest{Cluster: cluster, All: true}, patient)
	if err != nil {
		s.t.Fatalf("list nodes of %s: %v", cluster, err)
	}
	return resp.GetNodes()
}

// Open returns a cluster's open evictions by pod UID.
func (s *Service) Open(cluster string) map[string]*reprievev1.Eviction {
	s.t.Helper()
	byUID := map[string]*reprievev1.Eviction{}
	for _, ev := range s.list(&reprievev1.ListEvictionsRequest{Cluster: cluster}) {
		byUID[ev.GetUid()] = ev
	}
	return byUID
}

// History returns a cluster's closed evictions, newest first, by pod UID; one pod may have several.
func (s *Service) History(cluster string) map[string][]*reprievev1.Eviction {
	s.t.Helper()
	byUID := map[string][]*reprievev1.Eviction{}
	closed := []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED}
	for _, ev := range s.list(&reprievev1.ListEvictionsRequest{Cluster: cluster, States: closed}) {
		byUID[ev.GetUid()] = append(byUID[ev.GetUid()], ev)
	}
	return byUID
}

func (s *Service) list(req *reprievev1.ListEvictionsRequest) []*reprievev1.Eviction {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), askWithin)
	defer cancel()
	req.PageSize = page
	var all []*reprievev1.Eviction
	for {
		resp, err := s.Conn.Query().ListEvictions(ctx, req, patient)
		if err != nil {
			s.t.Fatalf("list evictions of %s: %v", req.GetCluster(), err)
		}
		all = append(all, resp.GetEvictions()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return all
		}
	}
}

// SetPolicy stores policy fields of a cluster, which may be one that has not joined yet.
func (s *Service) SetPolicy(cluster string, policy *reprievev1.ClusterPolicy) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), askWithin)
	defer cancel()
	if _, err := s.Conn.Admin().SetPolicy(ctx, &reprievev1.SetPolicyRequest{Cluster: cluster, Policy: policy}, patient); err != nil {
		s.t.Fatalf("set the policy of %s: %v", cluster, err)
	}
}

// Enforce lets a cluster's due evictions be sent, as fast as its executor takes them.
func (s *Service) Enforce(cluster string) {
	s.t.Helper()
	on := true
	// These tests taint many nodes at once, which the blast radius is there to hold.
	s.SetPolicy(cluster, &reprievev1.ClusterPolicy{Mode: reprievev1.Mode_MODE_ENFORCE.Enum(), UnlimitedRate: &on, DisableBlastRadius: &on})
}

// CLI runs the command line as an operator and returns what it prints. It fails the test if that exits with anything
// but 0.
func (s *Service) CLI(args ...string) string {
	s.t.Helper()
	out, errs, code := s.TryCLI(args...)
	if code != 0 {
		s.t.Fatalf("reprieve %q exited with %d: %s", args, code, errs)
	}
	return out
}

// TryCLI runs the command line as an operator and returns its two outputs and its exit code.
func (s *Service) TryCLI(args ...string) (out, errs string, code int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), askWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, process.Bin(s.t, "reprieve"), args...)
	cmd.Env = append(os.Environ(), s.Env()...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("reprieve %q: %v", args, err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// Metrics are what a program's /metrics show.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the service's metrics.
func (s *Service) Metrics() Metrics { s.t.Helper(); return mustMetrics(s.t, s.AdminAddr) }

// Metrics reads the agent's metrics.
func (a *Agent) Metrics() Metrics { a.t.Helper(); return mustMetrics(a.t, a.AdminAddr) }

func mustMetrics(t testing.TB, addr string) Metrics {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), askWithin)
	defer cancel()
	m, err := metrics(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func metrics(ctx context.Context, addr string) (Metrics, error) {
	body, err := get(ctx, addr, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", addr, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	m, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", addr, err)
	}
	return m, nil
}

// Sees returns why the service does not see what happens in a cluster, or cannot act there: it does not answer, the
// feed is not live, nothing is known of heartbeats, there is no executor, or one of the agent's watches does not stand.
func (s *Service) Sees(ctx context.Context, cluster string, a *Agent) error {
	c, err := s.cluster(ctx, cluster)
	switch {
	case err != nil:
		return err
	case c.GetSyncState() != reprievev1.Cluster_SYNC_STATE_SYNCED || c.GetNodeHealth().GetBlindTime() != nil || len(c.GetExecutors()) == 0:
		return fmt.Errorf("it is in %s, with health %v and executors %v", c.GetSyncState(), c.GetNodeHealth(), c.GetExecutors())
	}
	m, err := metrics(ctx, a.AdminAddr)
	if err != nil {
		return err
	}
	if n := len(m["reprieve_agent_watch_quiet_seconds"].GetMetric()); n < watches {
		return fmt.Errorf("%d of the agent's watches stand, want %d", n, watches)
	}
	return nil
}

// Sum adds the values of a counter or gauge, or the counts of a histogram, over the series that have all these labels:
// pairs of name and value. A metric that is not there is 0.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, series := range m[name].GetMetric() {
		if matches(series, labels) {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetUntyped().GetValue() +
				float64(series.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func matches(series *dto.Metric, labels []string) bool {
	have := map[string]string{}
	for _, l := range series.GetLabel() {
		have[l.GetName()] = l.GetValue()
	}
	for i := 0; i+1 < len(labels); i += 2 {
		if have[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}
