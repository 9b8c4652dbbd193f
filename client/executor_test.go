package client

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func order(token string) *reprievev1.EvictResponse {
	return &reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Order{Order: &reprievev1.Order{
		Token: token, DeadlineIn: durationpb.New(30 * time.Second), Attempt: 1, EvictionId: "c/" + token,
		Action: &reprievev1.Order_EvictPod{EvictPod: &reprievev1.EvictPod{Cluster: "c", Namespace: "ns", Name: token, Uid: token}},
	}}}
}

func recallOf(token string) *reprievev1.EvictResponse {
	return &reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Recall{Recall: &reprievev1.Recall{Token: token, Reason: reprievev1.Recall_REASON_PAUSED}}}
}

func resultAck(token string, d reprievev1.ResultAck_Disposition) *reprievev1.EvictResponse {
	return &reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_ResultAck{ResultAck: &reprievev1.ResultAck{Token: token, Disposition: d}}}
}

func extendedBy(token string, d time.Duration) *reprievev1.EvictResponse {
	x := &reprievev1.Extended{Token: token}
	if d > 0 {
		x.DeadlineIn = durationpb.New(d)
	}
	return &reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Extended{Extended: x}}
}

// greet reads hello and answers it.
func greet(s evictServer) (*reprievev1.ExecutorHello, error) {
	m, err := s.Recv()
	if err != nil {
		return nil, err
	}
	return m.GetHello(), s.Send(&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Welcome{Welcome: &reprievev1.ExecutorWelcome{}}})
}

// serve greets, sends what it is given, and then acknowledges results and grants
// extensions until the stream ends. It keeps the results.
func serve(results map[string]*reprievev1.Result, extends *int, send ...*reprievev1.EvictResponse) func(evictServer) error {
	return func(s evictServer) error {
		if _, err := greet(s); err != nil {
			return err
		}
		for _, m := range send {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		for {
			m, err := s.Recv()
			if err != nil {
				return nil
			}
			if r := m.GetResult(); r != nil {
				results[r.GetToken()] = r
				err = s.Send(resultAck(r.GetToken(), reprievev1.ResultAck_DISPOSITION_ACCEPTED))
			}
			if x := m.GetExtend(); x != nil {
				*extends++
				err = s.Send(extendedBy(x.GetToken(), 30*time.Second))
			}
			if err != nil {
				return err
			}
		}
	}
}

func newTestExecutor(t *testing.T, conn *Conn, h func(context.Context, *Task) Result) *Executor {
	t.Helper()
	e, err := NewExecutor(conn, ExecutorConfig{ID: "x", Clusters: []string{"*"}, Capacity: 1, Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExecutorAnswersExtendsAndDrains(t *testing.T) {
	results, extends := map[string]*reprievev1.Result{}, 0
	f := &fake{evicts: []func(evictServer) error{serve(results, &extends,
		order("slow"), order("panics"), order("bad"), order("blocked"), order("exits"), order("slow"),
		&reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Order{Order: &reprievev1.Order{Token: "unknown"}}})}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		var now, most atomic.Int32
		e := newTestExecutor(t, conn, func(ctx context.Context, task *Task) Result {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			switch task.Pod.GetName() {
			case "slow":
				pass(100 * time.Second)
				if ctx.Err() != nil {
					t.Errorf("the handler's context ended: %v", context.Cause(ctx))
				}
			case "panics":
				panic("boom")
			case "exits":
				runtime.Goexit()
			case "bad":
				return Result{}
			case "blocked":
				return Result{Outcome: reprievev1.Outcome_OUTCOME_BLOCKED, Message: strings.Repeat("é", 1000), RetryAfter: time.Minute}
			}
			return Result{Outcome: reprievev1.Outcome_OUTCOME_EVICTED, Message: task.EvictionID}
		})
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		synctest.Wait()
		if n := e.Outstanding(); n != 5 {
			t.Errorf("%d orders outstanding, want 5 (the unknown one is answered, the repeated one ignored)", n)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := e.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain within a second: %v", err)
		}
		if err := e.Drain(ctx); err != nil {
			t.Errorf("Drain: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Run after drain: %v", err)
		}
		if err := e.Run(ctx); err == nil {
			t.Error("a second Run was not refused")
		}
		want := map[string]reprievev1.Outcome{
			"slow": reprievev1.Outcome_OUTCOME_EVICTED, "panics": reprievev1.Outcome_OUTCOME_FAILED, "bad": reprievev1.Outcome_OUTCOME_FAILED,
			"blocked": reprievev1.Outcome_OUTCOME_BLOCKED, "exits": reprievev1.Outcome_OUTCOME_FAILED, "unknown": reprievev1.Outcome_OUTCOME_FAILED,
		}
		for token, o := range want {
			if results[token].GetOutcome() != o {
				t.Errorf("%s: answered %v, want %v", token, results[token], o)
			}
		}
		if b := results["blocked"]; b.GetRetryAfter().AsDuration() != time.Minute || len(b.GetMessage()) != 1024 {
			t.Errorf("blocked: retry after %v, %d bytes of message", b.GetRetryAfter().AsDuration(), len(b.GetMessage()))
		}
		if !strings.Contains(results["panics"].GetMessage(), "boom") || most.Load() != 1 || extends < 6 {
			t.Errorf("message %q, %d handlers at once, %d extensions", results["panics"].GetMessage(), most.Load(), extends)
		}
	})
}

func TestExecutorRecall(t *testing.T) {
	results, extends := map[string]*reprievev1.Result{}, 0
	f := &fake{evicts: []func(evictServer) error{serve(results, &extends,
		order("runs"), order("waits"), recallOf("waits"), recallOf("runs"), recallOf("runs"), recallOf("nobody"))}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		var ran atomic.Int32
		e := newTestExecutor(t, conn, func(ctx context.Context, task *Task) Result {
			ran.Add(1)
			<-task.Recalled()
			<-ctx.Done()
			if context.Cause(ctx) != ErrRecalled || task.RecallReason() != reprievev1.Recall_REASON_PAUSED {
				t.Errorf("cause %v, reason %v", context.Cause(ctx), task.RecallReason())
			}
			return Result{Outcome: reprievev1.Outcome_OUTCOME_EVICTED}
		})
		go e.Run(ctx)
		synctest.Wait()
		if err := e.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		if ran.Load() != 1 || results["waits"].GetOutcome() != reprievev1.Outcome_OUTCOME_RECALLED || results["runs"].GetOutcome() != reprievev1.Outcome_OUTCOME_EVICTED {
			t.Errorf("%d handlers ran, results %v", ran.Load(), results)
		}
	})
}

// What was begun before a recall may last longer than the order: its true outcome
// has to count, so the order is kept alive for it.
func TestExecutorExtendsAfterRecall(t *testing.T) {
	results, extends := map[string]*reprievev1.Result{}, 0
	f := &fake{evicts: []func(evictServer) error{serve(results, &extends, order("runs"), recallOf("runs"))}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		e := newTestExecutor(t, conn, func(_ context.Context, task *Task) Result {
			<-task.Recalled()
			call, cancel := context.WithTimeout(context.Background(), 50*time.Second)
			defer cancel()
			<-call.Done()
			if task.Expired() {
				t.Error("the order ran out under the call")
			}
			return Result{Outcome: reprievev1.Outcome_OUTCOME_EVICTED}
		})
		go e.Run(ctx)
		synctest.Wait()
		if err := e.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		if extends == 0 || results["runs"].GetOutcome() != reprievev1.Outcome_OUTCOME_EVICTED {
			t.Errorf("%d extensions, results %v", extends, results)
		}
	})
}

