//go:build crash

package crash

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/fault"
)

var (
	minutes = flag.Int("minutes", 0, "how long TestSoak stages faults")
	times   = flag.Int("times", 3, "how often TestFaults stages each fault; those that take long, once")
)

// faults are what goes wrong. The feed's timeout is 10 s here and an order's deadline 30 s.
func faults() []staged {
	all := []staged{
		{name: "killed", how: "SIGKILL, started again at once", do: func(s *stage) { s.restart(s.good) }},
		{name: "wall clock a day ahead", how: "the reading shifted while it runs, for 2 s", do: func(s *stage) { s.shifted(wallShift) }},
		{name: "wall clock a day behind", how: "the reading shifted while it runs, for 2 s", do: func(s *stage) { s.shifted(-wallShift) }},
		{name: "wall clock a day behind at a restart", how: "killed, started with the reading shifted", do: func(s *stage) {
			s.p.shift(-wallShift)
			s.restart(s.good)
		}},
		{name: "frozen", how: "SIGSTOP for 3 s", do: func(s *stage) { s.freeze(3 * time.Second) }},
		{name: "frozen past the feed's timeout", how: "SIGSTOP for 12 s", do: func(s *stage) { s.freeze(12 * time.Second) }, long: true},
		{name: "frozen past the orders' deadline", how: "SIGSTOP for 35 s", do: func(s *stage) { s.freeze(35 * time.Second) }, long: true},
		{name: "executor silent", how: "no answer for 35 s", do: func(s *stage) { s.habit(habit{silent: true}, 35*time.Second) }, long: true},
		{name: "executor slow", how: "2 s for each order, for 6 s", do: func(s *stage) { s.habit(habit{slow: 2 * time.Second}, 6*time.Second) }},
		{name: "executor answers twice", how: "for 3 s", do: func(s *stage) { s.habit(habit{twice: true}, 3*time.Second) }},
		{name: "executor answers with old tokens", how: "spent and invented ones beside each answer, for 3 s", do: func(s *stage) { s.habit(habit{old: true}, 3*time.Second) }},
		{name: "executor away for 1 s", how: "its stream cut; back with its tokens", do: func(s *stage) { s.vanish(time.Second, false) }},
		{name: "executor vanished", how: "its stream cut for 7 s; back without its tokens", do: func(s *stage) { s.vanish(7*time.Second, true) }},
		{name: "feed flaps", how: "its stream cut each second, 5 times", do: flap},
		{name: "feed repeats its list", how: "10 whole lists on one stream in 3 s", do: repeatLists},
		{name: "feed lists slowly", how: "4 s between the list's first event and its end", do: slowList},
		{name: "feed sends garbage", how: "six kinds of bad message, each on a stream of its own, refused with the right code", do: garbage},
		{name: "two feeds, one epoch", how: "a second feeder asks for the cluster 5 times", do: twoFeeds},
		{name: "two feeds, a higher epoch", how: "a second feeder takes the cluster over", do: higherEpoch},
		{name: "a watch that nobody reads", how: "opened with a small window and left", do: func(s *stage) { s.deaf(); s.pause(time.Second) }},
	}
	for effect, what := range map[fault.Effect]string{fault.Before: "EIO before a write", fault.After: "EIO at a sync, though it was written",
		fault.Torn: "EIO in the middle of a write", fault.NoSpace: "ENOSPC at a write"} {
		all = append(all, staged{name: what, how: "one commit of a random place fails, between engine and file", do: func(s *stage) {
			s.restart(os.Args[0], fmt.Sprintf("%s=%d:%d", faultyVariable, effect, 2+s.rng.IntN(60)))
			s.pause(3 * time.Second)
		}})
	}
	return all
}

func (s *stage) shifted(d time.Duration) {
	s.p.shift(d)
	s.pause(2 * time.Second)
	s.p.shift(0)
}

func (s *stage) freeze(d time.Duration) {
	if err := s.l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	s.pause(d)
	s.j.thaw()
	if err := s.l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) habit(h habit, d time.Duration) {
	s.x.behave(h)
	s.pause(d)
	s.x.behave(habit{})
}

func (s *stage) vanish(d time.Duration, forget bool) {
	s.set(func() { s.executorAway = true })
	s.x.vanish(forget)
	s.pause(d)
	s.set(func() { s.executorAway = false })
}

func flap(s *stage) {
	for range 5 {
		s.pause(time.Second)
		s.feed().cancel()
	}
}

func repeatLists(s *stage) {
	for range 10 {
		select {
		case s.feed().relist <- struct{}{}:
		default:
		}
		s.pause(300 * time.Millisecond)
	}
}

func slowList(s *stage) {
	s.set(func() { s.hello.slow = 4 * time.Second })
	s.feed().cancel()
	s.pause(time.Second)
	s.set(func() { s.hello.slow = 0 })
	s.pause(4 * time.Second)
}

