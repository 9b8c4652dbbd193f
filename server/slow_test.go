package server

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// windowed dials with a small fixed window, so that a stream that is not read
// soon holds its sender back.
func (f *fixture) windowed() reprievev1.QueryServiceClient {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return f.lis.Dial() }))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return reprievev1.NewQueryServiceClient(conn)
}

// TestSlowWatcherIsCutOff has one watcher that reads nothing and one that reads
// everything, over more changes than are kept: the first is told that it is too
// slow, the second has missed nothing, and the feed was never held up.
func TestSlowWatcherIsCutOff(t *testing.T) {
	const pods, flips = 10_000, 12
	f := newFixture(t, memory(), nil)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	x := f.feed(ctx, hello("east"))
	x.recv()
	x.begin()
	x.batch(upsertNode("n1"))
	for from := 0; from < pods; from += 2000 {
		var events []*reprievev1.Event
		for i := from; i < from+2000; i++ {
			events = append(events, upsertPod("p"+strconv.Itoa(i), "n1", waits("k")))
		}
		x.batch(events...)
	}
	x.acked(x.end(), true)
	watch := func() reprievev1.QueryService_WatchEvictionsClient {
		w, err := f.windowed().WatchEvictions(ctx, &reprievev1.WatchEvictionsRequest{InitialList: true})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := w.Recv(); err != nil || m.GetInitialListEnd() == nil {
			t.Fatalf("initial list %v, %v", m, err)
		}
		return w
	}
	slow, fast := watch(), watch()
	for i := range flips {
		if i%2 == 0 {
			x.acked(x.batch(upsertNode("n1", "k")), false)
		} else {
			x.acked(x.batch(upsertNode("n1")), false)
		}
		for n := range pods {
			m, err := fast.Recv()
			if err != nil || m.GetChange() == nil {
				t.Fatalf("the reader's change %d of flip %d: %v, %v", n, i, m, err)
			}
		}
	}
	seen := 0
	for {
		_, err := slow.Recv()
		if err != nil {
			wantError(t, err, codes.ResourceExhausted, "READER_TOO_SLOW")
			break
		}
		if seen++; seen >= pods*flips {
			t.Fatal("the slow watcher was sent everything")
		}
	}
}