func TestExecutorKeepsResultsOverBrokenStreams(t *testing.T) {
	results, extends := map[string]*reprievev1.Result{}, 0
	var held []string
	f := &fake{evicts: []func(evictServer) error{
		func(s evictServer) error { // takes the result and dies before it is on disk
			if _, err := greet(s); err != nil {
				return err
			}
			if err := s.Send(order("a")); err != nil {
				return err
			}
			_, err := s.Recv()
			return errors.Join(err, refusal(codes.Unavailable, ReasonStopping))
		},
		func(s evictServer) error {
			hello, err := greet(s)
			if err != nil {
				return err
			}
			held = hello.GetHeldTokens()
			m, err := s.Recv()
			if err != nil {
				return err
			}
			results[m.GetResult().GetToken()] = m.GetResult()
			return errors.Join(s.Send(resultAck("a", reprievev1.ResultAck_DISPOSITION_UNKNOWN)), s.Send(order("b")))
		},
		serve(results, &extends),
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		e := newTestExecutor(t, conn, func(_ context.Context, task *Task) Result {
			if task.Pod.GetName() == "b" {
				pass(10 * time.Second)
			}
			return Result{Outcome: reprievev1.Outcome_OUTCOME_GONE}
		})
		go e.Run(ctx)
		pass(5 * time.Second)
		if err := e.Drain(ctx); err != nil {
			t.Fatal(err)
		}
		if len(held) != 1 || held[0] != "a" || results["a"] == nil || results["b"].GetOutcome() != reprievev1.Outcome_OUTCOME_GONE {
			t.Errorf("held %v, results %v", held, results)
		}
		if f.nEvict != 3 || extends == 0 {
			t.Errorf("%d streams, %d extensions; a held order asks for time on a new stream", f.nEvict, extends)
		}
	})
}
