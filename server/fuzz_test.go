package server

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// script is a fuzzer's input, read byte by byte; zeros follow its end.
type script struct{ rest []byte }

func (s *script) next() int {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return int(b)
}

// take reads up to n bytes.
func (s *script) take(n int) []byte {
	n = min(n, len(s.rest))
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b
}

// pick returns one of a few.
func pick[T any](s *script, of ...T) T { return of[s.next()%len(of)] }

// maxSteps bounds what one input does.
const maxSteps = 60

// errorLog keeps what the service logs as an error: the engine says there that one of its goroutines panicked.
type errorLog struct {
	slog.Handler
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *errorLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (l *errorLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, text)
	return nil
}

func (l *errorLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *errorLog) WithGroup(string) slog.Handler      { return l }

// fuzzed is a service under a fuzzer.
type fuzzed struct {
	*fixture
	log *errorLog
}

// fuzzBegin is when each fuzzed service begins, so that an input means the same
// whenever it is run. It lies ahead: engine time can be moved forward only.
var fuzzBegin = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

func newFuzzed(t *testing.T) *fuzzed {
	log := &errorLog{Handler: slog.DiscardHandler}
	now := clock.NewReal()
	now.Floor(fuzzBegin)
	f := newFixtureAt(t, Deps{Clock: now, OpenStore: memory(), Logger: slog.New(log)}, enforce)
	return &fuzzed{fixture: f, log: log}
}

// alive checks that the service still serves everyone.
func (f *fuzzed) alive() {
	f.t.Helper()
	got, err := healthv1.NewHealthClient(f.conn).Check(f.ctx, &healthv1.HealthCheckRequest{})
	if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		f.t.Fatalf("health %v, %v", got, err)
	}
	x := f.feed(f.ctx, hello("alive"))
	x.recv()
	x.list(upsertNode("alive", "k"), upsertPod("alive", "alive", waits("k")))
	list, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{Cluster: "alive"})
	if err != nil || len(list.GetEvictions()) != 1 {
		f.t.Fatalf("evictions %v, %v", list, err)
	}
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if len(f.log.lines) > 0 {
		f.t.Fatalf("logged as errors:\n%s", strings.Join(f.log.lines, "\n"))
	}
}

// settle waits until the engine has nothing to do.
func (f *fuzzed) settle() {
	f.t.Helper()
	if err := f.svc.engine.Settle(f.ctx); err != nil {
		f.t.Fatal(err)
	}
}

// fuzzPeer is a fuzzer's end of a stream.
type fuzzPeer struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when the stream has ended
	err    error         // how; to be read once ended is closed
	own    bool          // the fuzzer cancelled it
}

// wantCode checks that a stream ended with one of the codes that its contract names.
func (p *fuzzPeer) wantCode(f *fuzzed, allowed ...codes.Code) {
	f.t.Helper()
	select {
	case <-p.ended:
	case <-f.ctx.Done():
		f.t.Fatal("the stream did not end")
	}
	code := status.Code(p.err)
	if !slices.Contains(allowed, code) && (code != codes.Canceled || !p.own) {
		f.t.Fatalf("the stream ended with %v", p.err)
	}
}

// finish ends a stream, in one of two ways, and checks with what code.
func (p *fuzzPeer) finish(f *fuzzed, stream grpc.ClientStream, cancel bool, allowed ...codes.Code) {
	f.t.Helper()
	if cancel {
		p.own = true
		p.cancel()
	} else {
		_ = stream.CloseSend()
	}
	p.wantCode(f, allowed...)
	p.cancel()
}

func taintedNode(s *script) *reprievev1.Event {
	n := &reprievev1.Node{Name: pick(s, "n1", "n2", "n3", ""), Uid: pick(s, "u1", "u2", "u3", "")}
	for range s.next() % 4 {
		t := &reprievev1.Taint{
			Key: pick(s, "k", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", ""), Value: pick(s, "", "v", "7"),
			Effect: pick(s, "NoExecute", "NoExecute", "NoSchedule", "", "odd"),
		}
		if s.next()%2 == 0 {
			t.TimeAdded = instant(s)
		}
		n.Taints = append(n.Taints, t)
	}
	return &reprievev1.Event{Type: eventType(s), Object: &reprievev1.Event_Node{Node: n}}
}

func eventType(s *script) reprievev1.Event_EventType {
	return pick(s, reprievev1.Event_EVENT_TYPE_UPSERT, reprievev1.Event_EVENT_TYPE_UPSERT, reprievev1.Event_EVENT_TYPE_DELETE,
		reprievev1.Event_EVENT_TYPE_UPSERT, reprievev1.Event_EVENT_TYPE_UNSPECIFIED, reprievev1.Event_EVENT_TYPE_UPSERT, 99)
}

// instant is the service's begin, or one near the ends of what can be told.
func instant(s *script) *timestamppb.Timestamp {
	return pick(s, timestamppb.New(fuzzBegin), timestamppb.New(fuzzBegin.Add(-time.Hour)), timestamppb.New(fuzzBegin.Add(time.Hour)), &timestamppb.Timestamp{},
		&timestamppb.Timestamp{Seconds: -62135596800}, &timestamppb.Timestamp{Seconds: 253402300799}, &timestamppb.Timestamp{Nanos: -1},
		&timestamppb.Timestamp{Seconds: 1 << 62})
}

func podEvent(s *script) *reprievev1.Event {
	p := &reprievev1.Pod{
		Namespace: pick(s, "default", "default", "kube-system", ""), Name: pick(s, "p1", "p2", "p3", ""), Uid: pick(s, "a", "b", "c", ""),
		NodeName: pick(s, "n1", "n2", "n3", ""), Phase: pick(s, "Running", "Running", "Succeeded", "odd"), Mirror: s.next()%8 == 7,
	}
	for range s.next() % 3 {
		seconds := pick[int64](s, 0, 1, -1, 3600, 1<<62, -1<<62)
		t := &reprievev1.Toleration{Key: pick(s, "k", "", "node.kubernetes.io/not-ready"), Operator: pick(s, "Exists", "", "Equal", "Gt", "Lt", "odd"),
			Value: pick(s, "", "v", "5"), Effect: pick(s, "", "NoExecute", "odd")}
		if s.next()%2 == 0 {
			t.TolerationSeconds = &seconds
		}
		p.Tolerations = append(p.Tolerations, t)
	}
	if s.next()%4 == 3 {
		p.DeletionTime = instant(s)
	}
	if s.next()%4 == 3 {
		p.ScheduledTime = instant(s)
	}
	return &reprievev1.Event{Type: eventType(s), Object: &reprievev1.Event_Pod{Pod: p}}
}

func anyBatch(s *script) *reprievev1.Batch {
	b := &reprievev1.Batch{}
	for range s.next() % 6 {
		switch s.next() % 5 {
		case 0, 1:
			b.Events = append(b.Events, taintedNode(s))
		case 2, 3:
			b.Events = append(b.Events, podEvent(s))
		default:
			b.Events = append(b.Events, pick(s,
				&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT},
				&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_LeaseRenewals{
					LeaseRenewals: &reprievev1.NodeLeaseRenewals{NodeNames: []string{"n1", "unheard"}},
				}}))
		}
	}
	return b
}

func fuzzName(stream, n int) string { return fmt.Sprintf("%d-%d", stream, n) }
