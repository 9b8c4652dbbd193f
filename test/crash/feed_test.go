//go:build crash

package crash

import (
	"context"
	"sync/atomic"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// feeder is one Feed stream. It is no client of ours, so that what was acknowledged is known to the message.
type feeder struct {
	w      *world
	stream reprievev1.FeedService_FeedClient
	seq    uint64
	// ends is the change that each message ends with, by sequence.
	ends chan sent
	// listed is set just before the end of the list is sent: from here on orders may come.
	listed atomic.Bool
	// synced is closed when the service says that it has the list.
	synced chan struct{}
}

type sent struct {
	seq, change uint64
	end         bool
}

func startFeed(ctx context.Context, w *world, l *life) (*feeder, error) {
	stream, err := reprievev1.NewFeedServiceClient(l.conn).Feed(ctx)
	if err != nil {
		return nil, err
	}
	f := &feeder{w: w, stream: stream, ends: make(chan sent, 1<<16), synced: make(chan struct{})}
	hello := &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{Cluster: clusterName, ClusterUid: "uid-c", FeederId: "f"}}
	if err := f.send(&reprievev1.FeedRequest{Message: hello}, 0, false); err != nil {
		return nil, err
	}
	go f.receive()
	go f.run(ctx)
	return f, nil
}

func (f *feeder) send(m *reprievev1.FeedRequest, change uint64, end bool) error {
	f.seq++
	m.Sequence = f.seq
	f.ends <- sent{f.seq, change, end}
	return f.stream.Send(m)
}

// run sends the list, and then changes and heartbeats until the stream ends.
func (f *feeder) run(ctx context.Context) {
	all, last := f.w.list()
	if f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}, 0, false) != nil {
		return
	}
	for len(all) > 0 {
		n := min(len(all), 50)
		if f.batch(all[:n], 0) != nil {
			return
		}
		all = all[n:]
	}
	f.listed.Store(true)
	if f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}}, last, true) != nil {
		return
	}
	for {
		beat, cancel := context.WithTimeout(ctx, time.Second)
		select {
		case <-f.w.wake:
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

func (f *feeder) receive() {
	synced := false
	for {
		m, err := f.stream.Recv()
		if err != nil {
			return
		}
		ack := m.GetAck()
		if ack == nil {
			continue
		}
		for {
			s := <-f.ends
			if s.change > 0 {
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
