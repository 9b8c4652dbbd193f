package server

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// The agent in this process has the role agent for its one cluster, whatever
// credentials others need, and has ended before the service stops.
func TestAgentInThisProcess(t *testing.T) {
	tokens := writeFile(t, "tokens.yaml", "[{name: a, sha256: "+strings.Repeat("00", 32)+", role: viewer, clusters: [x]}]\n")
	signals, out := make(chan os.Signal, 2), newLog()
	type seen struct{ own, other, admin, late error }
	ended := make(chan seen, 1)
	parts := Parts{OpenStore: boltFile, NewAgent: func(s AgentSettings) (func(context.Context) error, error) {
		if s.Cluster != "lab" || s.Kubeconfig != "/some/file" || s.Workers != 64 {
			t.Errorf("settings %+v", s)
		}
		return func(ctx context.Context) error {
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
		}, nil
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

// Its end for good ends the service, with the cause.
func TestAgentInThisProcessFails(t *testing.T) {
	for name, newAgent := range map[string]NewAgent{
		"missing": nil,
		"building": func(AgentSettings) (func(context.Context) error, error) {
			return nil, errors.New("the name is bound to another cluster")
		},
		"running": func(AgentSettings) (func(context.Context) error, error) {
			return func(context.Context) error { return errors.New("the name is bound to another cluster") }, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := newLog()
			code := Main(Process{Args: ports(t.TempDir(), "--in-cluster"), Stdout: out, Stderr: out, Exit: func(int) {}}, Parts{OpenStore: boltFile, NewAgent: newAgent})
			want := "the agent in this process: the name is bound to another cluster"
			if newAgent == nil {
				want = "reprieve agent"
			}
			if code == exitOK || !strings.Contains(out.String(), want) {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}
