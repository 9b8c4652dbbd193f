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
	changed wakeup // when one of these changes
}

// wakeup wakes goroutines that wait for something to change. What it is about has a
// mutex, which is held in its methods. Nothing is allocated while nobody waits.
type wakeup struct{ waiting chan struct{} }

// wait returns a channel that is closed at the next signal.
func (w *wakeup) wait() <-chan struct{} {
	if w.waiting == nil {
		w.waiting = make(chan struct{})
	}
	return w.waiting
}

// signal wakes all that wait.
func (w *wakeup) signal() {
	if w.waiting != nil {
		close(w.waiting)
		w.waiting = nil
	}
}

// put queues a message. merge, if not nil, may instead change the last one of
// the queue to say both, and reports whether it did.
func (o *outbox[T]) put(m T, merge func(last *T) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.queue); n > 0 && merge != nil && merge(&o.queue[n-1]) {
		return
	}
	o.queue = append(o.queue, m)
	o.changed.signal()
}

// close makes run end once the queue is sent.
func (o *outbox[T]) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.signal()
}

// waitBelow waits until fewer than n messages are queued or being sent. Owners
// call it before they take more from a peer that does not read its answers.
func (o *outbox[T]) waitBelow(ctx context.Context, n int) error {
	for {
		changed := o.atLeast(n)
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// atLeast is nil if fewer than n messages are queued or being sent, and otherwise a
// channel that is closed when that may have changed.
func (o *outbox[T]) atLeast(n int) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue)+o.sending < n {
		return nil
	}
	return o.changed.wait()
}

// run sends what is queued until the box is closed and empty, ctx ends, or a
// send fails.
func (o *outbox[T]) run(ctx context.Context, send func(T) error) error {
	for {
		queue, closed, changed := o.take()
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

// take takes what is queued. If nothing is, changed is closed when that may have
// changed, unless the box is closed.
func (o *outbox[T]) take() (queue []T, closed bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue, o.queue, o.sending = o.queue, nil, len(o.queue)
	if len(queue) == 0 && !o.closed {
		changed = o.changed.wait()
	}
	return queue, o.closed, changed
}

func (o *outbox[T]) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sending--
	o.changed.signal()
}
