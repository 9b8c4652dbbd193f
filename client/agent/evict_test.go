package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	getNode  = "GET /api/v1/nodes/n"
	patchPod = "PATCH /api/v1/namespaces/default/pods/p/status"
	delPod   = "DELETE /api/v1/namespaces/default/pods/p"
	getPod   = "GET /api/v1/namespaces/default/pods/p"
	evictPod = "POST /api/v1/namespaces/default/pods/p/eviction"
)

// newEvictor returns an evictor of an API server on which all goes well.
func newEvictor(a *api) *evictor {
	kube := a.kube()
	clk := clock.NewVirtual(epoch)
	ok := func(o any) func(http.ResponseWriter, []byte) {
		return func(w http.ResponseWriter, _ []byte) { reply(w, http.StatusOK, o) }
	}
	a.on(getNode, ok(testNode("n", corev1.Taint{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute})))
	a.on(patchPod, ok(testPod("p", "n")))
	a.on(delPod, ok(testPod("p", "n")))
	a.on(evictPod, ok(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"}))
	x := &evictor{
		core: kube.CoreV1().RESTClient(), limit: rate.NewLimiter(rate.Inf, 0), clock: clk,
		shows: func(string, string, string) bool { return false }, marked: func(*reprievev1.EvictPod) {},
		refused: quiet(),
	}
	x.nodes = &nodeReader{clock: clk, reads: map[string]*nodeRead{}, get: func(ctx context.Context, name string) (*corev1.Node, error) {
		return kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}}
	return x
}

func order(method reprievev1.EvictionMethod) *client.Task {
	return &client.Task{Attempt: 1, Pod: &reprievev1.EvictPod{
		Cluster: "c", Namespace: "default", Name: "p", Uid: "uid-p", Node: "n", Method: method,
		Cause: &reprievev1.Cause{Cause: &reprievev1.Cause_Taint{Taint: &reprievev1.TaintCause{Taint: &reprievev1.Taint{Key: "k", Value: "v", Effect: "NoExecute"}}}},
	}}
}

func refuse(code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) func(http.ResponseWriter, []byte) {
	return func(w http.ResponseWriter, _ []byte) { fail(w, code, reason, message, causes...) }
}

var budgetCause = metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods"}

const (
	byDelete = reprievev1.EvictionMethod_EVICTION_METHOD_DELETE
	byEvict  = reprievev1.EvictionMethod_EVICTION_METHOD_EVICT
	byBoth   = reprievev1.EvictionMethod_EVICTION_METHOD_EVICT_THEN_DELETE
)

func TestOutcomes(t *testing.T) {
	other := testPod("p", "n")
	other.UID = "another"
	terminating := testPod("p", "n")
	terminating.DeletionTimestamp = &metav1.Time{Time: epoch}
	finished := testPod("p", "n")
	finished.Status.Phase = corev1.PodFailed
	show := func(o any) func(http.ResponseWriter, []byte) {
		return func(w http.ResponseWriter, _ []byte) { reply(w, http.StatusOK, o) }
	}
	gone := refuse(404, metav1.StatusReasonNotFound, `pods "p" not found`)
	conflict := refuse(409, metav1.StatusReasonConflict, "Precondition failed: UID in precondition")
	// What kube-apiserver 1.37 says to a patch with another UID; see test/e2e/replaced_test.go.
	newUID := refuse(422, metav1.StatusReasonInvalid, `Pod "p" is invalid: metadata.uid: Invalid value: "u": field is immutable`,
		metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.uid"})
	budget := refuse(429, metav1.StatusReasonTooManyRequests, "Cannot evict pod", budgetCause)
	type answers map[string]func(http.ResponseWriter, []byte)
	for name, tc := range map[string]struct {
		method  reprievev1.EvictionMethod
		answers answers
		change  func(*client.Task, *evictor)
		want    reprievev1.Outcome
		message string
		// calls are those to the pod, in order.
		calls []string
	}{
		"deleted": {method: byDelete, want: reprievev1.Outcome_OUTCOME_EVICTED, calls: []string{patchPod, delPod}},
		"condition there already": {method: byDelete, want: reprievev1.Outcome_OUTCOME_EVICTED, calls: []string{delPod},
			change: func(_ *client.Task, x *evictor) { x.shows = func(string, string, string) bool { return true } }},
		"condition refused": {method: byDelete, want: reprievev1.Outcome_OUTCOME_EVICTED, calls: []string{patchPod, delPod},
			answers: answers{patchPod: refuse(403, metav1.StatusReasonForbidden, `cannot patch resource "pods/status"`)}, message: `could not be set: cannot patch`},
		"server's trouble with the condition": {method: byDelete, want: reprievev1.Outcome_OUTCOME_FAILED, calls: []string{patchPod},
			answers: answers{patchPod: refuse(500, metav1.StatusReasonInternalError, "etcd is away")}, message: "set the condition DisruptionTarget: etcd is away"},
		"server's trouble with the condition to the last": {method: byDelete, want: reprievev1.Outcome_OUTCOME_EVICTED, calls: []string{patchPod, delPod},
			answers: answers{patchPod: refuse(500, metav1.StatusReasonInternalError, "etcd is away")}, message: "could not be set: etcd is away",
			change: func(t *client.Task, _ *evictor) { t.Attempt = conditionTries }},
		"gone at the patch":         {method: byDelete, want: reprievev1.Outcome_OUTCOME_GONE, answers: answers{patchPod: gone}, calls: []string{patchPod}},
		"gone at the delete":        {method: byDelete, want: reprievev1.Outcome_OUTCOME_GONE, answers: answers{delPod: gone}, calls: []string{patchPod, delPod}},
		"replaced before the patch": {method: byDelete, want: reprievev1.Outcome_OUTCOME_SUPERSEDED, answers: answers{patchPod: newUID, getPod: show(other)}, message: "UID another", calls: []string{patchPod, getPod}},
		"conflict at the patch":     {method: byDelete, want: reprievev1.Outcome_OUTCOME_SUPERSEDED, answers: answers{patchPod: conflict, getPod: show(other)}, message: "UID another", calls: []string{patchPod, getPod}},
		"replaced before the delete": {method: byDelete, want: reprievev1.Outcome_OUTCOME_SUPERSEDED, answers: answers{delPod: conflict, getPod: show(other)},
			calls: []string{patchPod, delPod, getPod}},
		"conflict about something else": {method: byDelete, want: reprievev1.Outcome_OUTCOME_FAILED, answers: answers{delPod: conflict, getPod: show(testPod("p", "n"))},
			calls: []string{patchPod, delPod, getPod}},
		"terminating by another hand": {method: byDelete, want: reprievev1.Outcome_OUTCOME_GONE, answers: answers{patchPod: show(terminating)}, message: "terminating", calls: []string{patchPod}},
		"terminating since an earlier attempt": {method: byDelete, want: reprievev1.Outcome_OUTCOME_EVICTED, answers: answers{patchPod: show(terminating)}, calls: []string{patchPod, delPod},
			change: func(t *client.Task, _ *evictor) { t.Attempt = 2 }},
		"finished":           {method: byDelete, want: reprievev1.Outcome_OUTCOME_STALE, answers: answers{patchPod: show(finished)}, message: "Failed", calls: []string{patchPod}},
		"denied by a policy": {method: byDelete, want: reprievev1.Outcome_OUTCOME_DENIED, answers: answers{delPod: refuse(403, "", `admission webhook "w" denied the request: no`)}, message: "denied the request: no", calls: []string{patchPod, delPod}},
		"denied as invalid":  {method: byDelete, want: reprievev1.Outcome_OUTCOME_DENIED, answers: answers{delPod: refuse(422, metav1.StatusReasonInvalid, "bad")}, message: "bad", calls: []string{patchPod, delPod}},
		"server's trouble":   {method: byDelete, want: reprievev1.Outcome_OUTCOME_FAILED, answers: answers{delPod: refuse(500, metav1.StatusReasonInternalError, "etcd is away")}, message: "etcd is away", calls: []string{patchPod, delPod}},
		"our credentials":    {method: byDelete, want: reprievev1.Outcome_OUTCOME_FAILED, answers: answers{delPod: refuse(401, metav1.StatusReasonUnauthorized, "Unauthorized")}, message: "Unauthorized", calls: []string{patchPod, delPod}},
		"taint gone": {method: byDelete, want: reprievev1.Outcome_OUTCOME_STALE, message: "does not have the taint",
			answers: answers{getNode: show(testNode("n", corev1.Taint{Key: "k", Value: "other", Effect: "NoExecute"}, corev1.Taint{Key: "k", Value: "v", Effect: "NoSchedule"}))}},
		"node gone":             {method: byDelete, want: reprievev1.Outcome_OUTCOME_STALE, message: "node n is gone", answers: answers{getNode: refuse(404, metav1.StatusReasonNotFound, "no")}},
		"node cannot be read":   {method: byDelete, want: reprievev1.Outcome_OUTCOME_FAILED, message: "read node n", answers: answers{getNode: refuse(500, metav1.StatusReasonInternalError, "x")}},
		"node must not be read": {method: byDelete, want: reprievev1.Outcome_OUTCOME_DENIED, message: "read node n", answers: answers{getNode: refuse(403, metav1.StatusReasonForbidden, "x")}},
		"requested, no taint needed": {method: byDelete, want: reprievev1.Outcome_OUTCOME_EVICTED, answers: answers{getNode: refuse(404, metav1.StatusReasonNotFound, "no")}, calls: []string{patchPod, delPod},
			change: func(t *client.Task, _ *evictor) {
				t.Pod.Cause = &reprievev1.Cause{Cause: &reprievev1.Cause_Request{Request: &reprievev1.RequestCause{Requester: "fed"}}}
			}},
		"evicted":         {method: byEvict, want: reprievev1.Outcome_OUTCOME_EVICTED, calls: []string{evictPod}},
		"budget":          {method: byEvict, want: reprievev1.Outcome_OUTCOME_BLOCKED, answers: answers{evictPod: budget}, message: "Cannot evict pod", calls: []string{evictPod}},
		"evicted, gone":   {method: byEvict, want: reprievev1.Outcome_OUTCOME_GONE, answers: answers{evictPod: gone}, calls: []string{evictPod}},
		"budget, for now": {method: byBoth, want: reprievev1.Outcome_OUTCOME_BLOCKED, answers: answers{evictPod: budget}, calls: []string{evictPod}, change: waitLeft(time.Second)},
		"budget, long enough": {method: byBoth, want: reprievev1.Outcome_OUTCOME_EVICTED, answers: answers{evictPod: budget}, calls: []string{evictPod, patchPod, delPod}, change: waitLeft(0),
			message: "refused to the end of budget_wait"},
		"budget, wait not told":  {method: byBoth, want: reprievev1.Outcome_OUTCOME_BLOCKED, answers: answers{evictPod: budget}, calls: []string{evictPod}},
		"evicted in time":        {method: byBoth, want: reprievev1.Outcome_OUTCOME_EVICTED, calls: []string{evictPod}, change: waitLeft(0)},
		"trouble is no budget":   {method: byBoth, want: reprievev1.Outcome_OUTCOME_FAILED, answers: answers{evictPod: refuse(500, metav1.StatusReasonInternalError, "x")}, calls: []string{evictPod}, change: waitLeft(0)},
		"a method of the future": {method: 99, want: reprievev1.Outcome_OUTCOME_FAILED, message: "newer"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			x := newEvictor(a)
			for call, f := range tc.answers {
				a.on(call, f)
			}
			task := order(tc.method)
			marked := 0
			x.marked = func(*reprievev1.EvictPod) { marked++ }
			if tc.change != nil {
				tc.change(task, x)
			}
			r := x.evict(t.Context(), task)
			if r.Outcome != tc.want || !strings.Contains(r.Message, tc.message) {
				t.Errorf("answer %s %q, want %s %q", r.Outcome, r.Message, tc.want, tc.message)
			}
			var calls []string
			for _, c := range a.calls {
				if c != getNode {
					calls = append(calls, c)
				}
			}
			equal(t, calls, tc.calls...)
			if want := map[bool]int{true: 1}[tc.want == reprievev1.Outcome_OUTCOME_EVICTED]; marked != want {
				t.Errorf("%d pods were announced, want %d", marked, want)
			}
			if tc.want == reprievev1.Outcome_OUTCOME_BLOCKED && r.RetryAfter != 10*time.Second {
				t.Errorf("retry after %s, want the budget's 10s", r.RetryAfter)
			}
		})
	}
}

func waitLeft(d time.Duration) func(*client.Task, *evictor) {
	return func(t *client.Task, _ *evictor) { t.Pod.BudgetWait = durationpb.New(d) }
}

// What goes to the API server names the UID, and the condition as the original
// sets it.
func TestPreconditions(t *testing.T) {
	a := newAPI(t)
	x := newEvictor(a)
	task := order(byDelete)
	task.Pod.GracePeriod = durationpb.New(7 * time.Second)
	x.evict(t.Context(), task)
	task.Pod.Method = byEvict
	x.evict(t.Context(), task)
	want := map[string][]string{
		patchPod: {`"uid":"uid-p"`, `"reason":"DeletionByTaintManager"`, `"type":"DisruptionTarget"`, `"status":"True"`, `"lastTransitionTime":"2026-01-01T00:00:00Z"`},
		delPod:   {`"preconditions":{"uid":"uid-p"}`, `"gracePeriodSeconds":7`},
		evictPod: {`"preconditions":{"uid":"uid-p"}`, `"gracePeriodSeconds":7`},
	}
	for i, call := range a.calls {
		for _, text := range want[call] {
			if !strings.Contains(a.bodies[i], text) {
				t.Errorf("%s has no %s: %s", call, text, a.bodies[i])
			}
		}
		if !json.Valid([]byte(a.bodies[i])) && a.bodies[i] != "" {
			t.Errorf("%s: body %q", call, a.bodies[i])
		}
		delete(want, call)
	}
	if len(want) > 0 {
		t.Errorf("not called: %v", want)
	}
}

// A recall ends what has not begun; what has begun is told truly.
func TestRecall(t *testing.T) {
	t.Run("while waiting for the turn", func(t *testing.T) {
		a := newAPI(t)
		x := newEvictor(a)
		x.limit = rate.NewLimiter(rate.Every(time.Hour), 1)
		x.limit.Allow()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(client.ErrRecalled)
		if r := x.evict(ctx, order(byEvict)); r.Outcome != reprievev1.Outcome_OUTCOME_RECALLED || a.count("POST") != 0 {
			t.Errorf("answer %s %q; calls %v", r.Outcome, r.Message, a.calls)
		}
	})
	for name, tc := range map[string]struct {
		cause error
		want  reprievev1.Outcome
	}{
		"while the deletion is on its way": {client.ErrRecalled, reprievev1.Outcome_OUTCOME_EVICTED},
		"expired meanwhile":                {client.ErrExpired, reprievev1.Outcome_OUTCOME_EVICTED},
		"the agent ends":                   {context.Canceled, reprievev1.Outcome_OUTCOME_FAILED},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			x := newEvictor(a)
			ctx, cancel := context.WithCancelCause(t.Context())
			release := make(chan struct{})
			a.on(delPod, func(w http.ResponseWriter, _ []byte) {
				cancel(tc.cause)
				<-release
				reply(w, http.StatusOK, testPod("p", "n"))
			})
			if tc.want == reprievev1.Outcome_OUTCOME_EVICTED {
				close(release)
			} else {
				defer close(release)
			}
			if r := x.evict(ctx, order(byDelete)); r.Outcome != tc.want {
				t.Errorf("answer %s %q, want %s", r.Outcome, r.Message, tc.want)
			}
		})
	}
	t.Run("the agent ends during the look at the node", func(t *testing.T) {
		a := newAPI(t)
		x := newEvictor(a)
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		defer close(release)
		a.on(getNode, func(http.ResponseWriter, []byte) {
			cancel()
			<-release
		})
		if r := x.evict(ctx, order(byDelete)); r.Outcome == reprievev1.Outcome_OUTCOME_EVICTED || a.count("POST")+a.count("DELETE") != 0 {
			t.Errorf("answer %s %q; calls %v", r.Outcome, r.Message, a.calls)
		}
	})
	t.Run("between condition and deletion", func(t *testing.T) {
		a := newAPI(t)
		x := newEvictor(a)
		ctx, cancel := context.WithCancelCause(t.Context())
		a.on(patchPod, func(w http.ResponseWriter, _ []byte) {
			cancel(client.ErrRecalled)
			reply(w, http.StatusOK, testPod("p", "n"))
		})
		if r := x.evict(ctx, order(byDelete)); r.Outcome != reprievev1.Outcome_OUTCOME_RECALLED || a.count(delPod) != 0 {
			t.Errorf("answer %s %q; calls %v", r.Outcome, r.Message, a.calls)
		}
	})
}

