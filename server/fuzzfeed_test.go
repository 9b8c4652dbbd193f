package server

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// fuzzFeed is one Feed stream of a fuzzer.
type fuzzFeed struct {
	fuzzPeer
	stream reprievev1.FeedService_FeedClient
	seq    uint64
}

func (f *fuzzed) openFeed(h *reprievev1.FeedHello) *fuzzFeed {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	stream, err := reprievev1.NewFeedServiceClient(f.conn).Feed(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	x := &fuzzFeed{fuzzPeer: fuzzPeer{cancel: cancel, ended: make(chan struct{})}, stream: stream}
	go func() {
		defer close(x.ended)
		for x.err == nil {
			if _, err := stream.Recv(); err != nil {
				x.err = err
			}
		}
		if x.err.Error() == "EOF" {
			x.err = nil
		}
	}()
	if h != nil {
		x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: h}})
	}
	return x
}

func (x *fuzzFeed) send(m *reprievev1.FeedRequest) {
	x.seq++
	m.Sequence = x.seq
	_ = x.stream.Send(m) // How the stream ended is told where it is read.
}

// end ends a stream and checks with what code.
func (x *fuzzFeed) end(f *fuzzed, cancel bool) {
	f.t.Helper()
	if x != nil {
		x.finish(f, x.stream, cancel, codes.OK, codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted)
	}
}

func anyHello(s *script) *reprievev1.FeedHello {
	cluster := pick(s, "a", "a", "b", "", "A_")
	return &reprievev1.FeedHello{Cluster: cluster, ClusterUid: pick(s, "uid", "uid", "other", ""), FeederId: pick(s, "f", "f", "g", ""),
		FeederEpoch: uint64(s.next() % 3)}
}

// step does what the next bytes say.
func (f *fuzzed) feedStep(s *script, streams *[2]*fuzzFeed) {
	op := s.next()
	slot := &streams[op>>7]
	op %= 16
	if *slot == nil && op > 1 {
		*slot = f.openFeed(&reprievev1.FeedHello{Cluster: "a", ClusterUid: "uid", FeederId: "f"})
	}
	x := *slot
	switch op {
	case 0:
		x.end(f, false)
		*slot = f.openFeed(anyHello(s))
	case 1:
		x.end(f, true)
		*slot = f.openFeed(nil)
	case 2:
		x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}})
	case 3, 4, 5:
		x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: anyBatch(s)}})
	case 6:
		x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}})
	case 7:
		x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}})
	case 8:
		x.seq += uint64(s.next()) - 128
	case 9:
		x.send(&reprievev1.FeedRequest{})
	case 10, 11:
		m := &reprievev1.FeedRequest{}
		if proto.Unmarshal(s.take(s.next()), m) == nil {
			x.send(m)
		}
	case 12:
		x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: anyHello(s)}})
	case 13, 14:
		x.end(f, op == 13)
		*slot = nil
	case 15:
		f.feedBystander(s)
	}
}

// feedBystander calls what an operator may call while a feed runs.
func (f *fuzzed) feedBystander(s *script) {
	var err error
	switch s.next() % 4 {
	case 0:
		f.settle()
	case 1:
		_, err = f.admin().PauseEvictions(f.ctx, &reprievev1.PauseEvictionsRequest{Cluster: "a", Reason: "fuzz"})
	case 2:
		_, err = f.admin().ResumeEvictions(f.ctx, &reprievev1.ResumeEvictionsRequest{Cluster: "a"})
	case 3:
		_, err = f.evictions().RequestEviction(f.ctx, &reprievev1.RequestEvictionRequest{
			Cluster: "a", RequestId: fuzzName(0, s.next()), Requester: "fuzz", Pod: &reprievev1.PodRef{Namespace: "default", Name: "p1"},
		})
	}
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.Unavailable, codes.FailedPrecondition, codes.AlreadyExists:
	default:
		f.t.Fatal(err)
	}
}

// FuzzFeedSequence sends what no feeder should, in any order, on two streams, through all interceptors.
func FuzzFeedSequence(f *testing.F) {
	for _, seed := range [][]byte{
		// A list, changes, a heartbeat, and the end.
		{0, 0, 0, 0, 0, 2, 3, 2, 0, 0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 6, 7, 14},
		// Two feeders of one cluster, the second with the higher epoch.
		{0, 0, 0, 0, 0, 2, 6, 128, 0, 0, 2, 1, 130, 134, 7, 128 + 14, 14},
		// An end of no list, a second hello, a lost message, an empty one.
		{0, 0, 0, 0, 0, 6, 14, 2, 12, 0, 0, 0, 0, 14, 8, 130, 7, 14, 9, 14, 1, 7, 14},
		// Two lists, one in the other, and an operator.
		{2, 3, 1, 2, 0, 0, 2, 6, 15, 1, 15, 3, 1, 3, 2, 0, 1, 0, 2, 15, 2, 15, 0, 13},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		f, s := newFuzzed(t), &script{in}
		var streams [2]*fuzzFeed
		for n := 0; n < maxSteps && len(s.rest) > 0; n++ {
			f.feedStep(s, &streams)
		}
		for _, x := range streams {
			x.end(f, false)
		}
		f.alive()
	})
}
