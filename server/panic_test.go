package server

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// panicking is a store whose history panics.
type panicking struct{ engine.Store }

func (panicking) History(context.Context, engine.HistoryQuery) (engine.HistoryPage, error) {
	panic("secret of the house")
}

// TestPanicIsInternal has a handler panic below the engine: its caller gets
// INTERNAL without the reason, and the service lives.
func TestPanicIsInternal(t *testing.T) {
	data := mem.New()
	f := newFixture(t, func(context.Context, StoreSettings) (engine.Store, error) {
		s, err := data.Open(context.Background())
		return panicking{s}, err
	}, nil)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")))
	for range 2 {
		_, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{
			Cluster: "east", States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED},
		})
		if st := status.Convert(err); st.Code() != codes.Internal || strings.Contains(st.String(), "secret") {
			t.Fatalf("a handler that panics: %v", err)
		}
	}
	x.acked(x.batch(upsertPod("p2", "n1", waits("k"))), false)
	if list, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{}); err != nil || len(list.GetEvictions()) != 2 {
		t.Errorf("after a panic: %v, %v", list, err)
	}
}

// panickingHealth panics in both kinds of handler.
type panickingHealth struct {
	healthv1.UnimplementedHealthServer
}

func (panickingHealth) Check(context.Context, *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	panic("unary")
}

func (panickingHealth) Watch(*healthv1.HealthCheckRequest, healthv1.Health_WatchServer) error {
	panic("stream")
}

// TestPanicsOfStreams has the handlers of another service panic behind the same
// interceptors: the log has the panic and its stack.
func TestPanicsOfStreams(t *testing.T) {
	f := newFixture(t, memory(), nil)
	var logged bytes.Buffer
	f.svc.chain.logger = slog.New(slog.NewTextHandler(&logged, nil))
	srv := grpc.NewServer(f.svc.chain.options()...)
	healthv1.RegisterHealthServer(srv, panickingHealth{})
	lis := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	client := healthv1.NewHealthClient(conn)
	for range 2 {
		_, err := client.Check(f.ctx, &healthv1.HealthCheckRequest{})
		if status.Code(err) != codes.Internal {
			t.Errorf("a unary handler that panics: %v", err)
		}
		w, err := client.Watch(f.ctx, &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		if status.Code(err) != codes.Internal {
			t.Errorf("a stream handler that panics: %v", err)
		}
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"panic: unary", "panic: stream", "panic_test.go"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, logged.String())
		}
	}
}
