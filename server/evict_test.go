package server

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// executor is one Evict stream.
type executor struct {
	t      *testing.T
	stream reprievev1.EvictionService_EvictClient
}

func (f *fixture) executor(id string, capacity uint32, clusters ...string) *executor {
	f.t.Helper()
	stream, err := f.evictions().Evict(f.ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	x := &executor{t: f.t, stream: stream}
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: &reprievev1.ExecutorHello{
		ExecutorId: id, Clusters: clusters, Capacity: capacity,
	}}})
	if x.recv().GetWelcome() == nil {
		f.t.Fatal("no welcome")
	}
	return x
}

func (x *executor) send(m *reprievev1.EvictRequest) {
	x.t.Helper()
	if err := x.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		x.t.Fatal(err)
	}
}

func (x *executor) recv() *reprievev1.EvictResponse {
	x.t.Helper()
	m, err := x.stream.Recv()
	if err != nil {
		x.t.Fatal(err)
	}
	return m
}

func (x *executor) order() *reprievev1.Order {
	x.t.Helper()
	m := x.recv()
	if m.GetOrder() == nil {
		x.t.Fatalf("%v; want an order", m)
	}
	return m.GetOrder()
}

func (x *executor) answer(token string, outcome reprievev1.Outcome) reprievev1.ResultAck_Disposition {
	x.t.Helper()
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{Token: token, Outcome: outcome}}})
	m := x.recv()
	if m.GetResultAck().GetToken() != token {
		x.t.Fatalf("%v; want the acknowledgement of %s", m, token)
	}
	return m.GetResultAck().GetDisposition()
}

// err reads to the end of the stream.
func (x *executor) err() error {
	for {
		if _, err := x.stream.Recv(); err != nil {
			return err
		}
	}
}

// enforce makes clusters begin in mode ENFORCE.
func enforce(c *Config) { c.Adopt = "enforce" }

func TestEvictToTheEnd(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	feed := f.feed(f.ctx, hello("east"))
	feed.recv()
	feed.list(upsertNode("n1", "k"), upsertPod("p1", "n1"))
	x := f.executor("x", 1, "*")
	o := x.order()
	pod := o.GetEvictPod()
	if pod.GetName() != "p1" || pod.GetUid() != "uid-p1" || pod.GetNode() != "n1" || pod.GetCluster() != "east" ||
		o.GetAttempt() != 1 || o.GetDeadlineIn().AsDuration() <= 0 || pod.GetCause().GetTaint().GetTaint().GetKey() != "k" ||
		pod.GetMethod() != reprievev1.EvictionMethod_EVICTION_METHOD_DELETE {
		t.Fatalf("order %v", o)
	}
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Extend{Extend: &reprievev1.Extend{Token: o.GetToken()}}})
	if e := x.recv().GetExtended(); e.GetToken() != o.GetToken() || e.GetDeadlineIn().AsDuration() != 30*time.Second {
		t.Fatalf("extended %v", e)
	}
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Extend{Extend: &reprievev1.Extend{Token: "stale"}}})
	if e := x.recv().GetExtended(); e.GetToken() != "stale" || e.GetDeadlineIn() != nil {
		t.Fatalf("extended %v of an unknown token", e)
	}
	if d := x.answer("stale", reprievev1.Outcome_OUTCOME_EVICTED); d != reprievev1.ResultAck_DISPOSITION_UNKNOWN {
		t.Fatalf("I6: a stale token's result was %v", d)
	}
	if d := x.answer(o.GetToken(), reprievev1.Outcome_OUTCOME_EVICTED); d != reprievev1.ResultAck_DISPOSITION_ACCEPTED {
		t.Fatalf("result was %v", d)
	}
	feed.acked(feed.batch(deletePod("p1")), false)
	got, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{
		Cluster: "east", States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED},
	})
	if err != nil || len(got.GetEvictions()) != 1 || got.GetEvictions()[0].GetCloseReason() != reprievev1.CloseReason_CLOSE_REASON_EVICTED {
		t.Fatalf("history %v, %v", got, err)
	}
	one, err := f.query().GetEviction(f.ctx, &reprievev1.GetEvictionRequest{Id: o.GetEvictionId()})
	if err != nil || one.GetEviction().GetUid() != "uid-p1" {
		t.Fatalf("eviction %v, %v", one, err)
	}
}

func TestEvictCapacityAndDrain(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	feed := f.feed(f.ctx, hello("east"))
	feed.recv()
	feed.list(upsertNode("n1", "k"), upsertPod("p1", "n1"), upsertPod("p2", "n1"), upsertPod("p3", "n1"))
	x := f.executor("x", 1, "east")
	first := x.order()
	// With its one place taken it gets nothing; with two places it gets one more.
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_SetCapacity{SetCapacity: &reprievev1.SetCapacity{Cluster: "east", Capacity: 2}}})
	second := x.order()
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Drain{Drain: &reprievev1.Drain{}}})
	for _, o := range []*reprievev1.Order{first, second} {
		if d := x.answer(o.GetToken(), reprievev1.Outcome_OUTCOME_GONE); d != reprievev1.ResultAck_DISPOSITION_ACCEPTED {
			t.Fatalf("result after drain was %v", d)
		}
	}
	if err := x.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if m, err := x.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("%v, %v after drain; want the end and no third order", m, err)
	}
}

