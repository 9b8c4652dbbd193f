package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"golang.org/x/time/rate"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// deletionByTaint is the reason of the condition that the built-in controller
	// sets before it deletes a pod (kubernetes pkg/controller/tainteviction).
	deletionByTaint = "DeletionByTaintManager"
	// deletionByRequest is ours, for what no taint asked for.
	deletionByRequest = "DeletionByReprieve"
	// callTimeout bounds one call to the API server. A validating webhook may take
	// up to 30 s by itself.
	callTimeout = 40 * time.Second
	// conditionTries is up to which attempt the API server's own trouble with the
	// condition ends the attempt, so that the next may set it.
	conditionTries = 3
	// busyTries is how often a call that the API server had no room for is made
	// within one order.
	busyTries = 3
)

// evictor carries out orders on the cluster's API server.
type evictor struct {
	core rest.Interface
	// limit bounds the calls; waiting for it ends with the order.
	limit *rate.Limiter
	nodes *nodeReader
	clock clock.Clock
	// shows reports whether the pod of that UID already has the condition.
	shows func(namespace, name, uid string) bool
	// marked is told of each pod that left.
	marked func(*reprievev1.EvictPod)
	// refused is told of calls that the agent lacks the rights for.
	refused *troubles
}

// answerError is an answer that was found on the way.
type answerError struct{ client.Result }

func (e *answerError) Error() string { return e.Message }

func answer(outcome reprievev1.Outcome, format string, args ...any) error {
	return &answerError{client.Result{Outcome: outcome, Message: fmt.Sprintf(format, args...)}}
}

// evict is an executor's handler. The pod is acted on by UID; a recall counts
// until the deletion is on its way, whose true outcome is then told.
func (x *evictor) evict(ctx context.Context, t *client.Task) client.Result {
	p := t.Pod
	note, err := x.leave(ctx, t)
	if err != nil {
		r := x.result(ctx, err)
		r.Message = join(r.Message, note)
		return r
	}
	x.marked(p)
	return client.Result{Outcome: reprievev1.Outcome_OUTCOME_EVICTED, Message: note}
}

// join puts what is to be told beside a message.
func join(message, note string) string {
	if message == "" || note == "" {
		return message + note
	}
	return message + "; " + note
}

// leave makes the pod leave by the order's method. The note is to be told beside
// the outcome.
func (x *evictor) leave(ctx context.Context, t *client.Task) (note string, err error) {
	p := t.Pod
	if err := x.stillTainted(ctx, p, nodeFresh); err != nil {
		return "", err
	}
	switch p.GetMethod() {
	case reprievev1.EvictionMethod_EVICTION_METHOD_DELETE:
		return x.delete(ctx, t)
	case reprievev1.EvictionMethod_EVICTION_METHOD_EVICT:
		return "", x.evictAPI(ctx, t)
	case reprievev1.EvictionMethod_EVICTION_METHOD_EVICT_THEN_DELETE:
		err := x.evictAPI(ctx, t)
		left := p.GetBudgetWait()
		if _, blocked := budget(err); !blocked || left == nil || left.AsDuration() > 0 {
			return "", err
		}
		note, err := x.delete(ctx, t)
		return join("the disruption budget refused to the end of budget_wait", note), err
	}
	return "", answer(reprievev1.Outcome_OUTCOME_FAILED, "this agent does not know the method %s; a newer one is needed", p.GetMethod())
}

// stillTainted looks at the node as it is now: the service's knowledge may be
// older than the order.
func (x *evictor) stillTainted(ctx context.Context, p *reprievev1.EvictPod, old time.Duration) error {
	taint := p.GetCause().GetTaint().GetTaint()
	if taint == nil {
		return nil
	}
	taints, err := x.nodes.taints(ctx, p.GetNode(), old)
	if apierrors.IsNotFound(err) {
		return answer(reprievev1.Outcome_OUTCOME_STALE, "node %s is gone", p.GetNode())
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", p.GetNode(), err)
	}
	for i := range taints {
		if taints[i].Effect == corev1.TaintEffectNoExecute && taints[i].Key == taint.GetKey() && taints[i].Value == taint.GetValue() {
			return nil
		}
	}
	return answer(reprievev1.Outcome_OUTCOME_STALE, "node %s does not have the taint any more", p.GetNode())
}

