package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// defaultHeartbeat and defaultBatchEvents stand in for what a welcome leaves out.
	defaultHeartbeat   = 10 * time.Second
	defaultBatchEvents = 1000
	// maxBatchEvents is the contract's bound.
	maxBatchEvents = 10000
	// lookEvery is how often it is looked for another controller of the nodes' health.
	lookEvery = time.Minute
)

// errResync ends a round of list and watch because the service wants another.
var errResync = errors.New("the service asks for a new list")

// feedSession is one stream of a feeder.
type feedSession struct {
	feeder *Feeder
	wait   *backoff
	stream grpc.BidiStreamingClient[reprievev1.FeedRequest, reprievev1.FeedResponse]
	cancel context.CancelCauseFunc
	limit  int
	beat   time.Duration

	sendMu   sync.Mutex // guards the stream's sending side and sequence
	sequence uint64

	mu      sync.Mutex // guards what follows
	relist  context.CancelCauseFunc
	acked   uint64
	moved   chan struct{} // closed and replaced when acked moves
	listEnd uint64        // sequence of the current list's end; 0 before it
	listed  bool          // a list was acknowledged since the back-off was last used
	// lifecycle is what was last found of another controller of the nodes' health,
	// told what the service knows of that.
	lifecycle, told string
}

// run drives the stream to its end: nil if the source has ended and all is
// acknowledged.
func (s *feedSession) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	s.cancel, s.moved = cancel, make(chan struct{})
	defer cancel(nil)
	if err := s.open(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.receive()) })
	wg.Go(func() { s.heartbeats(ctx) })
	if s.feeder.conf.NodeLifecycleController != nil {
		wg.Go(func() { s.lookAgain(ctx) })
	}
	err := s.rounds(ctx)
	if err == nil {
		// The service sees the end before the stream is torn down.
		s.sendMu.Lock()
		_ = s.stream.CloseSend()
		s.sendMu.Unlock()
	}
	cancel(err)
	wg.Wait()
	if s.takeListed() {
		s.wait.reset()
	}
	return err
}

// open says hello and reads the welcome.
func (s *feedSession) open(ctx context.Context) error {
	f := s.feeder
	stream, err := f.client.Feed(ctx)
	if err != nil {
		return err
	}
	s.stream = stream
	f.setProgress(0, 0)
	hello := &reprievev1.FeedHello{
		Cluster: f.conf.Cluster, ClusterUid: f.conf.ClusterUID, FeederId: f.conf.FeederID, FeederEpoch: f.conf.Epoch,
		AgentVersion: f.conf.AgentVersion, KubernetesVersion: f.conf.KubernetesVersion,
	}
	if f.conf.NodeLifecycleController != nil {
		hello.NodeLifecycleController = cut(f.conf.NodeLifecycleController(ctx))
		s.lifecycle, s.told = hello.NodeLifecycleController, hello.NodeLifecycleController
	}
	s.sequence = 1
	// A stream that is broken already tells why when it is read.
	if err := stream.Send(&reprievev1.FeedRequest{Sequence: 1, Message: &reprievev1.FeedRequest_Hello{Hello: hello}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return streamEnd(err)
	}
	w := first.GetWelcome()
	if w == nil {
		return fmt.Errorf("the service answered hello with %T instead of a welcome", first.GetMessage())
	}
	f.losses.back(ctx)
	s.beat = w.GetHeartbeatInterval().AsDuration()
	if s.beat <= 0 {
		s.beat = defaultHeartbeat
	}
	s.limit = min(int(w.GetMaxBatchEvents()), maxBatchEvents)
	if s.limit == 0 {
		s.limit = defaultBatchEvents
	}
	f.welcomed(w)
	f.setMode(w.GetMode())
	f.setNodeHealth(w.GetNodeHealth())
	return nil
}

// welcomed notes that a stream is open.
func (f *Feeder) welcomed(w *reprievev1.FeedWelcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected, f.status.ServerVersion = true, w.GetServerVersion()
	f.status.Sequence = 1
}

// streamEnd is the error of a stream that ended without one.
func streamEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the service ended the stream")
	}
	return err
}

