//go:build crash

package crash

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// source is a cluster that can be fed.
type source interface {
	cluster() string
	// list is the whole cluster as events, and the number of the last change in it.
	list() ([]*reprievev1.Event, uint64)
	take() []change
	woken() <-chan struct{}
	// acknowledge: the service has all changes up to number on its disk.
	acknowledge(number uint64)
}

// feeder is one Feed stream. It is no client of ours, so that what was acknowledged is known to the message.
type feeder struct {
	w      source
	stream reprievev1.FeedService_FeedClient
	seq    uint64
	// ends is the change that each message ends with, by sequence.
	ends chan sent
	// listed is set just before the end of the list is sent: from here on orders may come.
	listed atomic.Bool
	// listedAt is when it was set; to be read once it is.
	listedAt time.Time
	// synced is closed when the service says that it has the list.
	synced chan struct{}
	// relist asks for the whole list again on the same stream.
	relist chan struct{}
	cancel context.CancelFunc
	// done is closed when nothing takes changes from the world for this stream any more.
	done  chan struct{}
	ended chan struct{} // closed when the stream has ended
	// span is the time in which the service is known to have been synced by this feed.
	span span
	err  error // how; to be read once ended is closed
}

// feedHello is how a feed introduces itself, and how long its list takes.
type feedHello struct {
	feeder string
	epoch  uint64
	slow   time.Duration
}

// span is the time from the acknowledgement of a list to that of the last message before the list was void.
type span struct {
	mu       sync.Mutex // guards what follows
	from, to time.Time
	over     bool
}

func (s *span) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from, s.to, s.over = time.Now(), time.Now(), false
}

// acknowledged: the list still stood.
func (s *span) acknowledged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.to = time.Now()
	}
}

// end says that the list is void, since no longer than margin before the last acknowledgement.
func (s *span) end(margin time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.to, s.over = s.to.Add(-margin), true
	}
}

// has reports whether an instant lies in it.
func (s *span) has(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.from.IsZero() && at.After(s.from) && at.Before(s.to)
}

type sent struct {
	seq, change uint64
	end         bool
}

func startFeed(ctx context.Context, w source, l *life, h feedHello) (*feeder, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := reprievev1.NewFeedServiceClient(l.conn).Feed(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	f := &feeder{w: w, stream: stream, ends: make(chan sent, 1<<16), synced: make(chan struct{}), relist: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}), ended: make(chan struct{})}
	hello := &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{Cluster: w.cluster(), ClusterUid: "uid-" + w.cluster(), FeederId: h.feeder, FeederEpoch: h.epoch}}
	if err := f.send(&reprievev1.FeedRequest{Message: hello}, 0, false); err != nil {
		cancel()
		return nil, err
	}
	go f.receive()
	go f.run(ctx, h.slow)
	return f, nil
}

func (f *feeder) send(m *reprievev1.FeedRequest, change uint64, end bool) error {
	f.seq++
	m.Sequence = f.seq
	f.ends <- sent{f.seq, change, end}
	return f.stream.Send(m)
}

// list sends the whole list, which takes so long, and reports whether the stream is still there.
func (f *feeder) list(ctx context.Context, slow time.Duration) bool {
	all, last := f.w.list()
	if f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}, 0, false) != nil {
		return false
	}
	for len(all) > 0 {
		n := min(len(all), 50)
		if f.batch(all[:n], 0) != nil {
			return false
		}
		all = all[n:]
	}
	if slow > 0 {
		rest(ctx, slow)
	}
	if !f.listed.Load() {
		f.listedAt = time.Now()
		f.listed.Store(true)
	}
	return f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}}, last, true) == nil
}

// rest waits for so long, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// run sends the list, and then changes and heartbeats until the stream ends.
func (f *feeder) run(ctx context.Context, slow time.Duration) {
	defer close(f.done)
	if !f.list(ctx, slow) {
		return
	}
	for {
		beat, cancel := context.WithTimeout(ctx, time.Second)
		select {
		case <-f.w.woken():
		case <-f.relist:
			if !f.list(ctx, 0) {
				cancel()
				return
			}
		case <-beat.Done():
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		changes := f.w.take()
		for len(changes) > 0 {
			n := min(len(changes), 20)
			events := make([]*reprievev1.Event, n)
			for i, c := range changes[:n] {
				events[i] = c.event
			}
			if f.batch(events, changes[n-1].number) != nil {
				return
			}
			changes = changes[n:]
		}
		if f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}, 0, false) != nil {
			return
		}
	}
}

func (f *feeder) batch(events []*reprievev1.Event, change uint64) error {
	return f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}}, change, false)
}

// stop ends the stream. What changes from here on is another feed's to tell.
func (f *feeder) stop() {
	f.cancel()
	<-f.done
}

func (f *feeder) receive() {
	defer close(f.ended)
	synced := false
	// dropped: the service has dropped what was sent and counts from the next list.
	dropped := false
	for {
		m, err := f.stream.Recv()
		if err != nil {
			f.err = err
			return
		}
		if m.GetResyncRequired() != nil {
			dropped = true
			f.span.end(transit)
			select {
			case f.relist <- struct{}{}:
			default:
			}
		}
		ack := m.GetAck()
		if ack == nil {
			continue
		}
		f.span.acknowledged()
		for {
			s := <-f.ends
			// The end of a list that was dropped as well is passed without having been acknowledged itself.
			if s.end && ack.GetSynced() && s.seq == ack.GetSequence() {
				dropped = false
				f.span.begin()
			}
			if s.change > 0 && !dropped {
				f.w.acknowledge(s.change)
			}
			if s.end && !synced {
				synced = true
				close(f.synced)
			}
			if s.seq == ack.GetSequence() {
				break
			}
		}
	}
}
