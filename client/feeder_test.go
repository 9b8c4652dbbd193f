package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// source is a fake source: a fixed list, and a watch that emits what it is given.
type source struct {
	size  int
	live  chan []*reprievev1.Event // closing it ends the watch
	lists atomic.Int32
	err   error // of the watch, once live is closed
}

func node() *reprievev1.Event {
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: &reprievev1.Node{Name: "n", Uid: "u"}}}
}

func (s *source) List(_ context.Context, emit func(*reprievev1.Event) error) error {
	s.lists.Add(1)
	for range s.size {
		if err := emit(node()); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) Watch(ctx context.Context, emit func(...*reprievev1.Event) error) error {
	for {
		select {
		case events, ok := <-s.live:
			if !ok {
				return s.err
			}
			if err := emit(events...); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func newTestFeeder(t *testing.T, conn *Conn, edit func(*FeederConfig)) *Feeder {
	t.Helper()
	conf := FeederConfig{Cluster: "c", ClusterUID: "u", FeederID: "f", Source: &source{}}
	edit(&conf)
	f, err := NewFeeder(conn, conf)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The acknowledgement of a message may be handled before the sender has noted that it was sent.
func TestFeederStatusNeverHasAckedAboveSequence(t *testing.T) {
	f := &Feeder{}
	for _, p := range [][2]uint64{{0, 0}, {5, 0}, {0, 6}, {6, 0}} {
		f.setProgress(p[0], p[1])
		if st := f.Status(); st.Acked > st.Sequence {
			t.Errorf("sequence %d, acknowledged up to %d", st.Sequence, st.Acked)
		}
	}
	if st := f.Status(); st.Sequence != 6 || st.Acked != 6 {
		t.Errorf("in the end: %+v", st)
	}
}

func TestFeederListsWatchesAndEnds(t *testing.T) {
	beats := 0
	f := &fake{feeds: []func(feedServer) error{func(s feedServer) error {
		var seq uint64
		if err := errors.Join(welcomeFeed(s, &seq), list(s, &seq, 5)); err != nil {
			return err
		}
		for {
			m, err := s.Recv()
			if err != nil {
				return nil
			}
			if m.GetHeartbeat() != nil {
				if beats++; beats == 1 {
					if err := s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_ModeChanged{
						ModeChanged: &reprievev1.ModeChanged{Mode: reprievev1.Mode_MODE_SHADOW},
					}}); err != nil {
						return err
					}
				}
			}
			if err := ack(s, m.GetSequence(), false); err != nil {
				return err
			}
		}
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{size: 5, live: make(chan []*reprievev1.Event)}
		var alive atomic.Bool
		alive.Store(true)
		var told []bool
		var modes []reprievev1.Mode
		feeder := newTestFeeder(t, conn, func(c *FeederConfig) {
			c.Source, c.Alive = src, func(context.Context) bool { return alive.Load() }
			c.OnSynced = func(s bool) { told = append(told, s) }
			c.OnMode = func(m reprievev1.Mode) { modes = append(modes, m) }
		})
		done := make(chan error, 1)
		go func() { done <- feeder.Run(ctx) }()
		<-feeder.Synced()
		if err := feeder.Run(ctx); err == nil {
			t.Error("a second Run at the same time was not refused")
		}
		// hello, begin, three batches of at most two, end.
		if st := feeder.Status(); !st.Connected || !st.Synced || st.Sequence != 6 || st.Acked != 6 || st.Mode != reprievev1.Mode_MODE_ENFORCE {
			t.Errorf("status after the list: %+v", st)
		}
		src.live <- []*reprievev1.Event{node(), node(), node()}
		pass(35 * time.Second)
		alive.Store(false)
		pass(30 * time.Second)
		synctest.Wait()
		if st := feeder.Status(); beats != 3 || st.Acked != 11 {
			t.Errorf("%d heartbeats, want 3 while alive and none after; status %+v", beats, st)
		}
		if st := feeder.Status(); st.Mode != reprievev1.Mode_MODE_SHADOW || !slices.Equal(modes, []reprievev1.Mode{reprievev1.Mode_MODE_ENFORCE, reprievev1.Mode_MODE_SHADOW}) {
			t.Errorf("OnMode was told %v; status %+v", modes, st)
		}
		close(src.live)
		if err := <-done; err != nil {
			t.Errorf("Run after the source's end: %v", err)
		}
		if len(told) != 2 || !told[0] || told[1] {
			t.Errorf("OnSynced was told %v", told)
		}
	})
}

// TestFeederAliveBlocks checks that a heartbeat follows what Alive waited for, and
// that Alive's context ends with the stream.
func TestFeederAliveBlocks(t *testing.T) {
	var kinds []string
	f := &fake{feeds: []func(feedServer) error{func(s feedServer) error {
		var seq uint64
		if err := errors.Join(welcomeFeed(s, &seq), list(s, &seq, 1)); err != nil {
			return err
		}
		for {
			m, err := s.Recv()
			if err != nil {
				return nil
			}
			if m.GetHeartbeat() != nil {
				kinds = append(kinds, "heartbeat")
				return status.Error(codes.Unavailable, "enough")
			}
			kinds = append(kinds, "batch")
		}
	}, func(s feedServer) error {
		var seq uint64
		if err := errors.Join(welcomeFeed(s, &seq), list(s, &seq, 1)); err != nil {
			return err
		}
		pass(15 * time.Second)
		return status.Error(codes.InvalidArgument, "enough for good")
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{size: 1, live: make(chan []*reprievev1.Event)}
		emitted := make(chan struct{})
		calls := 0
		var cause error
		feeder := newTestFeeder(t, conn, func(c *FeederConfig) {
			c.Source, c.Alive = src, func(ctx context.Context) bool {
				if calls++; calls == 1 {
					<-emitted
					return true
				}
				<-ctx.Done()
				cause = context.Cause(ctx)
				return true
			}
		})
		done := make(chan error, 1)
		go func() { done <- feeder.Run(ctx) }()
		pass(25 * time.Second)
		synctest.Wait()
		src.live <- []*reprievev1.Event{node()}
		synctest.Wait()
		close(emitted)
		if err := <-done; !IsInvalid(err) {
			t.Errorf("Run: %v", err)
		}
		if want := []string{"batch", "heartbeat"}; !slices.Equal(kinds, want) {
			t.Errorf("the service got %v, want %v", kinds, want)
		}
		if calls != 2 || cause == nil {
			t.Errorf("Alive was called %d times, want 2; its context's end: %v", calls, cause)
		}
	})
}

func TestFeederListsAgain(t *testing.T) {
	script := func(end func(feedServer, *uint64) error) func(feedServer) error {
		return func(s feedServer) error {
			var seq uint64
			if err := errors.Join(welcomeFeed(s, &seq), list(s, &seq, 1)); err != nil {
				return err
			}
			return end(s, &seq)
		}
	}
	f := &fake{feeds: []func(feedServer) error{
		func(feedServer) error { return refusal(codes.Unavailable, ReasonUnavailable) },
		script(func(feedServer, *uint64) error { return nil }),
		script(func(s feedServer, seq *uint64) error {
			if err := s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_ResyncRequired{ResyncRequired: &reprievev1.ResyncRequired{Reason: "x"}}}); err != nil {
				return err
			}
			if err := list(s, seq, 1); err != nil {
				return err
			}
			return refusal(codes.Aborted, ReasonSuperseded)
		}),
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{size: 1}
		feeder := newTestFeeder(t, conn, func(c *FeederConfig) { c.Source = src })
		err := feeder.Run(ctx)
		if !IsSuperseded(err) {
			t.Errorf("Run ended with %v, want superseded", err)
		}
		if n := src.lists.Load(); n != 3 || f.nFeed != 3 {
			t.Errorf("%d lists over %d streams, want 3 over 3", n, f.nFeed)
		}
		if st := feeder.Status(); st.Connected || st.Synced || st.LastError == nil {
			t.Errorf("status after the end: %+v", st)
		}
	})
}

func TestFeederEndsForGood(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Aborted} {
		f := &fake{feeds: []func(feedServer) error{func(feedServer) error { return refusal(code, "X") }}}
		within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
			err := newTestFeeder(t, conn, func(*FeederConfig) {}).Run(ctx)
			if codeOf(err) != code || f.nFeed != 1 {
				t.Errorf("%v: Run ended with %v after %d streams", code, err, f.nFeed)
			}
		})
	}
	f := &fake{feeds: []func(feedServer) error{
		func(feedServer) error { return refusal(codes.FailedPrecondition, ReasonFeedOutOfOrder) },
		func(feedServer) error { return refusal(codes.FailedPrecondition, ReasonClusterUIDMismatch) },
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		err := newTestFeeder(t, conn, func(*FeederConfig) {}).Run(ctx)
		if !IsClusterUIDMismatch(err) || f.nFeed != 2 || !strings.Contains(err.Error(), `feed of cluster "c" with UID "u": `) {
			t.Errorf("another cluster's name: Run ended with %v after %d streams, want 2", err, f.nFeed)
		}
	})
	f = &fake{feeds: []func(feedServer) error{func(feedServer) error { return refusal(codes.AlreadyExists, ReasonFeedHeld) }}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		err := newTestFeeder(t, conn, func(c *FeederConfig) { c.HeldAttempts = 3 }).Run(ctx)
		if !IsFeedHeld(err) || f.nFeed != 3 {
			t.Errorf("held: Run ended with %v after %d streams, want 3", err, f.nFeed)
		}
	})
}

