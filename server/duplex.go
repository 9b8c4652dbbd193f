package server

import (
	"context"
	"sync"

	"github.com/reprieve-dev/reprieve/engine"
)

// duplex runs the two sides of a bidirectional stream.
type duplex[T any] struct {
	ctx context.Context
	// stopped is closed when the engine has stopped.
	stopped <-chan struct{}
	// running has what run leaves behind for a moment.
	running *sync.WaitGroup
	// receive takes the peer's messages until it has no more, which is nil once
	// all are answered, or one is bad.
	receive func() error
	out     *outbox[T]
	send    func(T) error
}

// run returns why the stream ends. Receiving and sending may block on the peer
// for as long as the call is there; both end with it, so run does not wait for them.
func (d *duplex[T]) run() error {
	received := make(chan error, 1)
	d.running.Go(func() { received <- guard(d.receive) })
	sent := make(chan error, 1)
	d.running.Go(func() { sent <- guard(func() error { return d.out.run(d.ctx, d.send) }) })
	for {
		select {
		case err := <-received:
			if err != nil {
				return err
			}
			// The peer has no more to say, and waits for the rest of the answers.
			d.out.close()
			received = nil
		case err := <-sent:
			return err
		case <-d.ctx.Done():
			return context.Cause(d.ctx)
		case <-d.stopped:
			return engine.ErrStopped
		}
	}
}
