package server

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// liveStreams are the streams that callers were let in with, so that those end
// whose credentials are taken away.
type liveStreams struct {
	// running has the handlers, which may outlive a stream that is ended from here.
	running *sync.WaitGroup

	mu  sync.Mutex // guards all
	all map[*authorizedStream]struct{}
}

func newLiveStreams(running *sync.WaitGroup) *liveStreams {
	return &liveStreams{running: running, all: map[*authorizedStream]struct{}{}}
}

func (l *liveStreams) add(s *authorizedStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[s] = struct{}{}
}

func (l *liveStreams) remove(s *authorizedStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, s)
}

func (l *liveStreams) list() []*authorizedStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*authorizedStream, 0, len(l.all))
	for s := range l.all {
		out = append(out, s)
	}
	return out
}

// authorizedStream authorizes each message of a stream, and ends the stream when
// its caller's credentials no longer cover what it has asked for.
type authorizedStream struct {
	grpc.ServerStream
	z      *authorizer
	method string
	access *access
	ctx    context.Context
	cancel context.CancelCauseFunc
	// revoked is closed when the stream was ended from here.
	revoked chan struct{}
	once    sync.Once

	mu sync.Mutex // guards what follows
	// named are the clusters that the stream was let in for.
	named []string
	// every: an executor asked for all that its credentials allow.
	every bool
}

// stream authorizes each message that a stream receives, and the stream itself
// whenever the credentials change.
func (z *authorizer) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	s := &authorizedStream{
		ServerStream: ss, z: z, method: info.FullMethod, access: accessFrom(ctx), ctx: ctx, cancel: cancel, revoked: make(chan struct{}),
	}
	if s.access.caller().kind == "" {
		// Open to everyone: nothing can be taken away.
		return handler(srv, s)
	}
	closed, err := z.limits.open(s.access.caller())
	if err != nil {
		return err
	}
	defer closed()
	z.live.add(s)
	defer z.live.remove(s)
	// The credentials may have changed since the caller was let in.
	s.recheck()
	done := make(chan error, 1)
	z.live.running.Go(func() { done <- guard(func() error { return handler(srv, s) }) })
	select {
	case err := <-done:
		return err
	case <-s.revoked:
		// The handler may be blocked on a peer that reads nothing; it ends with the call.
		return context.Cause(ctx)
	}
}

// Context implements grpc.ServerStream.
func (s *authorizedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *authorizedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	clusters, err := s.z.authorize(s.ctx, s.method, m)
	if err != nil {
		return err
	}
	s.note(clusters, m)
	if len(clusters) > 0 {
		// What was checked may have been taken away before it was noted.
		s.recheck()
	}
	return nil
}

// note keeps what the stream was let in for.
func (s *authorizedStream) note(clusters []string, m any) {
	hello, _ := m.(*reprievev1.EvictRequest)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range clusters {
		if !slices.Contains(s.named, c) {
			s.named = append(s.named, c)
		}
	}
	s.every = s.every || slices.Contains(hello.GetHello().GetClusters(), everyCluster)
}

// recheck looks at the credentials again and ends the stream if they no longer
// cover it. An executor for all clusters has to attach anew when these change.
func (s *authorizedStream) recheck() {
	before := s.access.clusters()
	who, err := s.z.creds.again(s.access)
	if err != nil {
		s.revoke(err)
		return
	}
	s.access.who.Store(who)
	if !s.access.role() {
		s.revoke(s.z.noRole(s.method, s.access))
		return
	}
	s.mu.Lock()
	named, every := slices.Clone(s.named), s.every
	s.mu.Unlock()
	for _, c := range named {
		auditedFrom(s.ctx).about(c)
		if err := s.z.allow(s.method, s.access, c); err != nil {
			s.revoke(err)
			return
		}
	}
	if every && !slices.Equal(before, s.access.clusters()) {
		s.revoke(errGrantsChanged)
	}
}

func (s *authorizedStream) revoke(err error) {
	s.once.Do(func() {
		s.cancel(err)
		close(s.revoked)
	})
}

// recheck ends the streams whose credentials no longer cover them.
func (z *authorizer) recheck() {
	for _, s := range z.live.list() {
		s.recheck()
	}
}