func TestFeederSource(t *testing.T) {
	own := errors.New("out of order")
	script := func(lists int) *fake {
		return &fake{feeds: []func(feedServer) error{func(s feedServer) error {
			var seq uint64
			err := welcomeFeed(s, &seq)
			for range lists {
				err = errors.Join(err, list(s, &seq, 0))
			}
			<-s.Context().Done()
			return err
		}}}
	}
	within(t, script(1), func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{live: make(chan []*reprievev1.Event), err: own}
		close(src.live)
		if err := newTestFeeder(t, conn, func(c *FeederConfig) { c.Source = src }).Run(ctx); !errors.Is(err, own) {
			t.Errorf("Run ended with %v, want the source's error", err)
		}
	})
	within(t, script(2), func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{live: make(chan []*reprievev1.Event), err: ErrRelist}
		ctx, cancel := context.WithCancelCause(ctx)
		go newTestFeeder(t, conn, func(c *FeederConfig) {
			c.Source = src
			c.OnSynced = func(bool) {
				if src.lists.Load() == 2 {
					cancel(own)
				}
			}
		}).Run(ctx)
		close(src.live)
		<-ctx.Done()
		synctest.Wait()
		if n := src.lists.Load(); n != 2 {
			t.Errorf("%d lists, want 2", n)
		}
	})
	within(t, script(0), func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{live: make(chan []*reprievev1.Event, 1)}
		src.live <- []*reprievev1.Event{nil}
		if err := newTestFeeder(t, conn, func(c *FeederConfig) { c.Source = src }).Run(ctx); !errors.Is(err, errNilEvent) {
			t.Errorf("Run ended with %v for a nil event", err)
		}
	})
}
