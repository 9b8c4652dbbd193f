package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestCallsRetrySendTheTokenAndGiveTypedErrors(t *testing.T) {
	calls := 0
	var token, agent []string
	f := &fake{clusters: func(ctx context.Context) error {
		calls++
		md, _ := metadata.FromIncomingContext(ctx)
		token, agent = md.Get("authorization"), md.Get("user-agent")
		switch calls {
		case 1, 2:
			return refusal(codes.Unavailable, ReasonUnavailable)
		case 3:
			return nil
		default:
			return refusal(codes.InvalidArgument, ReasonInvalidArgument, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "a", Description: "too long"}, {Field: "b", Description: "empty"}}})
		}
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		if _, err := conn.Query().ListClusters(ctx, &reprievev1.ListClustersRequest{}); err != nil || calls != 3 {
			t.Errorf("a read was answered %v after %d calls, want the third", err, calls)
		}
		if len(token) != 1 || token[0] != "Bearer secret-1" || !strings.HasPrefix(agent[0], "test ") {
			t.Errorf("authorization %q, user agent %q", token, agent)
		}
		_, err := conn.Query().ListClusters(ctx, &reprievev1.ListClustersRequest{})
		e, ok := FromError(fmt.Errorf("wrapped: %w", err))
		if !ok || e.Reason != ReasonInvalidArgument || len(e.Fields) != 2 || !IsInvalid(err) || status.Code(err) != codes.InvalidArgument {
			t.Fatalf("error %#v", err)
		}
		if want := "InvalidArgument (INVALID_ARGUMENT): refused: a: too long; b: empty"; err.Error() != want {
			t.Errorf("error text %q, want %q", err, want)
		}
		repeats := &Error{Code: codes.InvalidArgument, Message: "validation error: a: too long", Fields: []FieldViolation{{"a", "too long"}, {"b", "empty"}}}
		if want := "InvalidArgument: validation error: a: too long: b: empty"; repeats.Error() != want {
			t.Errorf("error text %q, want %q", repeats, want)
		}
		if _, err := conn.Admin().GetPolicy(ctx, &reprievev1.GetPolicyRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("a service that is not there: %v", err)
		}
		if _, err := conn.Evictions().RequestEviction(ctx, &reprievev1.RequestEvictionRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("a call that is not there: %v", err)
		}
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := conn.Feed().Feed(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled stream: %v", err)
		}
	})
}

