package cli

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is the time of the fake service and of the virtual clock.
var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// fakeService answers from what a test put in it and records what it was asked.
type fakeService struct {
	reprievev1.UnimplementedQueryServiceServer
	reprievev1.UnimplementedAdminServiceServer
	reprievev1.UnimplementedEvictionServiceServer
	reprievev1.UnimplementedFeedServiceServer

	evictions []*reprievev1.Eviction
	clusters  []*reprievev1.Cluster
	nodes     []*reprievev1.NodeView
	trips     []*reprievev1.BlastRadiusTrip
	stuckKey  string // a taint key whose release fails
	reprieves []*reprievev1.Reprieve
	explain   *reprievev1.ExplainPodResponse

	explainNode *reprievev1.ExplainNodeResponse
	shadow      *reprievev1.ShadowReport
	changes     []*reprievev1.WatchEvictionsResponse
	live        bool // a watch stays after its changes
	unseen      bool // looking at clusters is not allowed
	policy      *reprievev1.ClusterPolicy
	impact      uint64
	warnings    []string
	err         error
	asked       []any
	backup      []*reprievev1.BackupStoreResponse
	evict       func(grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]) error
	feed        func(grpc.BidiStreamingServer[reprievev1.FeedRequest, reprievev1.FeedResponse]) error
}

// harness is a CLI before a fake service.
type harness struct {
	t     *testing.T
	fake  *fakeService
	lis   *bufconn.Listener
	clock *clock.Virtual
	in    string
	stdin io.Reader                               // instead of in
	told  func(text string)                       // is told each write to the output and error output
	dial  func(context.Context) (net.Conn, error) // instead of the fake's
	width int
	tty   bool
	env   map[string]string
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{t: t, fake: &fakeService{}, lis: bufconn.Listen(1 << 20), clock: clock.NewVirtual(epoch), env: map[string]string{}}
	srv := grpc.NewServer()
	reprievev1.RegisterQueryServiceServer(srv, h.fake)
	reprievev1.RegisterAdminServiceServer(srv, h.fake)
	reprievev1.RegisterEvictionServiceServer(srv, h.fake)
	reprievev1.RegisterFeedServiceServer(srv, h.fake)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(h.lis)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return h
}

// run runs one command line and returns its exit code, output and error output.
func (h *harness) run(args ...string) (int, string, string) {
	h.t.Helper()
	return h.runContext(h.t.Context(), args...)
}

func (h *harness) runContext(ctx context.Context, args ...string) (int, string, string) {
	out, errs := &output{told: h.told}, &output{told: h.told}
	code := Main(ctx, h.environment(out, errs), args)
	return code, out.String(), errs.String()
}

func (h *harness) environment(out, errs io.Writer) *Env {
	in := h.stdin
	if in == nil {
		in = strings.NewReader(h.in)
	}
	return &Env{
		In: in, Out: out, Err: errs,
		Getenv: func(k string) string { return h.env[k] },
		Clock:  h.clock, Width: func() int { return h.width }, Interactive: h.tty,
		CheckStore: bolt.Check,
		Dial: func(ctx context.Context, conf client.Config) (*client.Conn, error) {
			conf.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
				if h.dial != nil {
					return h.dial(ctx)
				}
				return h.lis.DialContext(ctx)
			}
			return client.Dial(ctx, conf)
		},
	}
}

// output is a buffer that several goroutines may write to.
type output struct {
	mu   sync.Mutex // guards b
	b    bytes.Buffer
	told func(string)
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	n, err := o.b.Write(p)
	o.mu.Unlock()
	if o.told != nil {
		o.told(string(p))
	}
	return n, err
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// golden compares got with testdata/NAME and checks that it fits 100 columns.
func golden(t *testing.T, name, got string) {
	t.Helper()
	for line := range strings.SplitSeq(got, "\n") {
		if n := utf8.RuneCountInString(line); n > tableWidth && !strings.Contains(name, "wide") {
			t.Errorf("%s: a line has %d columns, more than %d:\n%s", name, n, tableWidth, line)
		}
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run the test with -update to write it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}
