package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// maxBatchEvents is the contract's bound on the events of one batch.
const maxBatchEvents = 10_000

// maxUnread is how many answers a peer may leave unread before the service
// reads no more of it.
const maxUnread = 1024

// feedService implements reprieve.v1.FeedService.
type feedService struct {
	reprievev1.UnimplementedFeedServiceServer
	engine  *engine.Engine
	clock   clock.Clock
	metrics *metrics
	// stopped is closed when the engine has stopped.
	stopped <-chan struct{}
	// running has the streams' goroutines.
	running *sync.WaitGroup
}

// Feed implements the RPC.
func (s *feedService) Feed(stream reprievev1.FeedService_FeedServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	f := &feedStream{
		feedService: s, stream: stream, ctx: ctx, end: cancel,
		out: &outbox[*reprievev1.FeedResponse]{},
	}
	if err := f.open(); err != nil {
		return err
	}
	defer f.close()
	d := &duplex[*reprievev1.FeedResponse]{ctx: ctx, stopped: s.stopped, running: s.running, receive: f.receive, out: f.out, send: stream.Send}
	return d.run()
}

// feedStream is one call of Feed. The stream outlives the engine's session: when
// the store is opened again the feed begins anew on the same stream.
type feedStream struct {
	*feedService
	stream reprievev1.FeedService_FeedServer
	ctx    context.Context
	// end ends the call with an error.
	end   context.CancelCauseFunc
	out   *outbox[*reprievev1.FeedResponse]
	hello engine.FeedHello
	// sequence is that of the last message received. Only the receiver uses it.
	sequence uint64

	mu sync.Mutex // guards what follows
	// session is nil while messages are dropped until SyncBegin.
	session *engine.FeedSession
	// sink is that of the session opened last.
	sink  *feedSink
	over  bool
	last  uint64 // the last sequence acknowledged
	acked wakeup // when one is, or when the session is lost
	// arrivals are the messages that have yet to be acknowledged, in order.
	arrivals []arrival
	// mode is what the peer was told last.
	mode   engine.Mode
	health engine.NodeHealth
}

// arrival is when a message came, and how many events it had.
type arrival struct {
	sequence uint64
	at       time.Time
	events   int
}

// open takes the hello and sends the welcome.
func (f *feedStream) open() error {
	m, err := f.stream.Recv()
	if err != nil {
		return received(err)
	}
	if err := f.inOrder(m); err != nil {
		return err
	}
	h := m.GetHello()
	if h == nil {
		return fmt.Errorf("%w: the first message must be hello", engine.ErrFeedOrder)
	}
	f.hello = engine.FeedHello{
		Cluster: h.GetCluster(), ClusterUID: h.GetClusterUid(), FeederID: h.GetFeederId(), Epoch: h.GetFeederEpoch(),
		AgentVersion: h.GetAgentVersion(), KubernetesVersion: h.GetKubernetesVersion(),
		NodeLifecycle: h.GetNodeLifecycleController(),
	}
	welcome, err := f.begin()
	if err != nil {
		return err
	}
	err = f.stream.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Welcome{Welcome: &reprievev1.FeedWelcome{
		HeartbeatInterval: durationpb.New(welcome.HeartbeatInterval), Mode: reprievev1.Mode(welcome.Mode),
		ServerVersion: buildinfo.Version(), MaxBatchEvents: maxBatchEvents,
		NodeHealth: reprievev1.NodeHealthMode(welcome.NodeHealth),
	}}})
	if err != nil {
		f.close()
	}
	return err
}

// received is what the end of a peer's messages means where more were expected.
func received(err error) error {
	if errors.Is(err, io.EOF) {
		return badField("message", "the stream ended before its first message; send hello")
	}
	return err
}

