package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout ends a test that waits for what does not come. A scenario has some thirty
// commits to a file, each of which may take seconds where the disk is busy.
const testTimeout = 2 * time.Minute

// fixture is a service over bufconn with all of its interceptors.
type fixture struct {
	t    *testing.T
	ctx  context.Context
	svc  *Service
	lis  *bufconn.Listener
	reg  *prometheus.Registry
	conn *grpc.ClientConn
	// stop ends the service; the test's end does if nobody did before.
	stop func()
}

// memory opens stores over one set of data, as a file would outlive its process.
func memory() OpenStore {
	data := mem.New()
	return func(ctx context.Context, _ StoreSettings) (engine.Store, error) { return data.Open(ctx) }
}

func newFixture(t *testing.T, open OpenStore, edit func(*Config)) *fixture {
	t.Helper()
	return newFixtureAt(t, Deps{Clock: clock.NewReal(), OpenStore: open}, edit)
}

// newFixtureAt is newFixture on a clock of the test's own.
func newFixtureAt(t *testing.T, deps Deps, edit func(*Config)) *fixture {
	t.Helper()
	conf := DefaultConfig()
	conf.DataDir = t.TempDir()
	if edit != nil {
		edit(&conf)
	}
	if err := conf.Validate(); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, reg: prometheus.NewRegistry(), lis: bufconn.Listen(1 << 20)}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	f.ctx = ctx
	var err error
	deps.Registry = f.reg
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	f.svc, err = New(conf, deps)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.svc.Start(ctx); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.svc.Serve(f.lis) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		f.svc.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	f.conn = f.dial(insecure.NewCredentials())
	return f
}

func (f *fixture) dial(creds credentials.TransportCredentials) *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(f.dialLocal))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

func (f *fixture) dialLocal(context.Context, string) (net.Conn, error) { return f.lis.Dial() }

// as is the context of a caller with a bearer token.
func (f *fixture) as(token string) context.Context {
	return metadata.AppendToOutgoingContext(f.ctx, "authorization", "Bearer "+token)
}

func (f *fixture) query() reprievev1.QueryServiceClient {
	return reprievev1.NewQueryServiceClient(f.conn)
}
func (f *fixture) admin() reprievev1.AdminServiceClient {
	return reprievev1.NewAdminServiceClient(f.conn)
}
func (f *fixture) evictions() reprievev1.EvictionServiceClient {
	return reprievev1.NewEvictionServiceClient(f.conn)
}

// feed is one Feed stream.
type feed struct {
	t      *testing.T
	stream reprievev1.FeedService_FeedClient
	seq    uint64
}

func (f *fixture) feed(ctx context.Context, hello *reprievev1.FeedHello) *feed {
	f.t.Helper()
	stream, err := reprievev1.NewFeedServiceClient(f.conn).Feed(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	x := &feed{t: f.t, stream: stream}
	x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: hello}})
	return x
}

func hello(cluster string) *reprievev1.FeedHello {
	return &reprievev1.FeedHello{Cluster: cluster, ClusterUid: "uid-" + cluster, FeederId: "feeder"}
}

// send sends a message with the next sequence number, which it returns.
func (x *feed) send(m *reprievev1.FeedRequest) uint64 {
	x.t.Helper()
	x.seq++
	m.Sequence = x.seq
	// A stream that has ended says why when it is read.
	if err := x.stream.Send(m); err != nil && err != io.EOF {
		x.t.Fatal(err)
	}
	return x.seq
}

func (x *feed) begin() {
	x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}})
}

func (x *feed) batch(events ...*reprievev1.Event) uint64 {
	return x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}})
}

func (x *feed) end() uint64 {
	return x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}})
}

// list feeds a whole list and waits until it is on disk.
func (x *feed) list(events ...*reprievev1.Event) {
	x.t.Helper()
	x.begin()
	x.batch(events...)
	x.acked(x.end(), true)
}

func (x *feed) recv() *reprievev1.FeedResponse {
	x.t.Helper()
	m, err := x.stream.Recv()
	if err != nil {
		x.t.Fatal(err)
	}
	return m
}

// acked waits for the acknowledgement of a message.
func (x *feed) acked(seq uint64, synced bool) {
	x.t.Helper()
	for {
		if a := x.recv().GetAck(); a.GetSequence() >= seq {
			if a.GetSequence() == seq && a.GetSynced() != synced {
				x.t.Fatalf("acknowledgement %v; want synced %v", a, synced)
			}
			return
		}
	}
}

func upsertNode(name string, taints ...string) *reprievev1.Event {
	n := &reprievev1.Node{Name: name, Uid: "uid-" + name}
	for _, k := range taints {
		n.Taints = append(n.Taints, &reprievev1.Taint{Key: k, Effect: "NoExecute"})
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: n}}
}

func upsertPod(name, node string, tolerations ...*reprievev1.Toleration) *reprievev1.Event {
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{
		Namespace: "default", Name: name, Uid: "uid-" + name, NodeName: node, Phase: "Running", Tolerations: tolerations,
	}}}
}

func deletePod(name string) *reprievev1.Event {
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{
		Namespace: "default", Name: name, Uid: "uid-" + name,
	}}}
}

// waits tolerates the taint for an hour.
func waits(key string) *reprievev1.Toleration {
	seconds := int64(3600)
	return &reprievev1.Toleration{Key: key, Operator: "Exists", TolerationSeconds: &seconds}
}

// wantError checks code and reason of an error.
func wantError(t *testing.T, err error, code codes.Code, reason string) *status.Status {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code || reasonOf(st) != reason {
		t.Fatalf("error %v with reason %q; want %s with reason %q", err, reasonOf(st), code, reason)
	}
	return st
}

func reasonOf(st *status.Status) string {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}

func fieldsOf(st *status.Status) (fields []string) {
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return fields
}
