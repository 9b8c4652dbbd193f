package cli

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// TestInterruptBeforeConnected checks that no command claims success when it was
// ended before it had reached the service.
func TestInterruptBeforeConnected(t *testing.T) {
	for _, args := range []string{
		"feed --cluster prod --cluster-uid cu -f -",
		"feed --cluster prod -f -",
		"feed --cluster prod --cluster-uid cu -f - --follow",
		"execute",
		"execute --answer evicted",
		"get evictions -w",
		"get clusters -w",
		"get clusters",
		"enforce prod",
	} {
		t.Run(args, func(t *testing.T) {
			h := newHarness(t)
			ctx, interrupt := context.WithCancel(t.Context())
			h.in = nodeAndPod
			h.dial = func(ctx context.Context) (net.Conn, error) {
				interrupt()
				<-ctx.Done()
				return nil, ctx.Err()
			}
			code, out, errs := h.runContext(ctx, strings.Fields(args)...)
			words := strings.Fields(args)
			name := words[0]
			if name == "get" {
				name += " " + words[1]
			}
			if want := "reprieve: " + name + ": interrupted\n"; code != exitFailure || errs != want || out != "" {
				t.Errorf("exit %d, stderr %q, want %q; output %q", code, errs, want, out)
			}
		})
	}
}

// TestInterruptLive checks how commands end that are interrupted at work.
func TestInterruptLive(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		at   string // the output at which the interrupt comes
		code int
	}{
		"follow":  {[]string{"feed", "--cluster", "prod", "--cluster-uid", "cu", "-f", "-", "--follow"}, "is synced", exitOK},
		"feed":    {[]string{"feed", "--cluster", "prod", "--cluster-uid", "cu", "-f", "-"}, "is synced", exitFailure},
		"execute": {[]string{"execute", "--answer", "evicted"}, "ANSWER", exitOK},
		"print":   {[]string{"execute"}, "ORDER", exitOK},
		"watch":   {[]string{"get", "evictions", "-w"}, "frontend", exitOK},
		"poll":    {[]string{"get", "nodes", "--cluster", "prod", "-w"}, "NODE", exitOK},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var once sync.Once
			h.told = func(text string) {
				if strings.Contains(text, tc.at) {
					once.Do(interrupt)
				}
			}
			// One line after the list, and no end.
			in, w := io.Pipe()
			defer w.Close()
			h.stdin = in
			go io.WriteString(w, nodeAndPod+strings.Replace(strings.Split(nodeAndPod, "\n")[1], "ADDED", "MODIFIED", 1)+"\n")
			h.fake.feed = serveFeed(make(chan *reprievev1.FeedRequest, 100))
			h.fake.evict = serveOneOrder(make(chan *reprievev1.Result, 1))
			h.fake.live, h.fake.nodes = true, []*reprievev1.NodeView{{Name: "n1"}}
			h.fake.changes = []*reprievev1.WatchEvictionsResponse{{Event: &reprievev1.WatchEvictionsResponse_Change{Change: &reprievev1.EvictionChange{Revision: "1", Eviction: sampleEvictions()[0]}}}}
			code, out, errs := h.runContext(ctx, tc.args...)
			said := strings.HasSuffix(errs, ": interrupted\n")
			if code != tc.code || said != (code == exitFailure) || !strings.Contains(out+errs, tc.at) {
				t.Errorf("exit %d, want %d; stderr %q, output %q", code, tc.code, errs, out)
			}
		})
	}
}

// TestInterruptOfInput checks that a command does not wait for an input that is
// held open.
func TestInterruptOfInput(t *testing.T) {
	for _, args := range []string{
		"replay -",
		"simulate -f -",
		"policy set --cluster prod -f -",
		"feed --cluster prod --cluster-uid cu -f -",
		"enforce prod", // waits for its answer
		"replay PIPE",
		"simulate -f PIPE",
		"policy set --cluster prod -f PIPE",
		"replay testdata/none --expect PIPE",
	} {
		t.Run(args, func(t *testing.T) {
			h := newHarness(t)
			h.fake.clusters, h.fake.impact, h.tty = sampleClusters(), 3, true
			h.fake.feed = serveFeed(make(chan *reprievev1.FeedRequest, 100))
			ctx, interrupt := context.WithCancel(t.Context())
			in, w := io.Pipe()
			defer w.Close()
			reading := &firstRead{r: in, read: interrupt}
			h.stdin = reading
			pipe := filepath.Join(t.TempDir(), "pipe")
			if strings.Contains(args, "PIPE") {
				if err := syscall.Mkfifo(pipe, 0o600); err != nil {
					t.Fatal(err)
				}
				// Nothing tells when the opening blocks; it must end at any time.
				interrupt()
			}
			code, out, errs := h.runContext(ctx, strings.Fields(strings.Replace(args, "PIPE", pipe, 1))...)
			if code != exitFailure || !strings.HasSuffix(errs, ": interrupted\n") || out != "" {
				t.Errorf("exit %d, stderr %q, output %q", code, errs, out)
			}
			if strings.Contains(args, "PIPE") {
				// Each end's opening waits for the other's.
				f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
			}
		})
	}
}

// firstRead tells of the first read.
type firstRead struct {
	r    io.Reader
	once sync.Once
	read func()
}

func (f *firstRead) Read(b []byte) (int, error) {
	f.once.Do(f.read)
	return f.r.Read(b)
}

// TestInterruptible checks that nothing is lost or added on the way.
func TestInterruptible(t *testing.T) {
	text := strings.Repeat("0123456789", 30000)
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "bytes": iotest.OneByteReader(strings.NewReader(text[:1000])),
		"end with data": iotest.DataErrReader(strings.NewReader(text)),
	} {
		b, err := io.ReadAll(interruptible(t.Context(), r))
		if want := text[:len(b)]; err != nil || len(b) == 0 || string(b) != want {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}
