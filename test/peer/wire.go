package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/server"
)

// service is the whole service on a loopback address.
type service struct {
	svc    *server.Service
	conn   *grpc.ClientConn
	served chan error
	// metrics are all that a scrape reads.
	metrics prometheus.Gatherer
}

func startService(ctx context.Context, dir string, open engine.StoreOpener) (*service, error) {
	conf := server.DefaultConfig()
	conf.DataDir = dir
	conf.FeedTimeout = server.Duration(time.Hour)
	enforce, lifted := "enforce", true
	conf.Defaults = server.ClusterPolicy{Mode: &enforce, UnlimitedRate: &lifted, DisableBlastRadius: &lifted}
	registry := prometheus.NewRegistry()
	svc, err := server.New(conf, server.Deps{
		Clock: clock.NewReal(), Logger: slog.New(slog.DiscardHandler), Registry: registry, CommitRest: server.CommitRest,
		OpenStore: func(ctx context.Context, _ server.StoreSettings) (engine.Store, error) { return open(ctx) },
	})
	if err != nil {
		return nil, err
	}
	if err := svc.Start(ctx); err != nil {
		return nil, err
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &service{svc: svc, served: make(chan error, 1), metrics: registry}
	go func() { s.served <- svc.Serve(lis) }()
	s.conn, err = dial(lis)
	return s, err
}

func dial(lis net.Listener) (*grpc.ClientConn, error) {
	return grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func (s *service) stop() error {
	err := s.conn.Close()
	s.svc.Stop()
	if served := <-s.served; served != nil {
		return served
	}
	return err
}

// wireFeed is one Feed stream.
type wireFeed struct {
	stream reprievev1.FeedService_FeedClient
	seq    uint64
}

func openFeed(ctx context.Context, conn *grpc.ClientConn) (*wireFeed, error) {
	stream, err := reprievev1.NewFeedServiceClient(conn).Feed(ctx)
	if err != nil {
		return nil, err
	}
	f := &wireFeed{stream: stream}
	return f, f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{Cluster: clusterName, ClusterUid: "c", FeederId: "f"}}})
}

func (f *wireFeed) send(m *reprievev1.FeedRequest) error {
	f.seq++
	m.Sequence = f.seq
	return f.stream.Send(m)
}

func (f *wireFeed) events(events ...*reprievev1.Event) error {
	return f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}})
}

// acked waits until all that was sent is acknowledged.
func (f *wireFeed) acked(seq uint64) error {
	for {
		m, err := f.stream.Recv()
		if err != nil {
			return err
		}
		if m.GetAck().GetSequence() >= seq {
			return nil
		}
	}
}

// openTainted opens a feed, lists nodes with so many pods each, and taints all of them; the service has acknowledged it.
func openTainted(ctx context.Context, conn *grpc.ClientConn, nodes, perNode int, key string) (*wireFeed, error) {
	f, err := openFeed(ctx, conn)
	if err != nil {
		return nil, err
	}
	if err := f.list(nodes, perNode); err != nil {
		return nil, err
	}
	if err := f.events(wireNodes(nodes, key)...); err != nil {
		return nil, err
	}
	return f, f.acked(f.seq)
}

// list sends a whole list: nodes without taints, and so many pods of each.
func (f *wireFeed) list(nodes, perNode int) error {
	if err := f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}); err != nil {
		return err
	}
	if err := f.events(wireNodes(nodes)...); err != nil {
		return err
	}
	for i := range nodes {
		if perNode > 0 {
			if err := f.events(wirePods(i, perNode)...); err != nil {
				return err
			}
		}
	}
	if err := f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}}); err != nil {
		return err
	}
	return f.acked(f.seq)
}

func wireNodes(nodes int, taints ...string) []*reprievev1.Event {
	out := make([]*reprievev1.Event, nodes)
	for i := range out {
		n := &reprievev1.Node{Name: nodeName(i), Uid: nodeUID(i)}
		for _, k := range taints {
			n.Taints = append(n.Taints, &reprievev1.Taint{Key: k, Effect: "NoExecute"})
		}
		out[i] = &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: n}}
	}
	return out
}

func wirePods(node, perNode int) []*reprievev1.Event {
	out := make([]*reprievev1.Event, perNode)
	for k := range out {
		out[k] = &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: wirePod(node*perNode+k, node)}}
	}
	return out
}

func wirePod(i, node int) *reprievev1.Pod {
	p := &reprievev1.Pod{
		Namespace: "shop-" + strconv.Itoa(node%50), Name: podName(i), Uid: podUID(i), NodeName: nodeName(node), Phase: "Running",
		ScheduledTime:   timestamppb.New(time.Unix(1_700_000_000, 0)),
		OwnerReferences: []*reprievev1.OwnerReference{{Kind: "ReplicaSet", Name: "web-7d4b9c6f5d", Uid: fmt.Sprintf("1b0c2a94-77d1-4c1c-8e0c-%012d", i/20)}},
	}
	for _, t := range tolerations(hour) {
		p.Tolerations = append(p.Tolerations, &reprievev1.Toleration{Key: t.Key, Operator: string(t.Operator), Effect: string(t.Effect), TolerationSeconds: t.TolerationSeconds})
	}
	return p
}