// refusedWith opens a feed, sends what it is given, and wants the code.
func (s *stage) refusedWith(want codes.Code, hello *reprievev1.FeedHello, more ...*reprievev1.FeedRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), recoverWithin)
	defer cancel()
	stream, err := reprievev1.NewFeedServiceClient(s.l.conn).Feed(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = stream.Send(&reprievev1.FeedRequest{Sequence: 1, Message: &reprievev1.FeedRequest_Hello{Hello: hello}})
	for _, m := range more {
		_ = stream.Send(m)
	}
	for {
		if _, err := stream.Recv(); err != nil {
			if status.Code(err) != want {
				s.j.violation("a feed that had to be refused with %s ended with %v", want, err)
			}
			return
		}
	}
}

// garbage has the feeder come back and send what no feeder may.
func garbage(s *stage) {
	begin := &reprievev1.FeedRequest{Sequence: 2, Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}
	batch := func(seq uint64, e *reprievev1.Event) *reprievev1.FeedRequest {
		return &reprievev1.FeedRequest{Sequence: seq, Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: []*reprievev1.Event{e}}}}
	}
	upsert := reprievev1.Event_EVENT_TYPE_UPSERT
	for _, g := range []struct {
		want codes.Code
		more []*reprievev1.FeedRequest
	}{
		{codes.InvalidArgument, []*reprievev1.FeedRequest{begin, batch(3, &reprievev1.Event{Object: &reprievev1.Event_Node{Node: &reprievev1.Node{Name: "n", Uid: "u"}}})}},
		{codes.InvalidArgument, []*reprievev1.FeedRequest{begin, batch(3, &reprievev1.Event{Type: upsert, Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{Name: "p"}}})}},
		{codes.InvalidArgument, []*reprievev1.FeedRequest{{Sequence: 2}}},
		{codes.FailedPrecondition, []*reprievev1.FeedRequest{begin, batch(7, &reprievev1.Event{Type: upsert})}},
		{codes.FailedPrecondition, []*reprievev1.FeedRequest{begin, {Sequence: 3, Message: &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{Cluster: clusterName, ClusterUid: "uid-c", FeederId: "g"}}}}},
		{codes.FailedPrecondition, []*reprievev1.FeedRequest{{Sequence: 2, Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}}}},
	} {
		s.set(func() { s.feedAway = true })
		s.feed().cancel()
		<-s.feed().ended
		s.pause(20 * time.Millisecond)
		s.mu.Lock()
		hello := s.hello
		s.mu.Unlock()
		s.refusedWith(g.want, &reprievev1.FeedHello{Cluster: clusterName, ClusterUid: "uid-c", FeederId: hello.feeder, FeederEpoch: hello.epoch}, g.more...)
		s.set(func() { s.feedAway = false })
		s.pause(200 * time.Millisecond)
	}
}

func twoFeeds(s *stage) {
	for range 5 {
		select {
		case <-s.feed().synced:
		case <-s.feed().ended:
		}
		s.mu.Lock()
		epoch := s.hello.epoch
		s.mu.Unlock()
		s.refusedWith(codes.AlreadyExists, &reprievev1.FeedHello{Cluster: clusterName, ClusterUid: "uid-c", FeederId: "g", FeederEpoch: epoch})
		s.pause(200 * time.Millisecond)
	}
}

// higherEpoch has another feeder of the same world take over while the first is there.
func higherEpoch(s *stage) {
	old := s.feed()
	s.set(func() { s.hello.epoch, s.hello.feeder = s.hello.epoch+1, fmt.Sprintf("f%d", s.hello.epoch+1) })
	// The old one hears of it when the new one is there; until then it is asked to stay.
	f, err := startFeed(context.Background(), s.w, s.l, s.hello)
	if err != nil {
		s.t.Fatal(err)
	}
	s.j.relist(f)
	<-old.ended
	if status.Code(old.err) != codes.Aborted {
		s.j.violation("the older feed ended with %v", old.err)
	}
	f.stop()
}

// TestFaults stages each fault by itself on a service under load.
func TestFaults(t *testing.T) {
	s := newStage(t, build(t, moduleRoot(t)), chosenSeed())
	for _, f := range faults() {
		n := *times
		if f.long {
			n = 1
		}
		for range n {
			s.meet(f)
		}
	}
	s.finish()
}

// TestClockAheadAtARestart starts the service a day later than it stopped, by its wall clock: it takes the cluster for
// new, and every wait is whole.
func TestClockAheadAtARestart(t *testing.T) {
	s := newStage(t, build(t, moduleRoot(t)), chosenSeed())
	s.meet(staged{name: "wall clock a day ahead at a restart", how: "killed, started with the reading shifted: an adoption", do: func(s *stage) {
		s.down()
		s.j.adopted()
		s.p.shift(wallShift + time.Minute)
		s.up()
	}})
	s.pause(5 * time.Second)
	s.finish()
}

// TestSoak stages faults at random for -minutes.
func TestSoak(t *testing.T) {
	if *minutes == 0 {
		return
	}
	s := newStage(t, build(t, moduleRoot(t)), chosenSeed())
	all := faults()
	for until := time.Now().Add(time.Duration(*minutes) * time.Minute); time.Now().Before(until); {
		f := all[s.rng.IntN(len(all))]
		// Those that take long are rarer, so that there are enough of the others.
		if f.long && s.rng.IntN(3) > 0 {
			continue
		}
		s.meet(f)
		if text := s.p.bin; strings.Contains(text, ".test") {
			s.restart(s.good)
			s.recovered()
		}
	}
	s.finish()
}
