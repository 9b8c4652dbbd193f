package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// defaultDeadline stands in for a deadline that an order leaves out.
const defaultDeadline = 30 * time.Second

// order takes an order: its handler starts, or waits for one of its cluster's to
// end, as when a broken stream's orders were given out anew.
func (e *Executor) order(ctx context.Context, o *reprievev1.Order) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing || ctx.Err() != nil || e.tasks[o.GetToken()] != nil {
		// Nobody could answer it any more, or it is being worked on.
		return
	}
	t := &Task{
		Pod: o.GetEvictPod(), Node: o.GetUpdateNode(), EvictionID: o.GetEvictionId(), Attempt: o.GetAttempt(),
		token: o.GetToken(), executor: e, recalled: make(chan struct{}), renewed: make(chan time.Duration, 1),
	}
	t.life, t.end = context.WithCancel(ctx)
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	e.tasks[t.token] = t
	if t.Pod == nil && (t.Node == nil || e.conf.NodeHandler == nil) {
		e.answer(t, Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: "this executor does not know the order's action; a newer one is needed"})
		return
	}
	deadline := o.GetDeadlineIn().AsDuration()
	if deadline <= 0 {
		deadline = defaultDeadline
	}
	t.runsOut(deadline)
	e.work.Go(func() { t.keep(deadline, !e.conf.NoAutoExtend) })
	if e.conf.ConfirmAfter > 0 && passed(e.fresh) {
		t.stage = asking
		e.ask(t)
		e.postLocked(extendMessage(t.token))
		return
	}
	e.admit(t)
}

// ask notes that the service owes a reply for the task. mu is held.
func (e *Executor) ask(t *Task) {
	if t.proves.IsZero() {
		t.proves = in(e.conf.ConfirmAfter)
	}
}

// replied notes that the service has replied for the task: what it sends from now
// on was not sent before that was asked for. mu is held.
func (e *Executor) replied(t *Task) {
	if t.proves.After(e.fresh) {
		e.fresh = t.proves
	}
	t.proves = time.Time{}
}

// admit starts a task or lets it wait for its turn. mu is held.
func (e *Executor) admit(t *Task) {
	t.stage = queued
	cluster := t.cluster()
	if e.active[cluster] >= e.conf.Capacity {
		e.queue[cluster] = append(e.queue[cluster], t)
		return
	}
	e.start(t)
}

// start runs a task's handler. mu is held.
func (e *Executor) start(t *Task) {
	t.stage = running
	e.active[t.cluster()]++
	e.work.Go(func() {
		// Stands if the handler ends its goroutine instead of returning.
		result := Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: "the executor's handler did not return"}
		defer func() {
			if p := recover(); p != nil {
				e.log.Error("handler panicked", "eviction", t.EvictionID, "node", t.Node.GetName(), "panic", p, "stack", string(debug.Stack()))
				result.Message = fmt.Sprintf("the executor's handler panicked: %v", p)
			}
			e.finish(t, result)
		}()
		if t.Node != nil {
			result = e.conf.NodeHandler(t.ctx, t)
		} else {
			result = e.conf.Handler(t.ctx, t)
		}
	})
}

// finish takes a handler's result and lets the next of its cluster start.
func (e *Executor) finish(t *Task, r Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cluster := t.cluster()
	if e.active[cluster]--; e.active[cluster] == 0 {
		delete(e.active, cluster)
	}
	e.answer(t, r)
	for len(e.queue[cluster]) > 0 {
		next := e.queue[cluster][0]
		e.dequeue(next)
		if next.ctx.Err() == nil {
			e.start(next)
			return
		}
		// Its deadline passed, or Run is ending, before its turn came.
		e.answer(next, Result{Outcome: reprievev1.Outcome_OUTCOME_RECALLED, Message: "the order's turn did not come in time"})
	}
}

// answer ends a task with a result, which is sent until it is acknowledged. mu is held.
func (e *Executor) answer(t *Task, r Result) {
	t.stage = answered
	t.cancel(nil)
	t.end()
	if t.dead {
		e.forget(t.token)
		return
	}
	t.answer = r.message(t.token)
	e.ask(t)
	e.postLocked(t.answer)
}

// forget drops a task. mu is held.
func (e *Executor) forget(token string) {
	delete(e.tasks, token)
	if e.draining {
		e.wakeSender()
	}
}

// dequeue takes a task out of its cluster's queue. mu is held.
func (e *Executor) dequeue(t *Task) {
	cluster := t.cluster()
	rest := slices.DeleteFunc(e.queue[cluster], func(o *Task) bool { return o == t })
	if e.queue[cluster] = rest; len(rest) == 0 {
		delete(e.queue, cluster)
	}
}

// recall tells a task that it is no longer wanted. Before its handler started
// that is its answer.
func (e *Executor) recall(r *reprievev1.Recall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tasks[r.GetToken()]
	if t == nil || t.stage == answered || t.reason != reprievev1.Recall_REASON_UNSPECIFIED {
		return
	}
	t.reason = r.GetReason()
	if t.reason == reprievev1.Recall_REASON_UNSPECIFIED {
		t.reason = reprievev1.Recall_REASON_CANCELLED
	}
	close(t.recalled)
	t.cancel(ErrRecalled)
	if t.stage == queued || t.stage == asking {
		e.dequeue(t)
		e.answer(t, Result{Outcome: reprievev1.Outcome_OUTCOME_RECALLED})
	}
}

// acknowledged ends the sending of a result.
func (e *Executor) acknowledged(a *reprievev1.ResultAck) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tasks[a.GetToken()]
	if t == nil || t.stage != answered {
		return
	}
	e.replied(t)
	if a.GetDisposition() != reprievev1.ResultAck_DISPOSITION_ACCEPTED {
		e.log.Warn("the result came too late to count", "eviction", t.EvictionID, "node", t.Node.GetName(), "outcome", t.answer.GetResult().GetOutcome().String())
	}
	e.forget(t.token)
}

// extended takes the reply to an extension.
func (e *Executor) extended(x *reprievev1.Extended) {
	e.mu.Lock()
	t := e.tasks[x.GetToken()]
	left := x.GetDeadlineIn().AsDuration()
	if t != nil {
		e.replied(t)
	}
	switch {
	case t != nil && left > 0 && t.stage == asking:
		e.admit(t)
	case t != nil && left <= 0:
		t.dead = true
		// A running handler is told by renew. A result is on its way already: its
		// acknowledgement says the rest.
		if t.stage == queued || t.stage == asking {
			e.dequeue(t)
			e.answer(t, Result{})
		}
	}
	e.mu.Unlock()
	if t != nil {
		t.renew(left)
	}
}
