package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// goodbye is how long a drained executor waits for the service to end the stream.
const goodbye = 5 * time.Second

type evictStream = grpc.BidiStreamingClient[reprievev1.EvictRequest, reprievev1.EvictResponse]

// stream is one stream's life. It reports whether the service answered hello.
func (e *Executor) stream(parent context.Context) (welcomed bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	stream, err := e.client.Evict(ctx)
	if err != nil {
		return false, err
	}
	fresh := in(e.conf.ConfirmAfter)
	// A stream that is broken already tells why when it is read.
	if err := stream.Send(e.hello()); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	first, err := stream.Recv()
	if err != nil {
		return false, streamEnd(err)
	}
	if first.GetWelcome() == nil {
		return false, fmt.Errorf("the service answered hello with %T instead of a welcome", first.GetMessage())
	}
	e.welcomed(fresh)
	e.losses.back(ctx)
	e.refill()
	var wg sync.WaitGroup
	wg.Go(func() { e.send(ctx, cancel, stream) })
	defer wg.Wait()
	defer cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			return true, streamEnd(err)
		}
		switch m := m.GetMessage().(type) {
		case *reprievev1.EvictResponse_Order:
			// A task outlives its stream, so it gets Run's context.
			e.order(parent, m.Order)
		case *reprievev1.EvictResponse_Recall:
			e.recall(m.Recall)
		case *reprievev1.EvictResponse_ResultAck:
			e.acknowledged(m.ResultAck)
		case *reprievev1.EvictResponse_Extended:
			e.extended(m.Extended)
		}
	}
}

// welcomed notes that the service has answered hello, and until when that vouches
// for its orders.
func (e *Executor) welcomed(fresh time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status.Connected = true
	e.status.Streams++
	e.fresh = fresh
}

// hello names the orders that are still held, so that they are not given out anew.
func (e *Executor) hello() *reprievev1.EvictRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &reprievev1.ExecutorHello{ExecutorId: e.conf.ID, Clusters: e.conf.Clusters, Capacity: e.conf.Capacity, Version: e.conf.Version, NodeOrders: e.conf.NodeHandler != nil}
	for token := range e.tasks {
		h.HeldTokens = append(h.HeldTokens, token)
	}
	return &reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: h}}
}

// refill begins a stream's outbox with what an earlier stream may not have
// delivered: the drain, results without acknowledgement and extensions.
func (e *Executor) refill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outbox = nil
	if e.draining {
		e.outbox = append(e.outbox, &reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Drain{Drain: &reprievev1.Drain{}}})
	}
	for token, t := range e.tasks {
		switch {
		case t.stage == answered:
			e.outbox = append(e.outbox, t.answer)
		case !e.conf.NoAutoExtend || t.stage == asking || t.waits():
			e.outbox = append(e.outbox, extendMessage(token))
		}
	}
	e.wakeSender()
}

// waits reports whether a caller of Extend waits for a reply.
func (t *Task) waits() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting) > 0
}

// send sends what is posted until the stream ends, or closes it once drained.
func (e *Executor) send(ctx context.Context, cancel context.CancelFunc, stream evictStream) {
	for {
		messages, last := e.take()
		for _, m := range messages {
			if stream.Send(m) != nil {
				// The receiver learns why.
				return
			}
		}
		if last {
			_ = stream.CloseSend()
			timer, stop := context.WithTimeout(ctx, goodbye)
			defer stop()
			<-timer.Done()
			cancel()
			return
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
			return
		}
	}
}

// take empties the outbox and reports whether nothing follows it.
func (e *Executor) take() (messages []*reprievev1.EvictRequest, last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	messages, e.outbox = e.outbox, nil
	last = e.draining && len(e.tasks) == 0
	e.closing = e.closing || last
	return messages, last
}
