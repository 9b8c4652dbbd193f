package server

import (
	"context"
	"sync"
)

// outbox hands messages from callers that must not block to the one goroutine
// that sends them on a stream. What bounds it is up to its owner: see waitBelow.
type outbox[T any] struct {
	mu sync.Mutex // guards what follows
	// queue is what has yet to be sent; sending counts the one that is being sent.
	queue   []T
	sending int
	closed  bool
	// changed is closed and replaced whenever something above changes.
	changed chan struct{}
}

func newOutbox[T any]() *outbox[T] { return &outbox[T]{changed: make(chan struct{})} }

// put queues a message. merge, if not nil, may instead change the last one of
// the queue to say both, and reports whether it did.
func (o *outbox[T]) put(m T, merge func(last *T) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.queue); n > 0 && merge != nil && merge(&o.queue[n-1]) {
		return
	}
	o.queue = append(o.queue, m)
	o.signal()
}

// signal wakes all that wait. mu is held.
func (o *outbox[T]) signal() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// close makes run end once the queue is sent.
func (o *outbox[T]) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signal()
}

// waitBelow waits until fewer than n messages are queued or being sent. Owners
// call it before they take more from a peer that does not read its answers.
func (o *outbox[T]) waitBelow(ctx context.Context, n int) error {
	for {
		o.mu.Lock()
		size, changed := len(o.queue)+o.sending, o.changed
		o.mu.Unlock()
		if size < n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run sends what is queued until the box is closed and empty, ctx ends, or a
// send fails.
func (o *outbox[T]) run(ctx context.Context, send func(T) error) error {
	for {
		o.mu.Lock()
		queue, closed, changed := o.queue, o.closed, o.changed
		o.queue, o.sending = nil, len(queue)
		o.mu.Unlock()
		for _, m := range queue {
			if err := send(m); err != nil {
				return err
			}
			o.sent()
		}
		if len(queue) > 0 {
			continue
		}
		if closed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (o *outbox[T]) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sending--
	o.signal()
}