// An API server without room (priority and fairness) says nothing of the pod: the
// same call is made again.
func TestBusyServerIsNoBudget(t *testing.T) {
	a := newAPI(t)
	x := newEvictor(a)
	var mu sync.Mutex
	left := 1
	a.on(evictPod, func(w http.ResponseWriter, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		if left--; left >= 0 {
			w.Header().Set("Retry-After", "1")
			fail(w, 429, metav1.StatusReasonTooManyRequests, "too many requests, please try again later")
			return
		}
		reply(w, http.StatusOK, metav1.Status{Status: "Success"})
	})
	if r := x.evict(t.Context(), order(byEvict)); r.Outcome != reprievev1.Outcome_OUTCOME_EVICTED || a.count(evictPod) != 2 {
		t.Errorf("answer %s %q after %d calls", r.Outcome, r.Message, a.count(evictPod))
	}
}

// Orders of one node share its read for a second, and no longer.
func TestNodeReadsAreShared(t *testing.T) {
	a := newAPI(t)
	x := newEvictor(a)
	clk := clock.NewVirtual(epoch)
	x.nodes.clock = clk
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { x.evict(t.Context(), order(byEvict)) })
	}
	wg.Wait()
	if n := a.count(getNode); n != 1 {
		t.Errorf("the node was read %d times at one instant", n)
	}
	clk.Set(epoch.Add(nodeFresh))
	x.evict(t.Context(), order(byEvict))
	if n := a.count(getNode); n != 2 {
		t.Errorf("the node was read %d times, want 2 a second later", n)
	}
}

