package server

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// fuzzExecutor is one Evict stream of a fuzzer.
type fuzzExecutor struct {
	fuzzPeer
	stream reprievev1.EvictionService_EvictClient
}

// evictFuzz is a cluster with pods that have to leave, and executors that do as the fuzzer says.
type evictFuzz struct {
	*fuzzed
	feed    *feed
	streams [2]*fuzzExecutor

	mu sync.Mutex // guards what follows
	// tokens are those of the orders that came, invented those that never were.
	tokens, invented []string
	// barriers are closed when their extension is answered.
	barriers map[string]chan struct{}
	serial   int
}

func newEvictFuzz(t *testing.T) *evictFuzz {
	e := &evictFuzz{fuzzed: newFuzzed(t), barriers: map[string]chan struct{}{}}
	e.feed = e.fixture.feed(e.ctx, hello("a"))
	e.feed.recv()
	e.feed.list(upsertNode("n1", "k"), upsertNode("n2"), upsertPod("p1", "n1"), upsertPod("p2", "n1"), upsertPod("p3", "n1"), upsertPod("p4", "n1", waits("k")),
		upsertPod("p5", "n2"))
	return e
}

func (e *evictFuzz) open(h *reprievev1.ExecutorHello) *fuzzExecutor {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.ctx)
	stream, err := e.evictions().Evict(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	x := &fuzzExecutor{fuzzPeer: fuzzPeer{cancel: cancel, ended: make(chan struct{})}, stream: stream}
	go e.receive(x)
	if h != nil {
		x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: h}})
	}
	return x
}

func (e *evictFuzz) receive(x *fuzzExecutor) {
	defer close(x.ended)
	for {
		m, err := x.stream.Recv()
		if err != nil {
			if err.Error() != "EOF" {
				x.err = err
			}
			return
		}
		e.mu.Lock()
		switch m := m.GetMessage().(type) {
		case *reprievev1.EvictResponse_Order:
			e.tokens = append(e.tokens, m.Order.GetToken())
		case *reprievev1.EvictResponse_Extended:
			if b := e.barriers[m.Extended.GetToken()]; b != nil {
				close(b)
				delete(e.barriers, m.Extended.GetToken())
			}
		case *reprievev1.EvictResponse_ResultAck:
			for _, token := range e.invented {
				if token == m.ResultAck.GetToken() && m.ResultAck.GetDisposition() == reprievev1.ResultAck_DISPOSITION_ACCEPTED {
					e.t.Errorf("I6: the answer with the invented token %q was accepted", token)
				}
			}
		}
		e.mu.Unlock()
	}
}

func (x *fuzzExecutor) send(m *reprievev1.EvictRequest) {
	_ = x.stream.Send(m) // How the stream ended is told where it is read.
}

func (x *fuzzExecutor) end(e *evictFuzz, cancel bool) {
	e.t.Helper()
	if x != nil {
		x.finish(e.fuzzed, x.stream, cancel, codes.OK, codes.InvalidArgument, codes.NotFound, codes.Aborted)
	}
}

// token is one of an order that came, or one that never was.
func (e *evictFuzz) token(s *script) string {
	n := s.next()
	e.mu.Lock()
	defer e.mu.Unlock()
	if n < 200 && len(e.tokens) > 0 {
		return e.tokens[n%len(e.tokens)]
	}
	token := "invented-" + strconv.Itoa(n)
	e.invented = append(e.invented, token)
	return token
}

func (e *evictFuzz) hello(s *script) *reprievev1.ExecutorHello {
	h := &reprievev1.ExecutorHello{ExecutorId: pick(s, "x", "y", "x", ""), Clusters: pick(s, []string{"a"}, []string{"*"}, []string{"a", "b"}, nil, []string{"a", "a"}),
		Capacity: uint32(pick(s, 1, 2, 10, 10_000, 0, 10_001))}
	for range s.next() % 4 {
		h.HeldTokens = append(h.HeldTokens, e.token(s))
	}
	return h
}

// barrier waits until everything that the service had for an executor has come, or the stream has ended.
func (e *evictFuzz) barrier(x *fuzzExecutor) {
	e.settle()
	e.mu.Lock()
	e.serial++
	name, answered := "barrier-"+strconv.Itoa(e.serial), make(chan struct{})
	e.barriers[name] = answered
	e.mu.Unlock()
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Extend{Extend: &reprievev1.Extend{Token: name}}})
	select {
	case <-answered:
	case <-x.ended:
	case <-e.ctx.Done():
		e.t.Fatal("an extension was not answered")
	}
}