// inOrder checks that no message is missing.
func (f *feedStream) inOrder(m *reprievev1.FeedRequest) error {
	if m.GetSequence() != f.sequence+1 {
		return fmt.Errorf("%w: sequence %d after %d; it counts every message of the stream from 1", engine.ErrFeedOrder, m.GetSequence(), f.sequence)
	}
	f.sequence++
	return nil
}

// begin takes a session of the engine.
func (f *feedStream) begin() (engine.FeedWelcome, error) {
	sink := &feedSink{stream: f}
	f.mu.Lock()
	f.sink = sink
	f.mu.Unlock()
	session, welcome, err := f.engine.OpenFeed(f.hello, sink)
	if err != nil {
		return welcome, err
	}
	f.mu.Lock()
	over := f.over
	if !over && !sink.lost {
		f.session = session
	}
	f.mu.Unlock()
	if over {
		// Not under mu: the engine holds its own lock when it calls the sink.
		session.Close()
		return welcome, context.Canceled
	}
	return welcome, nil
}

// close ends the session, and any that begin may still take.
func (f *feedStream) close() {
	f.mu.Lock()
	f.over = true
	session := f.session
	f.mu.Unlock()
	if session != nil {
		session.Close()
	}
}

// receive handles messages until the peer has no more, which is nil once all
// are acknowledged, or one fails.
func (f *feedStream) receive() error {
	for {
		if err := f.out.waitBelow(f.ctx, maxUnread); err != nil {
			return err
		}
		m, err := f.stream.Recv()
		if errors.Is(err, io.EOF) {
			return f.waitAcked()
		}
		if err != nil {
			return err
		}
		if err := f.inOrder(m); err != nil {
			return err
		}
		if err := f.handle(m); err != nil {
			return err
		}
	}
}

// handle gives a message to the session. A session that was lost with the store
// drops messages until the peer begins a new list.
func (f *feedStream) handle(m *reprievev1.FeedRequest) error {
	if m.GetHello() != nil {
		return fmt.Errorf("%w: hello is for the first message only", engine.ErrFeedOrder)
	}
	if h := m.GetHeartbeat(); h != nil && h.NodeLifecycleController != nil {
		// It is told once. A session that is opened anew on this stream begins with it.
		f.hello.NodeLifecycle = h.GetNodeLifecycleController()
	}
	session := f.current()
	if session == nil {
		if m.GetSyncBegin() == nil {
			return nil
		}
		var err error
		if session, err = f.reopen(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.arrivals = append(f.arrivals, arrival{m.GetSequence(), f.clock.Now(), len(m.GetBatch().GetEvents())})
	f.mu.Unlock()
	err := apply(f.ctx, session, m)
	if errors.Is(err, engine.ErrUnavailable) {
		f.lost(session)
		return nil
	}
	return err
}

func (f *feedStream) current() *engine.FeedSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.session
}

// lost drops a session that the engine gave up.
func (f *feedStream) lost(session *engine.FeedSession) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session == session {
		f.session, f.arrivals = nil, nil
	}
}

// reopen waits until the engine serves again and opens the feed anew.
func (f *feedStream) reopen() (*engine.FeedSession, error) {
	for {
		if err := f.engine.WaitServing(f.ctx); err != nil {
			return nil, err
		}
		_, err := f.begin()
		if session := f.current(); err == nil && session != nil {
			return session, nil
		}
		if err != nil && !errors.Is(err, engine.ErrUnavailable) {
			return nil, err
		}
	}
}