// receive takes the service's answers until the stream ends.
func (s *feedSession) receive() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return streamEnd(err)
		}
		switch m := m.GetMessage().(type) {
		case *reprievev1.FeedResponse_Ack:
			s.acknowledged(m.Ack)
		case *reprievev1.FeedResponse_ResyncRequired:
			s.feeder.log.Info("the service asks for a new list", "reason", m.ResyncRequired.GetReason())
			s.resync()
		case *reprievev1.FeedResponse_ModeChanged:
			s.feeder.setMode(m.ModeChanged.GetMode())
		case *reprievev1.FeedResponse_NodeHealthChanged:
			s.feeder.setNodeHealth(m.NodeHealthChanged.GetNodeHealth())
		}
		// What a later service may say besides is not for this version.
	}
}

// resync ends the round under way; before the first there is none to end.
func (s *feedSession) resync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relist != nil {
		s.relist(errResync)
	}
}

func (s *feedSession) acknowledged(ack *reprievev1.Ack) {
	s.mu.Lock()
	// The end of a list that was begun again since says nothing of the new one.
	synced := ack.GetSynced() && ack.GetSequence() == s.listEnd
	if ack.GetSequence() > s.acked {
		s.acked = ack.GetSequence()
		close(s.moved)
		s.moved = make(chan struct{})
	}
	s.listed = s.listed || synced
	acked := s.acked
	s.mu.Unlock()
	s.feeder.setProgress(0, acked)
	if synced {
		s.feeder.setSynced(true)
	}
}

func (s *feedSession) takeListed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := s.listed
	s.listed = false
	return listed
}

// heartbeats sends a heartbeat each interval. A heartbeat of a list under way
// says only that the feed is there: the cluster is not synced before its end.
func (s *feedSession) heartbeats(ctx context.Context) {
	for {
		timer, cancel := context.WithTimeout(ctx, s.beat)
		<-timer.Done()
		cancel()
		if ctx.Err() != nil {
			return
		}
		if s.feeder.conf.Alive != nil && s.feeder.Status().Synced && (!s.feeder.conf.Alive(ctx) || ctx.Err() != nil) {
			continue
		}
		if _, err := s.send(ctx, &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: s.heartbeat()}}); err != nil {
			return
		}
	}
}

// heartbeat is the next one, with what is news to the service. One that is not sent ends the stream.
func (s *feedSession) heartbeat() *reprievev1.Heartbeat {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lifecycle == s.told {
		return &reprievev1.Heartbeat{}
	}
	s.told = s.lifecycle
	return &reprievev1.Heartbeat{NodeLifecycleController: proto.String(s.told)}
}

// lookAgain looks now and then whether another controller of the nodes' health has come or gone.
func (s *feedSession) lookAgain(ctx context.Context) {
	for {
		timer, cancel := context.WithTimeout(ctx, lookEvery)
		<-timer.Done()
		cancel()
		if ctx.Err() != nil {
			return
		}
		found := cut(s.feeder.conf.NodeLifecycleController(ctx))
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.lifecycle = found
		s.mu.Unlock()
	}
}

// send gives a message its sequence and sends it. After an error ctx is done.
func (s *feedSession) send(ctx context.Context, m *reprievev1.FeedRequest) (uint64, error) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	m.Sequence = s.sequence + 1
	if _, ok := m.GetMessage().(*reprievev1.FeedRequest_SyncEnd); ok {
		// Noted before it is sent, so that its acknowledgement cannot come first.
		s.mu.Lock()
		s.listEnd = m.Sequence
		s.mu.Unlock()
	}
	if err := s.stream.Send(m); errors.Is(err, io.EOF) {
		// The receiver learns why, and cancels.
		<-ctx.Done()
		return 0, context.Cause(ctx)
	} else if err != nil {
		s.cancel(err)
		return 0, err
	}
	s.sequence = m.Sequence
	s.feeder.setProgress(m.Sequence, 0)
	return m.Sequence, nil
}

// setProgress moves the status forward; both zero begins a stream.
func (f *Feeder) setProgress(sequence, acked uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sequence == 0 && acked == 0 {
		f.status.Sequence, f.status.Acked = 0, 0
	}
	// What is acknowledged was sent, also where the sender has not come to say so.
	f.status.Sequence = max(f.status.Sequence, sequence, acked)
	f.status.Acked = max(f.status.Acked, acked)
}
