package server

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// retryOf is the time that an error asks to wait.
func retryOf(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func limits(t *testing.T, edit func(*Limits)) (*fixture, *clock.Virtual) {
	c := clock.NewVirtual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return newFixtureAt(t, Deps{Clock: c, OpenStore: memory()}, func(c *Config) {
		tenants(t)(c)
		edit(&c.Limits)
	}), c
}

// TestCallsAreLimitedByIdentity has one caller call too often, over two
// connections: it is told when to try again, and others notice nothing.
func TestCallsAreLimitedByIdentity(t *testing.T) {
	f, c := limits(t, func(l *Limits) { l.CallsPerSecond, l.CallsBurst = 2, 3 })
	other := *f
	other.conn = f.dial(insecure.NewCredentials())
	call := func(f *fixture, token string) error {
		_, err := f.query().ListClusters(f.as(token), &reprievev1.ListClustersRequest{})
		return err
	}
	for i := range 3 {
		if err := call([]*fixture{f, &other}[i%2], "all-operator"); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	for _, x := range []*fixture{f, &other} {
		err := call(x, "all-operator")
		wantError(t, err, codes.ResourceExhausted, "LIMITED")
		if d := retryOf(err); d != 500*time.Millisecond {
			t.Errorf("try again after %s, want 500ms", d)
		}
	}
	if err := call(f, "east-operator"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	// Opening a stream is a call.
	_, err := f.feed(f.as("all-operator"), hello("east")).stream.Recv()
	wantError(t, err, codes.ResourceExhausted, "LIMITED")
	c.Set(c.Now().Add(500 * time.Millisecond))
	if err := call(f, "all-operator"); err != nil {
		t.Errorf("after the time that was told: %v", err)
	}
	wantError(t, call(f, "all-operator"), codes.ResourceExhausted, "LIMITED")
	wantMetric(t, f, `reprieve_limited_total{limit="calls"} 4`)
	// Who has not called for long is forgotten, and begins with a full burst.
	c.Set(c.Now().Add(time.Minute))
	c.Fire()
	if n := len(f.svc.chain.auth.limits.quotas); n != 0 {
		t.Errorf("%d quotas of callers that are gone", n)
	}
}

// TestStreamsAreLimitedByIdentity counts streams over connections, for as long as they last.
func TestStreamsAreLimitedByIdentity(t *testing.T) {
	f, _ := limits(t, func(l *Limits) { l.StreamsPerIdentity = 2 })
	other := *f
	other.conn = f.dial(insecure.NewCredentials())
	watch := func(f *fixture, token string) (reprievev1.QueryService_WatchEvictionsClient, error) {
		w, err := f.query().WatchEvictions(f.as(token), &reprievev1.WatchEvictionsRequest{InitialList: true})
		if err == nil {
			_, err = w.Recv()
		}
		return w, err
	}
	x := f.feed(f.as("east-agent"), hello("east"))
	x.recv()
	if _, err := watch(f, "east-agent"); err != nil {
		t.Fatal(err)
	}
	_, err := watch(&other, "east-agent")
	wantError(t, err, codes.ResourceExhausted, "LIMITED")
	if d := retryOf(err); d != streamRetry {
		t.Errorf("try again after %s, want %s", d, streamRetry)
	}
	if _, err := watch(f, "east-operator"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if err := x.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := x.stream.Recv(); err != nil {
			break
		}
	}
	if _, err = watch(&other, "east-agent"); err != nil {
		t.Errorf("after a stream has ended: %v", err)
	}
	wantMetric(t, f, `reprieve_limited_total{limit="streams"} 1`)
}

func TestPagesAreBounded(t *testing.T) {
	f, _ := limits(t, func(l *Limits) { l.MaxPageSize = 2 })
	x := f.feed(f.as("east-agent"), hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("a", "n1", waits("k")), upsertPod("b", "n1", waits("k")), upsertPod("c", "n1", waits("k")))
	for _, size := range []uint32{0, 1000} {
		list, err := f.query().ListEvictions(f.as("all-operator"), &reprievev1.ListEvictionsRequest{PageSize: size})
		if err != nil || len(list.GetEvictions()) != 2 || list.GetNextPageToken() == "" {
			t.Errorf("a page of %d: %v, %v", size, list, err)
		}
	}
	_, err := f.query().ListEvictions(f.as("all-operator"), &reprievev1.ListEvictionsRequest{PageSize: 1001})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}