// delete deletes the pod as the built-in controller does: with the condition
// first, so that a Job's pod failure policy can see why.
func (x *evictor) delete(ctx context.Context, t *client.Task) (note string, err error) {
	p := t.Pod
	if !x.shows(p.GetNamespace(), p.GetName(), p.GetUid()) {
		switch note, err = x.setCondition(ctx, t); {
		case err != nil:
			return "", err
		case ctx.Err() != nil:
			return note, context.Cause(ctx)
		}
	}
	uid := types.UID(p.GetUid())
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, GracePeriodSeconds: grace(p)}
	err = x.act(ctx, t, "delete pods in "+p.GetNamespace(), func(ctx context.Context) error {
		return x.pod(x.core.Delete(), p).Body(opts).MaxRetries(0).Do(ctx).Error()
	})
	return note, x.whose(ctx, p, err)
}

// setCondition sets the condition DisruptionTarget. That it may not be set is no
// reason to keep the pod: it becomes a note. Where the API server is in trouble
// the next attempts have the chance to set it, because a Job whose pod leaves
// without it counts that as the pod's own failure.
func (x *evictor) setCondition(ctx context.Context, t *client.Task) (note string, err error) {
	p := t.Pod
	patch, err := json.Marshal(condition(p, x.clock.Now()))
	if err != nil {
		return "", fmt.Errorf("build the status patch: %w", err)
	}
	var seen corev1.Pod
	err = x.act(ctx, t, "patch pods/status in "+p.GetNamespace(), func(ctx context.Context) error {
		return x.pod(x.core.Patch(types.StrategicMergePatchType), p).SubResource("status").Body(patch).MaxRetries(0).Do(ctx).Into(&seen)
	})
	switch err = x.whose(ctx, p, err); {
	case isAnswer(err), errors.Is(err, client.ErrExpired), ctx.Err() != nil:
		return "", err
	case err != nil && !refused(err) && t.Attempt < conditionTries:
		return "", fmt.Errorf("set the condition DisruptionTarget: %w", err)
	case err != nil:
		return fmt.Sprintf("the condition DisruptionTarget could not be set: %v", err), nil
	case seen.DeletionTimestamp != nil && t.Attempt > 1:
		return "", nil // an earlier attempt's deletion, or one to be confirmed the same way
	case seen.DeletionTimestamp != nil:
		return "", answer(reprievev1.Outcome_OUTCOME_GONE, "the pod is terminating already")
	case seen.Status.Phase == corev1.PodSucceeded, seen.Status.Phase == corev1.PodFailed:
		return "", answer(reprievev1.Outcome_OUTCOME_STALE, "the pod has finished (%s)", seen.Status.Phase)
	}
	return "", nil
}

// condition is the status patch. The UID in it makes the API server refuse it
// for another pod of the name.
func condition(p *reprievev1.EvictPod, now time.Time) any {
	c := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
	if r := p.GetCause().GetRequest(); r != nil {
		c.Reason, c.Message = deletionByRequest, "Reprieve: deleting as "+r.GetRequester()+" asked"
	} else {
		c.Reason, c.Message = deletionByTaint, "Reprieve: deleting due to NoExecute taint "+taintText(p.GetCause())
	}
	return map[string]any{
		"metadata": map[string]any{"uid": p.GetUid()},
		"status":   map[string]any{"conditions": []corev1.PodCondition{c}},
	}
}

// evictAPI evicts through the Eviction API, which asks the disruption budgets.
func (x *evictor) evictAPI(ctx context.Context, t *client.Task) error {
	p := t.Pod
	uid := types.UID(p.GetUid())
	body := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.GetNamespace(), Name: p.GetName()},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, GracePeriodSeconds: grace(p)},
	}
	err := x.act(ctx, t, "create pods/eviction in "+p.GetNamespace(), func(ctx context.Context) error {
		// client-go would sleep through a budget's Retry-After and try again by itself.
		return x.pod(x.core.Post(), p).SubResource("eviction").Body(body).MaxRetries(0).Do(ctx).Error()
	})
	return x.whose(ctx, p, err)
}

func (x *evictor) pod(r *rest.Request, p *reprievev1.EvictPod) *rest.Request {
	return r.Namespace(p.GetNamespace()).Resource("pods").Name(p.GetName())
}

func grace(p *reprievev1.EvictPod) *int64 {
	if p.GetGracePeriod() == nil {
		return nil
	}
	seconds := int64(p.GetGracePeriod().AsDuration() / time.Second)
	return &seconds
}

