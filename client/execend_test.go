package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestExecutorDeadline(t *testing.T) {
	var replies = []time.Duration{20 * time.Second, 0}
	f := &fake{evicts: []func(evictServer) error{func(s evictServer) error {
		if _, err := greet(s); err != nil {
			return err
		}
		_ = s.Send(order("asks"))
		for {
			m, err := s.Recv()
			if err != nil {
				return nil
			}
			if x := m.GetExtend(); x != nil && len(replies) > 0 {
				_ = s.Send(extendedBy(x.GetToken(), replies[0]))
				if replies = replies[1:]; len(replies) == 0 {
					_ = s.Send(order("silent"))
				}
			}
			if r := m.GetResult(); r != nil {
				if r.GetToken() == "asks" {
					t.Error("a result was sent for a token that the service does not know")
				}
				_ = s.Send(resultAck(r.GetToken(), reprievev1.ResultAck_DISPOSITION_UNKNOWN))
			}
		}
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		e, err := NewExecutor(conn, ExecutorConfig{ID: "x", Clusters: []string{"c"}, Capacity: 2, NoAutoExtend: true, Handler: func(ctx context.Context, task *Task) Result {
			if task.Pod.GetName() == "asks" {
				if d, err := task.Extend(ctx); d != 20*time.Second || err != nil {
					t.Errorf("Extend: %v, %v", d, err)
				}
				if _, err := task.Extend(ctx); !errors.Is(err, ErrExpired) {
					t.Errorf("Extend of a dead token: %v", err)
				}
			}
			<-ctx.Done()
			if context.Cause(ctx) != ErrExpired {
				t.Errorf("%s: cause %v, want expired", task.Pod.GetName(), context.Cause(ctx))
			}
			return Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED}
		}})
		if err != nil {
			t.Fatal(err)
		}
		go e.Run(ctx)
		pass(31 * time.Second)
		synctest.Wait()
		if n := e.Outstanding(); n != 0 {
			t.Errorf("%d orders outstanding after their deadlines", n)
		}
		if err := e.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestExecutorEnds(t *testing.T) {
	f := &fake{evicts: []func(evictServer) error{func(evictServer) error { return refusal(codes.Aborted, ReasonSuperseded) }}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		e := newTestExecutor(t, conn, func(context.Context, *Task) Result { return Result{} })
		if err := e.Run(ctx); !IsSuperseded(err) {
			t.Errorf("Run: %v, want superseded", err)
		}
		if err := e.Drain(ctx); !IsSuperseded(err) {
			t.Errorf("Drain after the end: %v", err)
		}
	})
	results, extends := map[string]*reprievev1.Result{}, 0
	f = &fake{evicts: []func(evictServer) error{serve(results, &extends, order("a"), order("b"))}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(ctx)
		ran := 0
		e := newTestExecutor(t, conn, func(ctx context.Context, _ *Task) Result {
			ran++
			cancel(stop)
			<-ctx.Done()
			return Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED}
		})
		if err := e.Run(ctx); err != stop || ran != 1 {
			t.Errorf("Run: %v after %d handlers, want its context's cause after 1", err, ran)
		}
	})
}
