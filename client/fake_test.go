package client

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	feedServer  = grpc.BidiStreamingServer[reprievev1.FeedRequest, reprievev1.FeedResponse]
	evictServer = grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]
	watchServer = grpc.ServerStreamingServer[reprievev1.WatchEvictionsResponse]
)

// fake is a service whose streams follow scripts: the n-th stream runs the n-th
// script, and later ones the last.
type fake struct {
	reprievev1.UnimplementedFeedServiceServer
	reprievev1.UnimplementedEvictionServiceServer
	reprievev1.UnimplementedQueryServiceServer

	feeds    []func(feedServer) error
	evicts   []func(evictServer) error
	watches  []func(*reprievev1.WatchEvictionsRequest, watchServer) error
	clusters func(context.Context) error
	nFeed    int
	nEvict   int
	nWatch   int
}

func pick[F any](scripts []F, n *int) F {
	i := min(*n, len(scripts)-1)
	*n++
	return scripts[i]
}

func (f *fake) Feed(s feedServer) error   { return pick(f.feeds, &f.nFeed)(s) }
func (f *fake) Evict(s evictServer) error { return pick(f.evicts, &f.nEvict)(s) }
func (f *fake) WatchEvictions(r *reprievev1.WatchEvictionsRequest, s watchServer) error {
	return pick(f.watches, &f.nWatch)(r, s)
}

func (f *fake) ListClusters(ctx context.Context, _ *reprievev1.ListClustersRequest) (*reprievev1.ListClustersResponse, error) {
	if err := f.clusters(ctx); err != nil {
		return nil, err
	}
	return &reprievev1.ListClustersResponse{}, nil
}

// within runs a test in a bubble of virtual time with a connection to the fake.
func within(t *testing.T, f *fake, test func(t *testing.T, ctx context.Context, conn *Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		reprievev1.RegisterFeedServiceServer(server, f)
		reprievev1.RegisterEvictionServiceServer(server, f)
		reprievev1.RegisterQueryServiceServer(server, f)
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(lis) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		conn, err := Dial(ctx, Config{
			Address: "localhost", Plaintext: true, Token: "secret-1", UserAgent: "test",
			Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			cancel()
			conn.Close()
			server.Stop()
			<-served
		}()
		test(t, ctx, conn)
	})
}

// pass lets d of the bubble's virtual time go by.
func pass(d time.Duration) {
	timer, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-timer.Done()
}

// refusal is an error as the service gives it.
func refusal(code codes.Code, reason string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, "refused").WithDetails(append(details, &errdetails.ErrorInfo{Domain: ErrorDomain, Reason: reason})...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// expectFeed reads the next message that is no heartbeat and checks its kind and sequence.
func expectFeed[M any](s feedServer, last *uint64) (*reprievev1.FeedRequest, error) {
	for {
		m, err := s.Recv()
		if err != nil {
			return nil, err
		}
		if m.GetSequence() != *last+1 {
			return nil, status.Errorf(codes.InvalidArgument, "sequence %d after %d", m.GetSequence(), *last)
		}
		*last = m.GetSequence()
		if _, ok := m.GetMessage().(M); ok {
			return m, nil
		}
		if _, ok := m.GetMessage().(*reprievev1.FeedRequest_Heartbeat); !ok {
			return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("unexpected %T", m.GetMessage()))
		}
	}
}

func welcomeFeed(s feedServer, seq *uint64) error {
	if _, err := expectFeed[*reprievev1.FeedRequest_Hello](s, seq); err != nil {
		return err
	}
	return s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Welcome{Welcome: &reprievev1.FeedWelcome{
		HeartbeatInterval: durationpb.New(10 * time.Second), Mode: reprievev1.Mode_MODE_ENFORCE, ServerVersion: "v1", MaxBatchEvents: 2,
	}}})
}

func ack(s feedServer, seq uint64, synced bool) error {
	return s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Ack{Ack: &reprievev1.Ack{Sequence: seq, Synced: synced}}})
}

// list reads a whole list of n events and acknowledges it.
func list(s feedServer, seq *uint64, n int) error {
	if _, err := expectFeed[*reprievev1.FeedRequest_SyncBegin](s, seq); err != nil {
		return err
	}
	for n > 0 {
		m, err := expectFeed[*reprievev1.FeedRequest_Batch](s, seq)
		if err != nil {
			return err
		}
		if n -= len(m.GetBatch().GetEvents()); len(m.GetBatch().GetEvents()) > 2 {
			return status.Error(codes.InvalidArgument, "batch too large")
		}
	}
	if _, err := expectFeed[*reprievev1.FeedRequest_SyncEnd](s, seq); err != nil {
		return err
	}
	return ack(s, *seq, true)
}