// act makes a call that touches the pod. When its turn has come it looks again,
// because much may have happened meanwhile: a process that was stopped and goes on
// finds its turn, the order's end and all news at once.
func (x *evictor) act(ctx context.Context, t *client.Task, what string, do func(context.Context) error) error {
	return x.call(ctx, what, func(calling context.Context) error {
		if err := x.stillTainted(ctx, t.Pod, nodeOld); err != nil {
			return err
		}
		if t.Expired() {
			return client.ErrExpired
		}
		return do(calling)
	})
}

// call makes one call within the limits. Once it is made it is not taken back:
// what came of it must be known. A call that the API server had no room for
// (API priority and fairness) is made again, because that says nothing of the pod.
func (x *evictor) call(ctx context.Context, what string, do func(context.Context) error) error {
	for try := 1; ; try++ {
		if err := x.limit.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("wait for the turn: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := x.once(ctx, do)
		if err == nil || lacksRight(err) || apierrors.IsUnauthorized(err) {
			x.refused.note(context.WithoutCancel(ctx), what, err)
		}
		if _, blocked := budget(err); blocked || !apierrors.IsTooManyRequests(err) || try == busyTries {
			return err
		}
		seconds, _ := apierrors.SuggestsClientDelay(err)
		pause, cancel := context.WithTimeout(ctx, time.Duration(min(max(seconds, 1), 5))*time.Second)
		<-pause.Done()
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// once makes a call, which the order's recall or expiry does not end.
func (x *evictor) once(order context.Context, do func(context.Context) error) error {
	ctx, cancel := outlasting(order)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	err := do(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		// Not the order's end in so many words: the call may have had its effect.
		return fmt.Errorf("the agent ended during the call: %v", err) //nolint:errorlint // see above
	}
	return err
}

// outlasting is a context that an order's recall or expiry does not end. The
// agent's own end does.
func outlasting(order context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(order))
	detach := context.AfterFunc(order, func() {
		if cause := context.Cause(order); !errors.Is(cause, client.ErrRecalled) && !errors.Is(cause, client.ErrExpired) {
			cancel(cause)
		}
	})
	return ctx, func() {
		detach()
		cancel(nil)
	}
}

// whose turns a refusal for the pod's identity into an answer: the pod is gone,
// or another one has its name. The API server says Conflict for a wrong UID and
// for other reasons, so a conflict is looked into; a patch with a wrong UID it
// takes for a change of the UID.
func (x *evictor) whose(ctx context.Context, p *reprievev1.EvictPod, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return answer(reprievev1.Outcome_OUTCOME_GONE, "the pod does not exist any more")
	case !apierrors.IsConflict(err) && !changesUID(err):
		return err
	}
	var now corev1.Pod
	switch got := x.call(ctx, "get pods in "+p.GetNamespace(), func(ctx context.Context) error { return x.pod(x.core.Get(), p).Do(ctx).Into(&now) }); {
	case apierrors.IsNotFound(got):
		return answer(reprievev1.Outcome_OUTCOME_GONE, "the pod does not exist any more")
	case got == nil && string(now.UID) != p.GetUid():
		return answer(reprievev1.Outcome_OUTCOME_SUPERSEDED, "another pod has the name: UID %s", now.UID)
	}
	return err
}

// changesUID reports whether err refuses a patch because it has another UID than
// the pod of that name.
func changesUID(err error) bool {
	var st apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &st) || st.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(st.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

func isAnswer(err error) bool {
	var a *answerError
	return errors.As(err, &a)
}

// budget reports whether err is a disruption budget's refusal, and its advice.
// API priority and fairness answers with the same status and another cause.
func budget(err error) (retryAfter time.Duration, blocked bool) {
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		return 0, false
	}
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second, true
}

// refused reports whether err is a refusal, by RBAC, admission or validation, that
// a person has to look at. What is left is the API server's trouble.
func refused(err error) bool {
	var st apierrors.APIStatus
	if !errors.As(err, &st) {
		return false
	}
	code := st.Status().Code
	return code >= 400 && code < 500 && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err) && !apierrors.IsUnauthorized(err)
}

// result is the answer that an error is.
func (x *evictor) result(ctx context.Context, err error) client.Result {
	var own *answerError
	switch {
	case errors.As(err, &own):
		return own.Result
	case errors.Is(err, client.ErrExpired), ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		// Nothing was done that takes the pod away.
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_RECALLED}
	case refused(err):
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_DENIED, Message: err.Error()}
	}
	if after, blocked := budget(err); blocked {
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_BLOCKED, Message: err.Error(), RetryAfter: after}
	}
	return client.Result{Outcome: reprievev1.Outcome_OUTCOME_FAILED, Message: err.Error()}
}