func (e *evictFuzz) step(s *script) {
	op := s.next()
	slot := &e.streams[op>>7]
	op %= 16
	if *slot == nil && op > 1 && op < 12 {
		*slot = e.open(&reprievev1.ExecutorHello{ExecutorId: "x", Clusters: []string{"a"}, Capacity: 2})
		e.barrier(*slot)
	}
	x := *slot
	switch op {
	case 0:
		x.end(e, false)
		*slot = e.open(e.hello(s))
	case 1:
		x.end(e, true)
		*slot = e.open(nil)
	case 2, 3, 4:
		r := &reprievev1.Result{Token: e.token(s), Outcome: reprievev1.Outcome(s.next() % 12)}
		if r.Outcome == reprievev1.Outcome_OUTCOME_BLOCKED {
			r.RetryAfter = pick(s, nil, &durationpb.Duration{}, &durationpb.Duration{Seconds: 86400}, &durationpb.Duration{Seconds: -1}, &durationpb.Duration{Seconds: 1, Nanos: -1})
		}
		x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: r}})
	case 5:
		x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Extend{Extend: &reprievev1.Extend{Token: e.token(s)}}})
	case 6:
		x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_SetCapacity{SetCapacity: &reprievev1.SetCapacity{
			Cluster: pick(s, "", "a", "b"), Capacity: uint32(pick(s, 0, 1, 10, 10_000, 10_001)),
		}}})
	case 7:
		x.send(pick(s, &reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Drain{Drain: &reprievev1.Drain{}}}, &reprievev1.EvictRequest{},
			&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: e.hello(s)}}))
	case 8:
		m := &reprievev1.EvictRequest{}
		if proto.Unmarshal(s.take(s.next()), m) == nil {
			x.send(m)
		}
	case 9, 10:
		e.barrier(x)
	case 11:
		x.end(e, s.next()%2 == 0)
		*slot = nil
	default:
		e.bystander(s)
	}
}

// bystander changes the cluster, or does what an operator or a backend may.
func (e *evictFuzz) bystander(s *script) {
	var err error
	pod := pick(s, "p1", "p2", "p3", "p4", "p5")
	switch s.next() % 8 {
	case 0:
		e.feed.acked(e.feed.batch(upsertNode("n1")), false)
	case 1, 2:
		e.feed.acked(e.feed.batch(upsertNode("n1", "k")), false)
	case 3:
		e.feed.acked(e.feed.batch(deletePod(pod)), false)
	case 4:
		e.feed.acked(e.feed.batch(upsertPod(pod, "n1")), false)
	case 5:
		_, err = e.admin().PauseEvictions(e.ctx, &reprievev1.PauseEvictionsRequest{Cluster: "a", Reason: "fuzz"})
	case 6:
		_, err = e.admin().ResumeEvictions(e.ctx, &reprievev1.ResumeEvictionsRequest{Cluster: "a"})
	case 7:
		_, err = e.evictions().RequestEviction(e.ctx, &reprievev1.RequestEvictionRequest{
			Cluster: "a", RequestId: fuzzName(1, s.next()), Requester: "fuzz", Pod: &reprievev1.PodRef{Namespace: "default", Name: pod},
		})
	}
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists:
	default:
		e.t.Fatal(err)
	}
}

// FuzzEvictSequence answers as no executor should, in any order, on two streams, through all interceptors.
func FuzzEvictSequence(f *testing.F) {
	for _, seed := range [][]byte{
		// Orders that come, their answers, one of them twice, and the end.
		{0, 0, 0, 2, 0, 9, 2, 0, 1, 2, 1, 1, 2, 0, 1, 9, 5, 2, 11, 1},
		// The newer stream of one executor, with the tokens of the older.
		{0, 0, 0, 2, 0, 9, 128, 0, 1, 2, 2, 0, 1, 137, 130, 0, 2, 11, 1, 139, 1},
		// A cancellation while orders are out, a late answer, a recall's answer.
		{0, 0, 0, 2, 0, 9, 12, 0, 0, 9, 2, 0, 6, 9, 12, 0, 1, 9, 3, 250, 1, 9},
		// Capacity to nothing and back, a drain, a second hello, an empty message.
		{6, 0, 0, 9, 6, 1, 2, 9, 7, 0, 9, 7, 2, 0, 0, 0, 0, 11, 1, 7, 1, 11, 1},
		// An operator in between.
		{0, 0, 0, 0, 0, 9, 12, 0, 5, 9, 2, 0, 3, 12, 0, 6, 9, 12, 4, 7, 1, 9, 4, 1, 4, 2, 9},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		e, s := newEvictFuzz(t), &script{in}
		for n := 0; n < maxSteps && len(s.rest) > 0; n++ {
			e.step(s)
		}
		for _, x := range e.streams {
			x.end(e, false)
		}
		e.feed.acked(e.feed.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}), false)
		e.alive()
	})
}
