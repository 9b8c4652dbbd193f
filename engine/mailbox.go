package engine

import (
	"context"
	"sync"
	"sync/atomic"
)

// activity counts messages that are queued or being handled, over all
// mailboxes of an engine. At zero nothing happens any more until time moves or
// somebody calls: the engine has settled. Virtual time is moved only then.
type activity struct {
	n       atomic.Int64
	waiting atomic.Int64

	mu   sync.Mutex // guards idle
	idle chan struct{}
}

func (a *activity) add(n int) { a.n.Add(int64(n)) }

func (a *activity) done(n int) {
	if a.n.Add(-int64(n)) != 0 || a.waiting.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.idle != nil && a.n.Load() == 0 {
		close(a.idle)
		a.idle = nil
	}
}

// settle waits until nothing is queued or being handled.
func (a *activity) settle(ctx context.Context) error {
	a.waiting.Add(1)
	defer a.waiting.Add(-1)
	for {
		a.mu.Lock()
		if a.n.Load() == 0 {
			a.mu.Unlock()
			return nil
		}
		if a.idle == nil {
			a.idle = make(chan struct{})
		}
		idle := a.idle
		a.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// mailbox is an unbounded queue with one reader that takes all there is at
// once. It is unbounded because shards, committer and dispatchers send to each
// other: what bounds it is at the edges (the feed's window, executors' credit).
type mailbox[T any] struct {
	activity *activity
	wake     chan struct{} // one slot

	mu     sync.Mutex // guards what follows
	queue  []T
	closed bool
}

func newMailbox[T any](a *activity) *mailbox[T] {
	return &mailbox[T]{activity: a, wake: make(chan struct{}, 1)}
}

// put queues messages in order. A mailbox that is closed drops them, and put
// reports false.
func (m *mailbox[T]) put(msgs ...T) (taken bool) {
	if len(msgs) == 0 {
		return true
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	m.activity.add(len(msgs))
	m.queue = append(m.queue, msgs...)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// take waits for messages and returns all of them; nil when ctx ends. spare is
// room to reuse. The caller says done(len) when it has handled them.
func (m *mailbox[T]) take(ctx context.Context, spare []T) []T {
	for {
		m.mu.Lock()
		if len(m.queue) > 0 {
			msgs := m.queue
			m.queue = room(spare)
			m.mu.Unlock()
			return msgs
		}
		m.mu.Unlock()
		select {
		case <-m.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *mailbox[T]) done(n int) { m.activity.done(n) }

// close drops what is queued and what comes, so that nothing waits for it.
func (m *mailbox[T]) close() { m.seal() }

// seal closes the mailbox and returns what was queued.
func (m *mailbox[T]) seal() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	queued := m.queue
	m.activity.done(len(queued))
	m.queue, m.closed = nil, true
	return queued
}

// tryTake returns what is queued without waiting; nil if nothing is.
func (m *mailbox[T]) tryTake(spare []T) []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		return nil
	}
	msgs := m.queue
	m.queue = room(spare)
	return msgs
}

// maxSpare is how many messages' room is kept: what a burst needed goes with it.
const maxSpare = 8192

func room[T any](spare []T) []T {
	if cap(spare) > maxSpare {
		return nil
	}
	return spare[:0]
}