// limited is the refusal of a caller that calls too often.
func limited(after time.Duration) error {
	return refusal(codes.ResourceExhausted, ReasonLimited, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
}

// TestLimitedCallsAreMadeAgain after the time that the service gave, unless the
// call's own time ends before.
func TestLimitedCallsAreMadeAgain(t *testing.T) {
	calls, refusals := 0, 0
	f := &fake{clusters: func(context.Context) error {
		if calls++; calls <= refusals {
			return limited(2 * time.Second)
		}
		return nil
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		for _, tc := range []struct {
			refusals, calls int
			timeout, took   time.Duration
			fails           bool
		}{
			{0, 1, time.Minute, 0, false},
			{3, 4, time.Minute, 6 * time.Second, false},
			{9, 5, time.Minute, 8 * time.Second, true},
			{9, 2, 3 * time.Second, 2 * time.Second, true},
			{9, 1, time.Second, 0, true},
		} {
			calls, refusals = 0, tc.refusals
			call, cancel := context.WithTimeout(ctx, tc.timeout)
			begin := time.Now()
			_, err := conn.Query().ListClusters(call, &reprievev1.ListClustersRequest{})
			cancel()
			if calls != tc.calls || time.Since(begin) != tc.took || IsLimited(err) != tc.fails {
				t.Errorf("%+v: %d calls in %s, %v", tc, calls, time.Since(begin), err)
			}
		}
	})
}

// TestLimitedStreamsWait has each kind of stream wait for as long as it was told.
func TestLimitedStreamsWait(t *testing.T) {
	const after = 90 * time.Second
	var at []time.Time
	stream := func(n int) error {
		if at = append(at, time.Now()); n == 1 {
			return limited(after)
		}
		return refusal(codes.PermissionDenied, ReasonPermissionDenied)
	}
	f := &fake{}
	f.feeds = []func(feedServer) error{func(feedServer) error { return stream(f.nFeed) }}
	f.evicts = []func(evictServer) error{func(evictServer) error { return stream(f.nEvict) }}
	f.watches = []func(*reprievev1.WatchEvictionsRequest, watchServer) error{
		func(*reprievev1.WatchEvictionsRequest, watchServer) error { return stream(f.nWatch) },
	}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		executor, err := NewExecutor(conn, ExecutorConfig{ID: "x", Clusters: []string{"c"}, Capacity: 1, Handler: func(context.Context, *Task) Result { return Result{} }})
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		for name, run := range map[string]func() error{
			"feeder":   func() error { return newTestFeeder(t, conn, func(*FeederConfig) {}).Run(ctx) },
			"executor": func() error { return executor.Run(ctx) },
			"watch": func() error {
				return Watch(ctx, conn, &reprievev1.WatchEvictionsRequest{ResumeRevision: "1"}, func(WatchEvent) error { told++; return nil })
			},
		} {
			at = nil
			if err := run(); !IsDenied(err) || len(at) != 2 || at[1].Sub(at[0]) < after || at[1].Sub(at[0]) > 2*after {
				t.Errorf("%s: streams at %v, %v", name, at, err)
			}
		}
		if told != 0 {
			t.Error("a watch that was limited began anew instead of going on")
		}
	})
}

func TestReasons(t *testing.T) {
	for reason, is := range map[string]func(error) bool{
		ReasonClusterNotSynced: IsNotSynced, ReasonClusterUnknown: IsClusterUnknown, ReasonClusterUIDMismatch: IsClusterUIDMismatch,
		ReasonClusterDamaged: IsClusterDamaged, ReasonFeedHeld: IsFeedHeld, ReasonSuperseded: IsSuperseded, ReasonPodUnknown: IsPodUnknown,
		ReasonPodNotSubject: IsPodNotSubject, ReasonRequestConflict: IsRequestConflict, ReasonEtagMismatch: IsEtagMismatch,
		ReasonRevisionTooOld: IsRevisionTooOld, ReasonReaderTooSlow: IsReaderTooSlow, ReasonLimited: IsLimited,
	} {
		if !is(refusal(codes.Unavailable, reason)) || is(refusal(codes.Unavailable, ReasonStopping)) || is(nil) || is(io.EOF) {
			t.Errorf("%s is not told apart", reason)
		}
	}
	if !IsUnavailable(refusal(codes.Unavailable, ReasonStopping)) || IsUnavailable(refusal(codes.Unavailable, ReasonClusterNotSynced)) {
		t.Error("IsUnavailable must not take an unsynced cluster for an unreachable service")
	}
	if !IsNotFound(refusal(codes.NotFound, ReasonPauseUnknown)) || !IsDenied(refusal(codes.Unauthenticated, ReasonUnauthenticated)) {
		t.Error("IsNotFound or IsDenied does not read the code")
	}
	st, err := status.New(codes.Unavailable, "x").WithDetails(&errdetails.ErrorInfo{Domain: "proxy.example.com", Reason: ReasonPodUnknown})
	if err != nil || ReasonOf(st.Err()) != "" {
		t.Errorf("another domain's reason was read (%v)", err)
	}
	silent := typed(refusal(codes.DeadlineExceeded, ReasonFeedSilent))
	if errors.Is(silent, context.DeadlineExceeded) || !errors.Is(typed(status.Error(codes.DeadlineExceeded, "")), context.DeadlineExceeded) {
		t.Error("a silent feed is not a context's deadline")
	}
}

