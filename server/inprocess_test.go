package server

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// The agent in this process has the role agent for its one cluster, whatever
// credentials others need, and has ended before the service stops.
func TestAgentInThisProcess(t *testing.T) {
	tokens := writeFile(t, "tokens.yaml", "[{name: a, sha256: "+strings.Repeat("00", 32)+", role: viewer, clusters: [x]}]\n")
	signals, out := make(chan os.Signal, 2), newLog()
	type seen struct{ own, other, admin, late error }
	ended := make(chan seen, 1)
	parts := Parts{OpenStore: boltFile, NewAgent: func(s AgentSettings) (Agent, error) {
		if s.Cluster != "lab" || s.Kubeconfig != "/some/file" || s.Workers != 64 {
			t.Errorf("settings %+v", s)
		}
		return agentFunc(func(ctx context.Context) error {
			var was seen
			hello := func(ctx context.Context, cluster string) error {
				stream, err := reprievev1.NewFeedServiceClient(s.Conn).Feed(ctx)
				if err != nil {
					return err
				}
				if err := stream.Send(&reprievev1.FeedRequest{Sequence: 1, Message: &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{
					Cluster: cluster, ClusterUid: "u-" + cluster, FeederId: "f",
				}}}); err != nil {
					return err
				}
				_, err = stream.Recv()
				return err
			}
			was.own, was.other = hello(ctx, "lab"), hello(ctx, "prod")
			_, was.admin = reprievev1.NewAdminServiceClient(s.Conn).PauseEvictions(ctx, &reprievev1.PauseEvictionsRequest{Cluster: "lab", Reason: "r"})
			signals <- os.Interrupt
			<-ctx.Done()
			_, was.late = reprievev1.NewQueryServiceClient(s.Conn).GetCluster(context.Background(), &reprievev1.GetClusterRequest{Cluster: "lab"})
			ended <- was
			return nil
		}), nil
	}}
	args := ports(t.TempDir(), "--kubeconfig", "/some/file", "--cluster", "lab", "--config", writeFile(t, "c.yaml", "auth: {tokens_file: "+tokens+"}\n"))
	if code := Main(Process{Args: args, Stdout: out, Stderr: out, Signals: signals, Exit: func(int) {}}, parts); code != exitOK {
		t.Fatalf("exit code %d: %s", code, out)
	}
	was := <-ended
	if was.own != nil || was.late != nil {
		t.Errorf("its own cluster: %v; after the signal: %v", was.own, was.late)
	}
	if status.Code(was.other) != codes.PermissionDenied || status.Code(was.admin) != codes.PermissionDenied {
		t.Errorf("another cluster: %v; an administrative act: %v", was.other, was.admin)
	}
}

// agentFunc is an agent that is always ready.
type agentFunc func(context.Context) error

func (f agentFunc) Run(ctx context.Context) error { return f(ctx) }
func (f agentFunc) Ready() error                  { return nil }

// An agent that cannot be built ends the service, with the cause.
func TestAgentInThisProcessCannotBeBuilt(t *testing.T) {
	for want, newAgent := range map[string]NewAgent{
		"run `reprieve agent`":                    nil,
		"the agent in this process: no such file": func(AgentSettings) (Agent, error) { return nil, errors.New("no such file") },
	} {
		out := newLog()
		code := Main(Process{Args: ports(t.TempDir(), "--in-cluster"), Stdout: out, Stderr: out, Exit: func(int) {}}, Parts{OpenStore: boltFile, NewAgent: newAgent})
		if code == exitOK || !strings.Contains(out.String(), want) {
			t.Errorf("exit code %d: %s", code, out)
		}
	}
}

// An agent that gives up is run again, and ends nothing else: the service has to be
// there for the call that mends it. Only the agent's own path of health tells.
func TestAgentInThisProcessGivesUp(t *testing.T) {
	began, end := make(chan struct{}), make(chan error)
	run := agentFunc(func(context.Context) error {
		began <- struct{}{}
		return <-end
	})
	f := newFixtureAt(t, Deps{Clock: clock.NewReal(), OpenStore: memory(), NewAgent: func(AgentSettings) (Agent, error) { return run, nil }}, func(c *Config) {
		c.Kubeconfig = "file"
	})
	virtual := clock.NewVirtual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	f.svc.agent.clock = virtual
	ctx, cancel := context.WithCancel(f.ctx)
	ended := make(chan struct{})
	go func() {
		f.svc.agent.run(ctx)
		close(ended)
	}()
	wants := func(agent int, text string) {
		t.Helper()
		if code, got := f.get("/readyz/agent"); code != agent || !strings.Contains(got, text) {
			t.Errorf("the agent's health: %d %q", code, got)
		}
		if code, got := f.get("/readyz"); code != http.StatusOK {
			t.Errorf("the service's health: %d %q", code, got)
		}
	}
	for range 2 {
		<-began
		wants(http.StatusOK, "ok")
		end <- errors.New("the name is bound to another cluster")
		at, armed := virtual.Next()
		for ; !armed; at, armed = virtual.Next() {
			runtime.Gosched()
		}
		wants(http.StatusServiceUnavailable, "bound to another cluster")
		if pause := at.Sub(virtual.Now()); pause != agentRetry {
			t.Errorf("it is run again after %s", pause)
		}
		virtual.Set(at)
		virtual.Fire()
	}
	<-began
	cancel()
	end <- nil
	<-ended
}