// What happens between the look at the node and the call that takes the pod away
// counts, as when the process was stopped in between.
func TestLooksAgainBeforeThePodIsTouched(t *testing.T) {
	untainted := func(w http.ResponseWriter, _ []byte) { reply(w, http.StatusOK, testNode("n")) }
	for name, tc := range map[string]struct {
		method reprievev1.EvictionMethod
		// at is the call after which the time passes; not is the one that must not follow.
		at, not string
	}{
		"before the delete":    {byDelete, patchPod, delPod},
		"before the condition": {byDelete, getNode, patchPod},
		"before the eviction":  {byEvict, getNode, evictPod},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			x := newEvictor(a)
			clk := clock.NewVirtual(epoch)
			x.nodes.clock = clk
			a.mu.Lock()
			usual := a.answers[tc.at]
			a.mu.Unlock()
			a.on(tc.at, func(w http.ResponseWriter, body []byte) {
				a.on(getNode, untainted)
				clk.Set(epoch.Add(nodeOld))
				usual(w, body)
			})
			if r := x.evict(t.Context(), order(tc.method)); r.Outcome != reprievev1.Outcome_OUTCOME_STALE || a.count(tc.not) != 0 {
				t.Errorf("answer %s %q; calls %v", r.Outcome, r.Message, a.calls)
			}
		})
	}
}
