package server

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

// TestScenariosThroughTheService plays every scenario through Feed and Evict
// with the real interceptors and a bolt file, on a clock moved in steps.
func TestScenariosThroughTheService(t *testing.T) {
	files, err := filepath.Glob("../client/timeline/testdata/scenarios/*.jsonl")
	if err != nil || len(files) < 37 {
		t.Fatalf("found %d scenarios (%v)", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".jsonl"), func(t *testing.T) { playThroughService(t, f) })
	}
}

// stage is a service on a virtual clock, with one feed and one executor.
type stage struct {
	*testing.T
	dir      string
	start    time.Time
	clock    *clock.Virtual
	f        *fixture
	feed     *feed
	live     bool
	executor *executor
	done     chan struct{} // one for each answer that is on disk
	removed  map[string]bool

	mu       sync.Mutex // guards what follows
	outcomes map[string]reprievev1.Outcome
	sent     []timeline.SentOrder
	taken    []*reprievev1.EvictPod
}

func playThroughService(t *testing.T, file string) {
	s := &stage{
		T: t, dir: t.TempDir(), start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		removed: map[string]bool{}, outcomes: map[string]reprievev1.Outcome{},
	}
	s.clock = clock.NewVirtual(s.start)
	s.boot()
	in, err := os.Open(file)
	s.must(err)
	defer in.Close()
	r := timeline.NewReader(in, file, timeline.Options{})
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		s.must(err)
		s.advance(e.At, false)
		s.play(&e)
	}
	want := readExpectation(t, strings.TrimSuffix(file, ".jsonl")+".expect.json")
	s.advance(time.Duration(want.Until), true)
	for _, line := range want.Compare(s.sent) {
		t.Error(line)
	}
}

func readExpectation(t *testing.T, name string) *timeline.Expectation {
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := timeline.ReadExpectation(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// boot starts the service on the stage's file and attaches the executor.
func (s *stage) boot() {
	open := func(ctx context.Context, st StoreSettings) (engine.Store, error) {
		return bolt.Open(ctx, bolt.Options{Path: filepath.Join(s.dir, filepath.Base(st.Path)), Damaged: st.Damaged})
	}
	deps := Deps{Clock: s.clock, OpenStore: open, Jitter: func(d time.Duration) time.Duration { return d }}
	s.f = newFixtureAt(s.T, deps, func(c *Config) { c.Adopt, c.FeedTimeout = "enforce", Duration(time.Hour) })
	s.feed, s.live = nil, false
	s.done = make(chan struct{}, 100)
	s.executor = s.f.executor("stage", 1000, "*")
	go s.execute(s.executor, s.done)
}

// execute answers orders at once, as the scenario says.
func (s *stage) execute(x *executor, done chan<- struct{}) {
	for {
		m, err := x.stream.Recv()
		if err != nil {
			return
		}
		if m.GetResultAck() != nil {
			done <- struct{}{}
		}
		o := m.GetOrder()
		if o == nil {
			continue
		}
		pod := o.GetEvictPod()
		s.mu.Lock()
		outcome, set := s.outcomes[pod.GetNamespace()+"/"+pod.GetName()]
		if !set {
			outcome = reprievev1.Outcome_OUTCOME_EVICTED
		}
		s.sent = append(s.sent, timeline.SentOrder{
			Cluster: pod.GetCluster(), Namespace: pod.GetNamespace(), Pod: pod.GetName(), UID: pod.GetUid(), At: s.clock.Now().Sub(s.start),
		})
		if outcome == reprievev1.Outcome_OUTCOME_EVICTED || outcome == reprievev1.Outcome_OUTCOME_GONE {
			s.taken = append(s.taken, pod)
		}
		s.mu.Unlock()
		x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{Token: o.GetToken(), Outcome: outcome}}})
	}
}

// settle waits until the service has nothing to do: no order is out, and every
// pod that was evicted has left the feed.
func (s *stage) settle() {
	s.Helper()
	for {
		s.must(s.f.svc.engine.Settle(s.f.ctx))
		out, err := s.f.query().ListEvictions(s.f.ctx, &reprievev1.ListEvictionsRequest{
			States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_DELIVERED, reprievev1.EvictionState_EVICTION_STATE_RECALLING},
		})
		s.must(err)
		if len(out.GetEvictions()) > 0 {
			select {
			case <-s.done:
			case <-s.f.ctx.Done():
				s.Fatal("no answer to an order that is out")
			}
			continue
		}
		// An answer may have come between the two looks; what follows from it counts.
		s.must(s.f.svc.engine.Settle(s.f.ctx))
		s.mu.Lock()
		taken := s.taken
		s.taken = nil
		s.mu.Unlock()
		if len(taken) == 0 {
			return
		}
		for _, pod := range taken {
			s.removed[pod.GetUid()] = true
			if s.live {
				s.feed.acked(s.feed.batch(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: &reprievev1.Event_Pod{
					Pod: &reprievev1.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), Uid: pod.GetUid()},
				}}), false)
			}
		}
	}
}

// advance moves the clock to t in steps, one for each timer before it, and with
// inclusive those at t.
func (s *stage) advance(t time.Duration, inclusive bool) {
	s.settle()
	target := s.start.Add(t)
	for {
		next, ok := s.clock.Next()
		if !ok || next.After(target) || !inclusive && !next.Before(target) {
			s.clock.Set(target)
			return
		}
		s.clock.Set(next)
		s.clock.Fire()
		s.settle()
	}
}

func (s *stage) play(e *timeline.Entry) {
	if e.Control != nil {
		s.control(e)
		return
	}
	if s.removed[e.Pod.GetUid()] {
		return
	}
	s.begin(e.Cluster)
	s.feed.acked(s.feed.batch(e.Event()), false)
}

// begin opens the feed and begins a list if none is there.
func (s *stage) begin(cluster string) {
	if s.feed == nil {
		s.feed = s.f.feed(s.f.ctx, hello(cluster))
		s.feed.begin()
	}
}

func (s *stage) control(e *timeline.Entry) {
	ctx, admin := s.f.ctx, s.f.admin()
	switch c := e.Control; c.Kind {
	case timeline.Synced:
		s.begin(e.Cluster)
		s.feed.acked(s.feed.end(), true)
		s.live = true
	case timeline.FeedLost, timeline.Restart:
		// A feed that lives has sent a heartbeat by now.
		s.feed.acked(s.feed.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}), false)
		if c.Kind == timeline.Restart {
			s.f.stop()
			s.clock.Set(s.clock.Now().Add(c.Down))
			s.boot()
			return
		}
		s.must(s.feed.stream.CloseSend())
		if _, err := s.feed.stream.Recv(); err == nil {
			s.Fatal("the feed goes on after its end")
		}
		s.feed, s.live = nil, false
	case timeline.Pause:
		_, err := admin.PauseEvictions(ctx, &reprievev1.PauseEvictionsRequest{Cluster: e.Cluster, Reason: "scenario"})
		s.must(err)
	case timeline.Resume:
		_, err := admin.ResumeEvictions(ctx, &reprievev1.ResumeEvictionsRequest{Cluster: e.Cluster})
		s.must(err)
	case timeline.Policy:
		_, err := admin.SetPolicy(ctx, &reprievev1.SetPolicyRequest{
			Cluster: e.Cluster, Policy: c.Policy, UpdateMask: &fieldmaskpb.FieldMask{Paths: c.PolicyFields},
		})
		s.must(err)
	case timeline.Executor:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outcomes[c.PodNamespace+"/"+c.PodName] = c.Outcome
	}
}
