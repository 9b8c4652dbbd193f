package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// evictionService implements reprieve.v1.EvictionService.
type evictionService struct {
	reprievev1.UnimplementedEvictionServiceServer
	engine *engine.Engine
	// stopped is closed when the engine has stopped.
	stopped <-chan struct{}
	// running has the streams' goroutines.
	running *sync.WaitGroup
}

// Evict implements the RPC.
func (s *evictionService) Evict(stream reprievev1.EvictionService_EvictServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	x := &evictStream{
		stream: stream, ctx: ctx, end: cancel, out: &outbox[*reprievev1.EvictResponse]{},
		queued: map[string]int{},
	}
	if err := x.open(s.engine); err != nil {
		return err
	}
	defer x.session.Close()
	d := &duplex[*reprievev1.EvictResponse]{ctx: ctx, stopped: s.stopped, running: s.running, receive: x.receive, out: x.out, send: x.send}
	return d.run()
}

// evictStream is one call of Evict.
type evictStream struct {
	stream  reprievev1.EvictionService_EvictServer
	ctx     context.Context
	end     context.CancelCauseFunc
	out     *outbox[*reprievev1.EvictResponse]
	session *engine.ExecutorSession

	mu sync.Mutex // guards what follows
	// capacity is the highest that the executor asked for.
	capacity int
	// queued counts by cluster the orders that have yet to be sent.
	queued map[string]int
	// unsettled counts answers that wait for the engine.
	unsettled int
	settled   wakeup // when unsettled changes
}

// open takes the hello, attaches the executor and sends the welcome.
func (x *evictStream) open(eng *engine.Engine) error {
	m, err := x.stream.Recv()
	if err != nil {
		return received(err)
	}
	h := m.GetHello()
	if h == nil {
		return badField("message", "the first message must be hello")
	}
	x.capacity = int(h.GetCapacity())
	x.session, err = eng.AttachExecutor(engine.ExecutorHello{
		ID: h.GetExecutorId(), Clusters: h.GetClusters(), Allowed: accessFrom(x.ctx).allows,
		Capacity: x.capacity, NodeOrders: h.GetNodeOrders(), HeldTokens: h.GetHeldTokens(),
	}, x)
	if err != nil {
		return err
	}
	// Orders wait in the outbox until this was sent.
	err = x.stream.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Welcome{
		Welcome: &reprievev1.ExecutorWelcome{ServerVersion: buildinfo.Version()},
	}})
	if err != nil {
		x.session.Close()
	}
	return err
}

// receive handles the executor's messages until it has no more, which is nil
// once all are answered, or one is bad.
func (x *evictStream) receive() error {
	for {
		if err := x.out.waitBelow(x.ctx, x.unreadLimit()); err != nil {
			return err
		}
		m, err := x.stream.Recv()
		if errors.Is(err, io.EOF) {
			return x.waitSettled(1)
		}
		if err != nil {
			return err
		}
		if err := x.handle(m); err != nil {
			return err
		}
	}
}

// unreadLimit leaves room for the orders themselves.
func (x *evictStream) unreadLimit() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := maxUnread
	for _, q := range x.queued {
		n += q
	}
	return n
}

func (x *evictStream) handle(m *reprievev1.EvictRequest) error {
	switch msg := m.GetMessage().(type) {
	case *reprievev1.EvictRequest_Hello:
		return badField("message", "hello is for the first message only")
	case *reprievev1.EvictRequest_Result:
		if err := x.waitSettled(maxUnread); err != nil {
			return err
		}
		x.settle(1)
		token := msg.Result.GetToken()
		x.session.Result(wire.Result(msg.Result), func(accepted bool) { x.resultTaken(token, accepted) })
	case *reprievev1.EvictRequest_Extend:
		if err := x.waitSettled(maxUnread); err != nil {
			return err
		}
		x.settle(1)
		token := msg.Extend.GetToken()
		x.session.Extend(token, func(left time.Duration, ok bool) { x.extended(token, left, ok) })
	case *reprievev1.EvictRequest_SetCapacity:
		return x.setCapacity(msg.SetCapacity.GetCluster(), int(msg.SetCapacity.GetCapacity()))
	case *reprievev1.EvictRequest_Drain:
		x.session.Drain()
	default:
		return badField("message", "is of no known kind")
	}
	return nil
}

func (x *evictStream) setCapacity(cluster string, capacity int) error {
	x.mu.Lock()
	x.capacity = max(x.capacity, capacity)
	x.mu.Unlock()
	if err := x.session.SetCapacity(cluster, capacity); err != nil {
		return &fieldError{field: "set_capacity.cluster", err: err}
	}
	return nil
}

// settle counts an answer that waits for the engine, or with -1 one that no longer does.
func (x *evictStream) settle(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unsettled += n
	x.settled.signal()
}

// waitSettled waits until fewer than n answers wait for the engine.
func (x *evictStream) waitSettled(n int) error {
	for {
		settled := x.unsettledAtLeast(n)
		if settled == nil {
			return nil
		}
		select {
		case <-settled:
		case <-x.ctx.Done():
			return context.Cause(x.ctx)
		}
	}
}

// unsettledAtLeast is nil if fewer than n answers wait for the engine, and otherwise a
// channel that is closed when that may have changed.
func (x *evictStream) unsettledAtLeast(n int) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.unsettled < n {
		return nil
	}
	return x.settled.wait()
}

func (x *evictStream) resultTaken(token string, accepted bool) {
	disposition := reprievev1.ResultAck_DISPOSITION_UNKNOWN
	if accepted {
		disposition = reprievev1.ResultAck_DISPOSITION_ACCEPTED
	}
	x.out.put(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_ResultAck{
		ResultAck: &reprievev1.ResultAck{Token: token, Disposition: disposition},
	}}, nil)
	x.settle(-1)
}

func (x *evictStream) extended(token string, left time.Duration, ok bool) {
	answer := &reprievev1.Extended{Token: token}
	if ok {
		answer.DeadlineIn = durationpb.New(left)
	}
	x.out.put(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Extended{Extended: answer}}, nil)
	x.settle(-1)
}

// send sends one message and gives back the place that an order had in the queue.
func (x *evictStream) send(m *reprievev1.EvictResponse) error {
	if o := m.GetOrder(); o != nil {
		cluster := o.GetEvictPod().GetCluster()
		if o.GetUpdateNode() != nil {
			cluster = o.GetUpdateNode().GetCluster()
		}
		x.mu.Lock()
		if x.queued[cluster]--; x.queued[cluster] == 0 {
			delete(x.queued, cluster)
		}
		x.mu.Unlock()
	}
	return x.stream.Send(m)
}

// Order implements engine.OrderSink. The engine gives out no more than the
// capacity; an executor that reads nothing is refused more all the same.
func (x *evictStream) Order(o engine.Order) bool {
	cluster := o.Cluster()
	x.mu.Lock()
	full := x.queued[cluster] >= x.capacity
	if !full {
		x.queued[cluster]++
	}
	x.mu.Unlock()
	if full || x.ctx.Err() != nil {
		return false
	}
	x.out.put(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Order{Order: wire.Order(&o)}}, nil)
	return true
}

// Recall implements engine.OrderSink.
func (x *evictStream) Recall(r engine.RecallOrder) {
	x.out.put(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Recall{
		Recall: &reprievev1.Recall{Token: r.Token, Reason: reprievev1.Recall_Reason(r.Reason)},
	}}, nil)
}

// Ended implements engine.OrderSink.
func (x *evictStream) Ended(err error) { x.end(err) }
