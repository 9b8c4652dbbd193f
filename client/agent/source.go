package agent

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// source is a feeder's source: the cluster as its API server shows it. Each list
// that the service asks for is read from the API server anew, because it ends
// the time in which the service holds everything back.
type source struct {
	core, coordination rest.Interface
	clock              clock.Clock
	troubles           *troubles
	teller             teller

	mu      sync.Mutex // guards what follows
	current *following
	// health says that the service wants the nodes' leases.
	health bool
}

// following is one run of both watches, and of the leases' where they are wanted.
type following struct {
	state     *state
	followers []*follower
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	// leases and stopLeases are guarded by the source's mu; nil while not wanted.
	leases     *leaseWatch
	stopLeases context.CancelFunc
}

var _ client.Source = (*source)(nil)

// List implements [client.Source].
func (s *source) List(ctx context.Context, emit func(*reprievev1.Event) error) error {
	f := s.following()
	if f == nil {
		f = s.follow(ctx)
	}
	all, err := f.list(ctx)
	if err != nil {
		s.stop(f)
		return err
	}
	for _, raw := range all {
		e := &reprievev1.Event{}
		if err := proto.Unmarshal(raw, e); err != nil {
			s.stop(f)
			return fmt.Errorf("read back an event: %w", err)
		}
		if err := emit(e); err != nil {
			s.stop(f)
			return err
		}
	}
	return nil
}

// Watch implements [client.Source]. It asks for a new list when one of the
// watches has lost its place, and keeps both going for it.
func (s *source) Watch(ctx context.Context, emit func(...*reprievev1.Event) error) error {
	f := s.following()
	for {
		events, relist, moved := f.state.take()
		if relist {
			return client.ErrRelist
		}
		if len(events) > 0 {
			if err := emit(events...); err != nil {
				s.stop(f)
				return err
			}
			f.state.emitted(len(events))
			continue
		}
		select {
		case <-moved:
		case <-ctx.Done():
			s.stop(f)
			return context.Cause(ctx)
		}
	}
}

// alive reports that both watches stand and have shown life, once all that they
// had shown when it was called has been handed to the feed. It is what makes a
// heartbeat mean that the service knows what the API server knew.
func (s *source) alive(ctx context.Context) bool {
	f := s.following()
	if f == nil {
		return false
	}
	return f.stand() && f.state.drained(ctx)
}

// close ends the watches that a list to come was to go on with.
func (s *source) close() {
	if f := s.following(); f != nil {
		s.stop(f)
	}
}

// follow starts both watches. They outlive ctx, which is one list's: stop ends them.
func (s *source) follow(ctx context.Context) *following {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	st := newState(s.teller)
	f := &following{state: st, ctx: ctx, cancel: cancel, followers: newFollowers(st, s.core, s.clock, s.troubles)}
	for _, w := range f.followers {
		f.wg.Go(func() { w.run(ctx) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = f
	s.followLeases()
	return f
}

// wantLeases says whether the service wants the nodes' leases. A cluster without
// node health neither pays for them nor needs the rights.
func (s *source) wantLeases(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = on
	s.followLeases()
}

// followLeases begins or ends the watch of leases. mu is held.
func (s *source) followLeases() {
	f := s.current
	switch {
	case f == nil || s.health == (f.leases != nil):
	case s.health:
		ctx, cancel := context.WithCancel(f.ctx)
		w := newLeaseWatch(s.coordination, s.clock, s.troubles, f.state.tell)
		f.leases, f.stopLeases = w, cancel
		f.wg.Go(func() { w.run(ctx) })
	default:
		f.stopLeases()
		f.leases, f.stopLeases = nil, nil
	}
}

// leases is the watch of leases; nil while there is none.
func (s *source) leases() *leaseWatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil
	}
	return s.current.leases
}

func (s *source) following() *following {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// stop ends the watches: the next list begins others. Those that another list has
// begun since are not f's to take away: nobody would end them then.
func (s *source) stop(f *following) {
	s.mu.Lock()
	if s.current == f {
		s.current = nil
	}
	s.mu.Unlock()
	f.cancel()
	f.wg.Wait()
	for _, w := range f.followers {
		s.troubles.forget(w.calls("list"), w.calls("watch"))
	}
}

// list waits for the first list of both resources, or the new one of the
// resource that lost its place, and takes it while both watches stand: with one
// of them away, its part would be old.
func (f *following) list(ctx context.Context) ([][]byte, error) {
	for {
		moved := f.state.waiter()
		if f.stand() {
			if all, ok := f.state.list(); ok {
				return all, nil
			}
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// stand reports whether both watches stand and have shown life.
func (f *following) stand() bool {
	for _, w := range f.followers {
		if quiet, open := w.quiet(); !open || quiet > maxQuiet {
			return false
		}
	}
	return true
}

// drained waits until what is queued now has been emitted. It reports false when
// ctx ends first, or a new list is needed instead.
func (s *state) drained(ctx context.Context) bool {
	s.mu.Lock()
	upTo := s.in
	s.mu.Unlock()
	for {
		s.mu.Lock()
		done, relist, moved := s.out >= upTo, s.relist, s.moved
		s.mu.Unlock()
		switch {
		case relist:
			return false
		case done:
			return true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}
