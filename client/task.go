package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

var (
	// ErrRecalled is the cause with which a handler's context ends when its order
	// is no longer wanted.
	ErrRecalled = errors.New("the order was recalled")
	// ErrExpired is the cause with which a handler's context ends when its answer
	// no longer counts: the deadline has passed, or the service does not know the
	// delivery any more.
	ErrExpired = errors.New("the order's deadline has passed")
)

// Result is a handler's answer to an order.
type Result struct {
	// Outcome is what came of the order. UNSPECIFIED and NO_ANSWER are no answers
	// and are sent as FAILED.
	Outcome reprievev1.Outcome
	// Message is for people, such as a refusal's text. It is cut at 1,024 bytes.
	Message string
	// RetryAfter, with BLOCKED, is when to try again; the service waits at least
	// 10 s and at most an hour. 0 leaves it to the service.
	RetryAfter time.Duration
}

const (
	maxMessageBytes = 1024
	maxRetryAfter   = 24 * time.Hour
)

func (r Result) message(token string) *reprievev1.EvictRequest {
	switch _, known := reprievev1.Outcome_name[int32(r.Outcome)]; {
	case !known, r.Outcome == reprievev1.Outcome_OUTCOME_UNSPECIFIED, r.Outcome == reprievev1.Outcome_OUTCOME_NO_ANSWER:
		r = Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: "the executor's handler gave " + r.Outcome.String() + ", which is no answer"}
	}
	out := &reprievev1.Result{Token: token, Outcome: r.Outcome, Message: cut(r.Message)}
	if r.RetryAfter > 0 {
		out.RetryAfter = durationpb.New(min(r.RetryAfter, maxRetryAfter))
	}
	return &reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: out}}
}

// Task is one order for a handler.
type Task struct {
	// Pod is the pod that must go, and how. Act on no other UID. Nil in an order for
	// a node.
	Pod *reprievev1.EvictPod
	// Node is what a node must look like. Act on no other UID. Nil in an order for a pod.
	Node *reprievev1.UpdateNode
	// EvictionID is the eviction's id, for logs and queries; empty in an order for a node.
	EvictionID string
	// Attempt counts the orders of this eviction, or of this node, from 1.
	Attempt uint32

	token    string
	executor *Executor
	ctx      context.Context
	cancel   context.CancelCauseFunc
	life     context.Context // ends with the answer or the order's time, not with a recall
	end      context.CancelFunc
	recalled chan struct{}
	renewed  chan time.Duration // one slot: the newest length of the deadline

	mu      sync.Mutex // guards what follows
	waiting []chan time.Duration
	until   time.Time // when the order runs out

	// Guarded by the executor's mu.
	stage  stage
	reason reprievev1.Recall_Reason
	answer *reprievev1.EvictRequest // once answered
	dead   bool                     // the service does not know the token any more
	proves time.Time                // until when a reply to the oldest open question proves the stream fresh; zero without one
}

// cluster is the one of the task's pod or node.
func (t *Task) cluster() string {
	if t.Node != nil {
		return t.Node.GetCluster()
	}
	return t.Pod.GetCluster()
}

// stage is where a task stands with its executor.
type stage int

const (
	queued stage = iota
	running
	answered
	asking // the service is asked whether the order is still wanted
)

// Recalled is closed when the order is no longer wanted. If nothing was done yet
// answer RECALLED; if it was, the true outcome. The handler's context ends at the
// same time, with cause [ErrRecalled].
func (t *Task) Recalled() <-chan struct{} { return t.recalled }

// RecallReason says why the order was recalled; UNSPECIFIED if it was not.
func (t *Task) RecallReason() reprievev1.Recall_Reason {
	t.executor.mu.Lock()
	defer t.executor.mu.Unlock()
	return t.reason
}

// Extend asks for more time and returns how long an answer counts from now. It
// fails with [ErrExpired] if the answer does not count any more, and with ctx's
// cause if the service does not reply in time, as while the stream is broken.
// Without ExecutorConfig.NoAutoExtend it is not needed.
func (t *Task) Extend(ctx context.Context) (time.Duration, error) {
	reply := make(chan time.Duration, 1)
	t.mu.Lock()
	t.waiting = append(t.waiting, reply)
	t.mu.Unlock()
	t.executor.post(extendMessage(t.token))
	select {
	case d := <-reply:
		if d <= 0 {
			return 0, ErrExpired
		}
		return d, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Expired reports whether the order's deadline has passed. It counts by itself: in
// a process that was stopped, or starved, the context's end may be still to come
// when the handler goes on. Ask after every wait, before the pod is touched.
func (t *Task) Expired() bool {
	t.mu.Lock()
	until := t.until
	t.mu.Unlock()
	return !until.IsZero() && passed(until)
}

// passed reports whether t lies behind.
func passed(t time.Time) bool {
	over, cancel := context.WithDeadline(context.Background(), t)
	defer cancel()
	return over.Err() != nil
}

// in is the instant d from now.
func in(d time.Duration) time.Time {
	timer, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	t, _ := timer.Deadline()
	return t
}

// runsOut notes that the order runs out in d.
func (t *Task) runsOut(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = in(d)
}

func extendMessage(token string) *reprievev1.EvictRequest {
	return &reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Extend{Extend: &reprievev1.Extend{Token: token}}}
}

// renew takes the service's reply to an extension; 0 means that the token is not live.
func (t *Task) renew(d time.Duration) {
	t.mu.Lock()
	waiting := t.waiting
	t.waiting = nil
	t.mu.Unlock()
	for _, w := range waiting {
		w <- d
	}
	if d <= 0 {
		t.cancel(ErrExpired)
		t.end()
		return
	}
	t.runsOut(d)
	select {
	case <-t.renewed:
	default:
	}
	t.renewed <- d
}

// minExtendAfter keeps extensions apart when the service gives less and less time.
const minExtendAfter = time.Second

// keep watches the deadline while the task is worked on: it asks for more time
// when half of it is over, and ends the context when all is. It goes on after a
// recall, while what was begun ends: its true outcome has to count.
func (t *Task) keep(d time.Duration, extend bool) {
	for {
		first := d
		if extend && d > minExtendAfter {
			first = max(d/2, minExtendAfter)
		}
		next, done := t.wait(first)
		if next == 0 && !done && first < d {
			t.executor.post(extendMessage(t.token))
			next, done = t.wait(d - first)
		}
		if done {
			return
		}
		if next == 0 {
			t.cancel(ErrExpired)
			t.end()
			return
		}
		d = next
	}
}

// wait waits for d, a new deadline or the task's end; next is 0 without a new deadline.
func (t *Task) wait(d time.Duration) (next time.Duration, done bool) {
	timer, cancel := context.WithTimeout(t.life, d)
	defer cancel()
	select {
	case next = <-t.renewed:
		return next, false
	case <-timer.Done():
		return 0, t.life.Err() != nil
	}
}