// ingestOurs sends new pods as live events and waits until all are acknowledged.
func ingestOurs(r *run1) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "ingest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := startService(r, dir, openMem())
	if err != nil {
		return nil, err
	}
	f, err := openFeed(r, s.conn)
	if err != nil {
		return nil, err
	}
	if err := f.list(r.size/perNode, 0); err != nil {
		return nil, err
	}
	got, err := sendPods(r, f)
	if err != nil {
		return nil, err
	}
	cl, err := reprievev1.NewQueryServiceClient(s.conn).GetCluster(r, &reprievev1.GetClusterRequest{Cluster: clusterName})
	if err != nil {
		return nil, err
	}
	if n := cl.GetCluster().GetPods(); int(n) != r.size {
		return nil, fmt.Errorf("the service has %d pods, want %d", n, r.size)
	}
	return got, s.stop()
}

func sendPods(r *run1, f *wireFeed) (figures, error) {
	batches := make([][]*reprievev1.Event, r.size/perNode)
	for i := range batches {
		batches[i] = wirePods(i, perNode)
	}
	last := f.seq + uint64(len(batches))
	done := make(chan error, 1)
	w := startWatch()
	go func() { done <- f.acked(last) }()
	for _, b := range batches {
		if err := f.events(b...); err != nil {
			return nil, err
		}
	}
	if err := <-done; err != nil {
		return nil, err
	}
	return w.stop(r.size), nil
}

// rawFeed takes a feed's messages and acknowledges them, and does nothing with them.
type rawFeed struct {
	reprievev1.UnimplementedFeedServiceServer
	events atomic.Int64
}

func (s *rawFeed) Feed(stream reprievev1.FeedService_FeedServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.events.Add(int64(len(m.GetBatch().GetEvents())))
		ack := &reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Ack{Ack: &reprievev1.Ack{Sequence: m.GetSequence()}}}
		if err := stream.Send(ack); err != nil {
			return err
		}
	}
}

func ingestRaw(r *run1) (figures, error) {
	lis, err := (&net.ListenConfig{}).Listen(r, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	raw := &rawFeed{}
	g := grpc.NewServer()
	reprievev1.RegisterFeedServiceServer(g, raw)
	go func() { _ = g.Serve(lis) }()
	defer g.Stop()
	conn, err := dial(lis)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	f, err := openFeed(r, conn)
	if err != nil {
		return nil, err
	}
	got, err := sendPods(r, f)
	if err == nil && raw.events.Load() != int64(r.size) {
		err = fmt.Errorf("%d events arrived, want %d", raw.events.Load(), r.size)
	}
	return got, err
}

// executorsOf is how many executors there are, ordersOut how many orders each takes at a time.
const (
	executorsOf = 8
	ordersOut   = 1000
)

func dispatchTrace(r *run1) string { return fmt.Sprintf("%s/dispatch-%d.trace", r.dir, r.size) }

// dispatchOurs lets pods fall due while no executor is there, then attaches
// executors over gRPC and waits until all orders are answered and the answers on disk.
func dispatchOurs(r *run1) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "dispatch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var dispatching atomic.Bool
	t := &tracing{on: dispatching.Load}
	s, err := startService(r, dir, func(ctx context.Context) (engine.Store, error) {
		st, err := openBolt(dir)(ctx)
		t.Store = st
		return t, err
	})
	if err != nil {
		return nil, err
	}
	if _, err := openTainted(r, s.conn, r.size/perNode, perNode, goKey); err != nil {
		return nil, err
	}
	w := startWatch()
	dispatching.Store(true)
	if err := answerAll(r, s.conn, r.size); err != nil {
		return nil, err
	}
	got := w.stop(r.size)
	dispatching.Store(false)
	if err := s.stop(); err != nil {
		return nil, err
	}
	return got, t.save(dir, dispatchTrace(r))
}

// answerAll runs executors that answer at once, until so many answers are accepted.
func answerAll(ctx context.Context, conn *grpc.ClientConn, want int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	var accepted atomic.Int64
	all := sync.OnceFunc(cancel)
	for i := range executorsOf {
		g.Go(func() error {
			stream, err := reprievev1.NewEvictionServiceClient(conn).Evict(ctx)
			if err != nil {
				return err
			}
			err = stream.Send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: &reprievev1.ExecutorHello{
				ExecutorId: fmt.Sprintf("x%d", i), Clusters: []string{clusterName}, Capacity: ordersOut,
			}}})
			for err == nil && accepted.Load() < int64(want) {
				err = answerOne(stream, &accepted)
			}
			if accepted.Load() >= int64(want) {
				all()
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if n := accepted.Load(); n != int64(want) {
		return fmt.Errorf("%d answers were accepted, want %d", n, want)
	}
	return nil
}

func answerOne(stream reprievev1.EvictionService_EvictClient, accepted *atomic.Int64) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	switch x := m.GetMessage().(type) {
	case *reprievev1.EvictResponse_Order:
		return stream.Send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{
			Token: x.Order.GetToken(), Outcome: reprievev1.Outcome_OUTCOME_EVICTED,
		}}})
	case *reprievev1.EvictResponse_ResultAck:
		if x.ResultAck.GetDisposition() != reprievev1.ResultAck_DISPOSITION_ACCEPTED {
			return fmt.Errorf("an answer was not accepted: %v", x.ResultAck)
		}
		accepted.Add(1)
	}
	return nil
}

// dispatchRaw writes what dispatchOurs wrote: the delivery and the answer of each.
func dispatchRaw(r *run1) (figures, error) { return replay(r, dispatchTrace(r), r.size) }
