package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestFeederTakesNoOldAcknowledgementForTheNewList(t *testing.T) {
	f := &fake{feeds: []func(feedServer) error{func(s feedServer) error {
		var seq uint64
		read := func() error {
			_, begin := expectFeed[*reprievev1.FeedRequest_SyncBegin](s, &seq)
			_, end := expectFeed[*reprievev1.FeedRequest_SyncEnd](s, &seq)
			return errors.Join(begin, end)
		}
		if err := errors.Join(welcomeFeed(s, &seq), read()); err != nil {
			return err
		}
		old := seq
		err := s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_ResyncRequired{ResyncRequired: &reprievev1.ResyncRequired{}}})
		if err = errors.Join(err, read(), ack(s, old, true)); err != nil {
			return err
		}
		pass(5 * time.Second)
		err = ack(s, seq, true)
		<-s.Context().Done()
		return err
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		ctx, cancel := context.WithCancel(ctx)
		feeder := newTestFeeder(t, conn, func(*FeederConfig) {})
		done := make(chan error, 1)
		go func() { done <- feeder.Run(ctx) }()
		pass(3 * time.Second)
		if st := feeder.Status(); st.Synced || st.Acked != 3 {
			t.Errorf("status after the old list's acknowledgement: %+v", st)
		}
		<-feeder.Synced()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestFeederEndsOnlyWhenAllIsAcknowledged(t *testing.T) {
	f := &fake{feeds: []func(feedServer) error{func(s feedServer) error {
		var seq uint64
		if err := errors.Join(welcomeFeed(s, &seq), list(s, &seq, 0)); err != nil {
			return err
		}
		if _, err := expectFeed[*reprievev1.FeedRequest_Batch](s, &seq); err != nil {
			return err
		}
		pass(7 * time.Second)
		err := ack(s, seq, false)
		_, end := s.Recv()
		if end == nil {
			return errors.New("a message after the end")
		}
		return err
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{live: make(chan []*reprievev1.Event, 1)}
		src.live <- []*reprievev1.Event{node()}
		close(src.live)
		feeder := newTestFeeder(t, conn, func(c *FeederConfig) { c.Source = src })
		if err := feeder.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if st := feeder.Status(); st.Sequence != 4 || st.Acked != 4 {
			t.Errorf("Run ended with %d of %d messages acknowledged, want 4 of 4", st.Acked, st.Sequence)
		}
	})
}

func TestBatchesAreBounded(t *testing.T) {
	of := func(size int) *reprievev1.Event {
		return &reprievev1.Event{Object: &reprievev1.Event_Node{Node: &reprievev1.Node{Name: strings.Repeat("n", size)}}}
	}
	var sizes []int
	b := &batcher{max: 3, send: func(events []*reprievev1.Event) error {
		sizes = append(sizes, len(events))
		return nil
	}}
	for _, size := range []int{1, 1, 1, 1, 2 << 20, 2 << 20, maxBatchBytes + 1, 1} {
		if err := b.add(of(size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(b.flush(), b.flush()); err != nil {
		t.Fatal(err)
	}
	if want := []int{3, 2, 1, 1, 1}; !slices.Equal(sizes, want) {
		t.Errorf("batches of %v events, want %v", sizes, want)
	}
}
