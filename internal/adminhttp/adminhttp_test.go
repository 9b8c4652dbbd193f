package adminhttp

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// exhausted is a listener of a process without file descriptors, and then closed.
type exhausted struct {
	net.Listener
	calls int
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.calls++; l.calls == 1 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return nil, net.ErrClosed
}

func (l *exhausted) Close() error { return nil }

// TestConnectionErrorsGoToTheLogger: a program that logs JSON has no other lines.
func TestConnectionErrorsGoToTheLogger(t *testing.T) {
	var out bytes.Buffer
	srv := NewServer(Config{Registry: prometheus.NewRegistry(), Logger: slog.New(slog.NewJSONHandler(&out, nil))})
	if err := srv.Serve(&exhausted{}); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "{") || !strings.Contains(got, `"level":"WARN"`) || !strings.Contains(got, "too many open files") {
		t.Errorf("logged %q", got)
	}
}