func TestEvictRefusals(t *testing.T) {
	f := newFixture(t, memory(), nil)
	for name, tc := range map[string]struct {
		send   *reprievev1.EvictRequest
		code   codes.Code
		reason string
		field  string
	}{
		"second hello": {&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: &reprievev1.ExecutorHello{ExecutorId: "x", Clusters: []string{"*"}, Capacity: 1}}},
			codes.InvalidArgument, "INVALID_ARGUMENT", "message"},
		"capacity of a strange cluster": {&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_SetCapacity{SetCapacity: &reprievev1.SetCapacity{Cluster: "west", Capacity: 1}}},
			codes.NotFound, "CLUSTER_UNKNOWN", "set_capacity.cluster"},
		"result without outcome": {&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{Token: "t"}}},
			codes.InvalidArgument, "INVALID_ARGUMENT", "result.outcome"},
	} {
		t.Run(name, func(t *testing.T) {
			x := f.executor("x-"+name, 1, "*")
			x.send(tc.send)
			if st := wantError(t, x.err(), tc.code, tc.reason); !slices.Contains(fieldsOf(st), tc.field) {
				t.Fatalf("fields %v; want %s", fieldsOf(st), tc.field)
			}
		})
	}
	stream, err := f.evictions().Evict(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	x := &executor{t: t, stream: stream}
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Drain{Drain: &reprievev1.Drain{}}})
	wantError(t, x.err(), codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestEvictNewerStreamTakesOver(t *testing.T) {
	f := newFixture(t, memory(), nil)
	old := f.executor("x", 1, "*")
	f.executor("x", 1, "*")
	wantError(t, old.err(), codes.Aborted, "SUPERSEDED")
}

func TestPauseRecallsAndHolds(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	feed := f.feed(f.ctx, hello("east"))
	feed.recv()
	feed.list(upsertNode("n1", "k"), upsertPod("p1", "n1"))
	x := f.executor("x", 1, "*")
	o := x.order()
	p, err := f.admin().PauseEvictions(f.ctx, &reprievev1.PauseEvictionsRequest{Cluster: "east", Reason: "look first"})
	if err != nil || p.GetPause().GetActor() != "anonymous" {
		t.Fatalf("pause %v, %v", p, err)
	}
	if r := x.recv().GetRecall(); r.GetToken() != o.GetToken() || r.GetReason() != reprievev1.Recall_REASON_PAUSED {
		t.Fatalf("I7: recall %v", r)
	}
	watch, err := f.query().WatchEvictions(f.ctx, &reprievev1.WatchEvictionsRequest{InitialList: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := x.answer(o.GetToken(), reprievev1.Outcome_OUTCOME_RECALLED); d != reprievev1.ResultAck_DISPOSITION_ACCEPTED {
		t.Fatalf("result was %v", d)
	}
	for held := false; !held; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		held = m.GetChange().GetEviction().GetHold() == reprievev1.HoldReason_HOLD_REASON_PAUSED
	}
	r, err := f.admin().ResumeEvictions(f.ctx, &reprievev1.ResumeEvictionsRequest{Cluster: "east", ValidateOnly: true})
	if err != nil || r.GetReleased() != 1 {
		t.Fatalf("resume would release %v, %v", r, err)
	}
	if _, err := f.admin().ResumeEvictions(f.ctx, &reprievev1.ResumeEvictionsRequest{Cluster: "east"}); err != nil {
		t.Fatal(err)
	}
	if again := x.order(); again.GetEvictPod().GetUid() != "uid-p1" || again.GetToken() == o.GetToken() {
		t.Fatalf("order after resume %v", again)
	}
	_, err = f.admin().ResumeEvictions(f.ctx, &reprievev1.ResumeEvictionsRequest{Cluster: "east"})
	wantError(t, err, codes.NotFound, "PAUSE_UNKNOWN")
}

func TestRequestAndWithdraw(t *testing.T) {
	f := newFixture(t, memory(), nil)
	feed := f.feed(f.ctx, hello("east"))
	feed.recv()
	ask := &reprievev1.RequestEvictionRequest{
		Cluster: "east", RequestId: "r1", Requester: "backend", Pod: &reprievev1.PodRef{Namespace: "default", Name: "p1"},
		NotBefore: timestamppb.New(f.svc.deps.Clock.Now().Add(time.Hour)), Reason: "move",
	}
	_, err := f.evictions().RequestEviction(f.ctx, ask)
	wantError(t, err, codes.Unavailable, "CLUSTER_NOT_SYNCED")
	feed.list(upsertNode("n1"), upsertPod("p1", "n1"))
	got, err := f.evictions().RequestEviction(f.ctx, ask)
	if err != nil || got.GetEviction().GetCause().GetRequest().GetRequestId() != "r1" || got.GetEviction().GetState() != reprievev1.EvictionState_EVICTION_STATE_WAITING {
		t.Fatalf("eviction %v, %v", got, err)
	}
	other := &reprievev1.RequestEvictionRequest{Cluster: "east", RequestId: "r1", Requester: "backend", Pod: ask.GetPod(), Reason: "else"}
	_, err = f.evictions().RequestEviction(f.ctx, other)
	wantError(t, err, codes.AlreadyExists, "REQUEST_CONFLICT")
	withdraw := &reprievev1.WithdrawEvictionRequest{Cluster: "east", RequestId: "r1", Requester: "backend"}
	w, err := f.evictions().WithdrawEviction(f.ctx, withdraw)
	if err != nil || w.GetEviction().GetCancelCause() != reprievev1.CancelCause_CANCEL_CAUSE_REQUEST_WITHDRAWN {
		t.Fatalf("withdrawn %v, %v", w, err)
	}
	_, err = f.evictions().WithdrawEviction(f.ctx, withdraw)
	wantError(t, err, codes.NotFound, "REQUEST_UNKNOWN")
}
