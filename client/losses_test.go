package client

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// levels returns a logger and what it was told: level and reason of each line.
func levels() (*slog.Logger, func() []string) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.LevelKey, "error":
			return a
		default:
			return slog.Attr{}
		}
	}})
	return slog.New(h), func() []string { return strings.Split(strings.TrimSpace(b.String()), "\n") }
}

// outage is two outages, the first of two reasons, and what has to be logged of them.
type outage struct{ n int }

func (o *outage) down() error {
	o.n++
	return status.Error(codes.Unavailable, fmt.Sprintf("reset of port %d", o.n))
}

func (o *outage) stopping() error { return refusal(codes.Unavailable, ReasonStopping) }

func (o *outage) over() error { return refusal(codes.Aborted, ReasonSuperseded) }

func (o *outage) check(t *testing.T, got []string) {
	t.Helper()
	want := []string{
		`level=WARN error="Unavailable: reset of port 1"`,
		`level=DEBUG error="Unavailable: reset of port 2"`,
		`level=WARN error="Unavailable (STOPPING): refused"`,
		`level=WARN error="Unavailable: reset of port 3"`,
		`level=INFO`,
		`level=WARN error="Unavailable: reset of port 4"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestOutageIsLoggedOnce checks a feeder's log of two outages.
func TestOutageIsLoggedOnce(t *testing.T) {
	var o outage
	down := func(feedServer) error { return o.down() }
	f := &fake{feeds: []func(feedServer) error{
		down, down,
		func(feedServer) error { return o.stopping() },
		down,
		func(s feedServer) error {
			var seq uint64
			if err := welcomeFeed(s, &seq); err != nil {
				return err
			}
			return o.down()
		},
		func(feedServer) error { return o.over() },
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		log, told := levels()
		if err := newTestFeeder(t, conn, func(c *FeederConfig) { c.Logger = log }).Run(ctx); !IsSuperseded(err) {
			t.Fatal(err)
		}
		o.check(t, told())
	})
}

// TestExecutorLogsAnOutageOnce checks an executor's.
func TestExecutorLogsAnOutageOnce(t *testing.T) {
	var o outage
	down := func(evictServer) error { return o.down() }
	f := &fake{evicts: []func(evictServer) error{
		down, down,
		func(evictServer) error { return o.stopping() },
		down,
		func(s evictServer) error {
			if _, err := greet(s); err != nil {
				return err
			}
			return o.down()
		},
		func(evictServer) error { return o.over() },
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		log, told := levels()
		e, err := NewExecutor(conn, ExecutorConfig{ID: "x", Clusters: []string{"c"}, Capacity: 1, Logger: log, Handler: func(context.Context, *Task) Result { return Result{} }})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Run(ctx); !IsSuperseded(err) {
			t.Fatal(err)
		}
		o.check(t, told())
		if st := e.Status(); st.Streams != 1 || st.Connected || !IsSuperseded(st.LastError) {
			t.Errorf("status %+v", st)
		}
	})
}

// An address that nobody listens on and a certificate that has expired have one
// code; a person has to hear of both.
func TestHandshakeIsAReasonOfItsOwn(t *testing.T) {
	refused := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: connection refused"`)
	expired := status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: x509: certificate has expired: 1 is after 0"`)
	later := status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: x509: certificate has expired: 2 is after 0"`)
	if lossReason(refused) == lossReason(expired) {
		t.Error("the expired certificate is taken for a refused connection")
	}
	if lossReason(expired) != lossReason(later) {
		t.Error("each attempt is a reason of its own")
	}
}
