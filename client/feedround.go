package client

import (
	"context"
	"errors"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// rounds lists and watches, again whenever the service or the source asks for
// it, until the stream or the source ends.
func (s *feedSession) rounds(ctx context.Context) error {
	for {
		again, err := s.round(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || !again {
			return err
		}
		s.feeder.setSynced(false)
		if s.takeListed() {
			s.wait.reset()
		}
		if err := s.wait.pause(ctx, nil); err != nil {
			return err
		}
	}
}

// round is one list and the watch after it. It reports whether another follows.
func (s *feedSession) round(parent context.Context) (again bool, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	s.mu.Lock()
	s.relist, s.listEnd = cancel, 0
	s.mu.Unlock()
	s.feeder.setSynced(false)
	err = s.listAndWatch(ctx)
	switch {
	case parent.Err() != nil:
		return false, context.Cause(parent)
	case errors.Is(context.Cause(ctx), errResync), errors.Is(err, ErrRelist):
		return true, nil
	case err != nil:
		return false, &sourceError{err}
	default:
		return false, nil
	}
}

func (s *feedSession) listAndWatch(ctx context.Context) error {
	if _, err := s.send(ctx, &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}); err != nil {
		return err
	}
	b := &batcher{max: s.limit, send: func(events []*reprievev1.Event) error {
		_, err := s.send(ctx, &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}})
		return err
	}}
	source := s.feeder.conf.Source
	err := source.List(ctx, b.add)
	if err == nil {
		err = b.flush()
	}
	if err != nil {
		return err
	}
	if _, err := s.send(ctx, &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}}); err != nil {
		return err
	}
	err = source.Watch(ctx, func(events ...*reprievev1.Event) error {
		for _, e := range events {
			if err := b.add(e); err != nil {
				return err
			}
		}
		return b.flush()
	})
	if err != nil {
		return err
	}
	return s.settle(ctx)
}

// settle waits until all that was sent is acknowledged.
func (s *feedSession) settle(ctx context.Context) error {
	s.sendMu.Lock()
	last := s.sequence
	s.sendMu.Unlock()
	for {
		s.mu.Lock()
		acked, moved := s.acked, s.moved
		s.mu.Unlock()
		if acked >= last {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