func TestConfigFaults(t *testing.T) {
	for want, conf := range map[string]Config{
		"address is empty":     {},
		"unencrypted to h:1":   {Address: "h:1", Plaintext: true, Token: "t"},
		"token file are both":  {Address: "h:1", Token: "t", TokenFile: "f"},
		"plaintext and TLS":    {Address: "h:1", Plaintext: true, TLS: TLS{CAFile: "f"}},
		"both its certificate": {Address: "h:1", TLS: TLS{CertFile: "f"}},
		"keepalive 1s":         {Address: "h:1", KeepAlive: time.Second},
		"read CA file":         {Address: "h:1", TLS: TLS{CAFile: "none"}},
		"client certificate":   {Address: "h:1", TLS: TLS{CertFile: "none", KeyFile: "none"}},
		"read token file":      {Address: "h:1", TokenFile: "none"},
		"no PEM certificate":   {Address: "h:1", TLS: TLS{CAFile: "conn_test.go"}},
		"printable ASCII":      {Address: "h:1", Token: "a b"},
		"no bearer token":      {Address: "h:1", Token: strings.Repeat("a", maxTokenBytes+1)},
		"token is empty":       {Address: "h:1", Token: " "},
	} {
		if _, err := Dial(t.Context(), conf); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial: %v, want a fault with %q", err, want)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(cancelled, Config{Address: "h:1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial with a context that is done: %v", err)
	}
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "unix:/run/x": true, "dns:///localhost:1": true, "passthrough:///127.0.0.2:1": true,
		"dns://localhost/example.com:1": false, "10.0.0.1:1": false, "example.com": false, "xds:///localhost": false, "0.0.0.0:1": false,
	} {
		if loopback(address) != want {
			t.Errorf("loopback(%q) is not %v", address, want)
		}
	}
	if _, err := NewFeeder(nil, FeederConfig{HeldAttempts: -1}); err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("NewFeeder: %v, want five faults", err)
	}
	if _, err := NewExecutor(nil, ExecutorConfig{}); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("NewExecutor: %v, want four faults", err)
	}
}

func TestTLSFiles(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, tokens := write("cert.pem", "CERTIFICATE", der), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokens, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := Config{Address: "127.0.0.1:1", TokenFile: tokens, TLS: TLS{CAFile: cert, CertFile: cert, KeyFile: write("key.pem", "PRIVATE KEY", private)}}
	conn, err := Dial(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := &bearer{file: tokens}
	for _, want := range []string{"first", "second"} {
		if md, err := b.GetRequestMetadata(t.Context()); err != nil || md["authorization"] != "Bearer "+want {
			t.Errorf("metadata %v, %v, want %s", md, err, want)
		}
		if err := os.WriteFile(tokens, []byte("second\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(tokens, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.GetRequestMetadata(t.Context()); !IsUnavailable(err) || hopeless(err) {
		t.Errorf("a file that is being written: %v, want an error that is tried again", err)
	}
	if !b.RequireTransportSecurity() {
		t.Error("a token without leave for plaintext must demand TLS")
	}
}

// TestReadsAreRepeated: every call that only reads is in the retry policy, and no other.
func TestReadsAreRepeated(t *testing.T) {
	var policy struct {
		MethodConfig []struct {
			Name []struct{ Service, Method string }
		}
	}
	if err := json.Unmarshal([]byte(retryPolicy), &policy); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, n := range policy.MethodConfig[0].Name {
		got = append(got, n.Service+"/"+n.Method)
	}
	for _, s := range []grpc.ServiceDesc{reprievev1.QueryService_ServiceDesc, reprievev1.AdminService_ServiceDesc, reprievev1.EvictionService_ServiceDesc} {
		for _, m := range s.Methods {
			if s.ServiceName == "reprieve.v1.QueryService" || strings.HasPrefix(m.MethodName, "Get") || strings.HasPrefix(m.MethodName, "List") {
				want = append(want, s.ServiceName+"/"+m.MethodName)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("repeated are\n%v\nwant\n%v", got, want)
	}
}
