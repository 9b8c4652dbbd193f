package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// An order that comes after a silence may be old: it is carried out only if the
// service still wants it. One that follows an answer is new.
func TestExecutorAsksAboutOrdersAfterASilence(t *testing.T) {
	next := func(s evictServer) (string, error) {
		m, err := s.Recv()
		switch {
		case m.GetExtend() != nil:
			return "extend " + m.GetExtend().GetToken(), err
		case m.GetResult() != nil:
			return "result " + m.GetResult().GetToken(), err
		}
		return fmt.Sprintf("%T", m.GetMessage()), err
	}
	var got []string
	var over chan error // made in the bubble of the test
	script := func(s evictServer) error {
		if _, err := greet(s); err != nil {
			return err
		}
		for _, step := range []struct {
			after time.Duration
			send  *reprievev1.EvictResponse
			waits bool
		}{
			{0, order("first"), true},
			{0, resultAck("first", reprievev1.ResultAck_DISPOSITION_ACCEPTED), false},
			{time.Minute, order("old"), true},
			{0, extendedBy("old", 0), false},
			{time.Minute, order("late"), true},
			{0, extendedBy("late", 30*time.Second), true},
			{0, resultAck("late", reprievev1.ResultAck_DISPOSITION_ACCEPTED), false},
			{0, order("soon"), true},
			{0, resultAck("soon", reprievev1.ResultAck_DISPOSITION_ACCEPTED), false},
		} {
			time.Sleep(step.after)
			if err := s.Send(step.send); err != nil {
				return err
			}
			if step.waits {
				m, err := next(s)
				if err != nil {
					return err
				}
				got = append(got, m)
			}
		}
		over <- nil
		_, err := s.Recv()
		return err
	}
	f := &fake{evicts: []func(evictServer) error{script}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		over = make(chan error, 1)
		ctx, cancel := context.WithCancel(ctx)
		e, err := NewExecutor(conn, ExecutorConfig{ID: "x", Clusters: []string{"*"}, Capacity: 1, ConfirmAfter: 5 * time.Second,
			Handler: func(context.Context, *Task) Result { return Result{Outcome: reprievev1.Outcome_OUTCOME_EVICTED} }})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		<-over
		if want := "[result first extend old extend late result late result soon]"; fmt.Sprint(got) != want {
			t.Errorf("the executor sent %v, want %s", got, want)
		}
		cancel()
		<-done
	})
}
