package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// WatchEvent is one thing that a watch tells.
type WatchEvent struct {
	// Reset means that changes may have been missed, or an initial list was cut
	// off: forget what was told before. The open evictions follow anew, up to
	// ListEnd. Nothing else is set.
	Reset bool
	// ListEnd means that the initial list is complete as of Revision.
	ListEnd bool
	// Eviction is an eviction of the initial list, or one that changed.
	Eviction *reprievev1.Eviction
	// Revision is where a later watch can resume.
	Revision string
}

// Watch follows evictions and calls fn, in order, for each change, until ctx is
// done or fn fails, and returns the context's cause or fn's error. When the
// stream breaks it goes on after the last revision, with a back-off of 0.2 s to
// 30 s (to 2 s while the service cannot be reached); when that is not possible
// (OUT_OF_RANGE, READER_TOO_SLOW, no revision yet) it tells Reset and lists, even
// if req did not ask for a list. It ends for good on bad input, on an unknown
// cluster and on missing or insufficient credentials.
func Watch(ctx context.Context, conn grpc.ClientConnInterface, req *reprievev1.WatchEvictionsRequest, fn func(WatchEvent) error) error {
	w := &watch{
		client: reprievev1.NewQueryServiceClient(conn), fn: fn,
		req: proto.CloneOf(req), listing: req.GetInitialList(),
	}
	for {
		err := w.stream(ctx)
		switch {
		case w.failed != nil:
			return w.failed
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case hopeless(err), codeOf(err) == codes.NotFound:
			return err
		}
		if code := codeOf(err); code == codes.OutOfRange || code == codes.ResourceExhausted && !IsLimited(err) {
			w.restart = true
		}
		if err := w.wait.pause(ctx, err); err != nil {
			return err
		}
		if err := w.rewind(); err != nil {
			return err
		}
	}
}

// watch is a watch's state over its streams.
type watch struct {
	client reprievev1.QueryServiceClient
	fn     func(WatchEvent) error
	req    *reprievev1.WatchEvictionsRequest
	wait   backoff
	// listing: an initial list was asked for and has not ended.
	listing bool
	// told: something was told since the list began.
	told bool
	// restart: the revision is of no use any more.
	restart bool
	failed  error // fn's
}

// rewind makes the request ready for the next stream.
func (w *watch) rewind() error {
	// Part of a list is no state to go on from; without a list and a revision
	// nobody knows what has changed since the stream broke.
	goesOn := !w.listing && w.req.GetResumeRevision() != "" || w.listing && !w.told
	if goesOn && !w.restart {
		return nil
	}
	w.restart, w.told, w.listing = false, false, true
	w.req.InitialList, w.req.ResumeRevision = true, ""
	return w.fn(WatchEvent{Reset: true})
}

func (w *watch) stream(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	s, err := w.client.WatchEvictions(ctx, w.req)
	if err != nil {
		return typed(err)
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return streamEnd(err)
		}
		if err != nil {
			return typed(err)
		}
		w.wait.reset()
		if w.failed = w.take(m); w.failed != nil {
			return w.failed
		}
	}
}

func (w *watch) take(m *reprievev1.WatchEvictionsResponse) error {
	var e WatchEvent
	switch m := m.GetEvent().(type) {
	case *reprievev1.WatchEvictionsResponse_Change:
		e = WatchEvent{Eviction: m.Change.GetEviction(), Revision: m.Change.GetRevision()}
	case *reprievev1.WatchEvictionsResponse_InitialListEnd:
		e = WatchEvent{ListEnd: true, Revision: m.InitialListEnd.GetRevision()}
		w.listing = false
	default:
		// What a later service may say besides is not for this version.
		return nil
	}
	w.told = true
	if err := w.fn(e); err != nil {
		return err
	}
	if !w.listing && e.Revision != "" {
		w.req.InitialList, w.req.ResumeRevision = false, e.Revision
	}
	return nil
}