// waitAcked waits until all that was received is acknowledged. Without a
// session nothing more will be.
func (f *feedStream) waitAcked() error {
	for {
		f.mu.Lock()
		last, session, acked := f.last, f.session, f.acked.wait()
		f.mu.Unlock()
		// The hello is answered by the welcome.
		if session == nil || last >= f.sequence || f.sequence == 1 {
			return nil
		}
		select {
		case <-acked:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
}

// apply hands one message to the engine.
func apply(ctx context.Context, session *engine.FeedSession, m *reprievev1.FeedRequest) error {
	seq := m.GetSequence()
	switch msg := m.GetMessage().(type) {
	case *reprievev1.FeedRequest_SyncBegin:
		return session.SyncBegin(ctx, seq)
	case *reprievev1.FeedRequest_SyncEnd:
		return session.SyncEnd(ctx, seq)
	case *reprievev1.FeedRequest_Heartbeat:
		if msg.Heartbeat.NodeLifecycleController != nil {
			session.NodeLifecycle(msg.Heartbeat.GetNodeLifecycleController())
		}
		return session.Heartbeat(ctx, seq)
	case *reprievev1.FeedRequest_Batch:
		events := make([]engine.Event, len(msg.Batch.GetEvents()))
		for i, e := range msg.Batch.GetEvents() {
			events[i] = wire.Event(e)
		}
		err := session.Batch(ctx, seq, events)
		if errors.Is(err, engine.ErrUIDConflict) {
			return &fieldError{field: "batch.events", err: err}
		}
		return err
	}
	return badField("message", "is of no known kind")
}

// feedSink takes what the engine says to one session.
type feedSink struct {
	stream *feedStream
	lost   bool // guarded by stream.mu
}

// Ack implements engine.FeedSink. An acknowledgement stands for all before it,
// so one that has yet to be sent gives way to the next, unless it ends a list. What
// metrics tell of the messages is told here, where the cluster cannot have been
// forgotten: later it would bring the cluster's series back.
func (s *feedSink) Ack(sequence uint64, synced bool) {
	f := s.stream
	f.out.put(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Ack{Ack: &reprievev1.Ack{Sequence: sequence, Synced: synced}}},
		func(last **reprievev1.FeedResponse) bool {
			ack := (*last).GetAck()
			if ack == nil || ack.GetSynced() {
				return false
			}
			ack.Sequence, ack.Synced = sequence, synced
			return true
		})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last, sequence)
	now := f.clock.Now()
	for len(f.arrivals) > 0 && f.arrivals[0].sequence <= sequence {
		f.metrics.feedLag.WithLabelValues(f.hello.Cluster).Observe(now.Sub(f.arrivals[0].at).Seconds())
		f.metrics.events.WithLabelValues(f.hello.Cluster).Add(float64(f.arrivals[0].events))
		f.arrivals = f.arrivals[1:]
	}
	f.acked.signal()
}

// Resync implements engine.FeedSink: the session is lost, the stream is not.
func (s *feedSink) Resync(reason string) {
	f := s.stream
	f.mu.Lock()
	s.lost = true
	if f.sink == s {
		f.session, f.arrivals = nil, nil
	}
	f.acked.signal()
	f.mu.Unlock()
	f.out.put(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_ResyncRequired{ResyncRequired: &reprievev1.ResyncRequired{Reason: reason}}}, nil)
}

// Mode implements engine.FeedSink. The welcome tells the first one.
func (s *feedSink) Mode(mode engine.Mode) {
	f := s.stream
	f.mu.Lock()
	told := f.mode
	f.mode = mode
	f.mu.Unlock()
	if told != engine.ModeUnspecified && told != mode {
		f.out.put(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_ModeChanged{
			ModeChanged: &reprievev1.ModeChanged{Mode: reprievev1.Mode(mode)},
		}}, nil)
	}
}

// NodeHealth implements engine.FeedSink. The welcome tells the first one.
func (s *feedSink) NodeHealth(mode engine.NodeHealth) {
	f := s.stream
	f.mu.Lock()
	told := f.health
	f.health = mode
	f.mu.Unlock()
	if told != engine.NodeHealthUnspecified && told != mode {
		f.out.put(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_NodeHealthChanged{
			NodeHealthChanged: &reprievev1.NodeHealthChanged{NodeHealth: reprievev1.NodeHealthMode(mode)},
		}}, nil)
	}
}

// Ended implements engine.FeedSink. The context's first cause counts.
func (s *feedSink) Ended(err error) { s.stream.end(err) }
