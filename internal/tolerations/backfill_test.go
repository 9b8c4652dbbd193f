package tolerations

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/internal/tolerations/fakekube"
)

// lab is an API server and a source that reads it.
func lab(t *testing.T) (*fakekube.Server, Source) {
	t.Helper()
	s := fakekube.Start(t)
	conf := &rest.Config{Host: s.URL, QPS: -1}
	conf.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		t.Cleanup(func() { rt.(*http.Transport).CloseIdleConnections() })
		return rt
	})
	k, err := kubernetes.NewForConfig(conf)
	if err != nil {
		t.Fatal(err)
	}
	return s, Source{Pods: k.CoreV1(), Timeout: time.Minute}
}

func named(name string, tols ...corev1.Toleration) *corev1.Pod {
	p := podWith(tols...)
	p.Name = name
	return p
}

var (
	waits = Waits{NotReady: 300 * time.Second, Unreachable: 200 * time.Second}
	fast  = Pace{PerSecond: 1e6}
)

// backfillOf makes a plan and applies it.
func backfillOf(t *testing.T, src Source) (*Backfill, error) {
	t.Helper()
	plan, err := MakePlan(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	err = plan.Apply(t.Context(), waits, fast)
	return plan.Report(false), err
}

// tally is a report without its items.
func tally(r *Backfill) Backfill {
	short := *r
	short.Work = nil
	return short
}

func TestBackfillAddsWhatIsMissing(t *testing.T) {
	s, src := lab(t)
	rack := equal("rack", "7", 60)
	s.Put(named("bare"), named("half", rack, exists(notReady, 5)), named("value", equal(unreachable, "x", 5), exists(notReady, 5)),
		named("whole", exists(notReady, 5), exists(unreachable, -1)))
	before := map[string]*corev1.Pod{}
	want := map[string][]corev1.Toleration{
		"bare":  {exists(notReady, 300), exists(unreachable, 200)},
		"half":  {rack, exists(notReady, 5), exists(unreachable, 200)},
		"value": {equal(unreachable, "x", 5), exists(notReady, 5), exists(unreachable, 200)},
		"whole": {exists(notReady, 5), exists(unreachable, -1)},
	}
	for name := range want {
		before[name] = s.Pod("web", name)
	}

	plan, err := MakePlan(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	dry := plan.Report(true)
	if diff := cmp.Diff(Backfill{DryRun: true, Looked: 4, Lacking: 3, Left: 3}, tally(dry)); diff != "" || s.Calls("PATCH") != 0 {
		t.Errorf("dry run: %d patches, -want +got:\n%s", s.Calls("PATCH"), diff)
	}

	r, err := backfillOf(t, src)
	if diff := cmp.Diff(Backfill{Looked: 4, Lacking: 3, Mended: 3}, tally(r)); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for name, tols := range want {
		got := s.Pod("web", name)
		if diff := cmp.Diff(tols, got.Spec.Tolerations); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		got.ResourceVersion, got.Spec.Tolerations = before[name].ResourceVersion, before[name].Spec.Tolerations
		if diff := cmp.Diff(before[name], got); diff != "" {
			t.Errorf("%s changed elsewhere: -before +after:\n%s", name, diff)
		}
	}
	again, err := backfillOf(t, src)
	if diff := cmp.Diff(Backfill{Looked: 4}, tally(again)); diff != "" || err != nil {
		t.Errorf("the second run: %v, -want +got:\n%s", err, diff)
	}
}

// A pod that changes between its list and its patch is read again, and what is there
// then decides.
func TestBackfillReadsAgain(t *testing.T) {
	s, src := lab(t)
	s.Put(named("changed"), named("gone"), named("other"), named("whole"), named("finished"), named("restless"))
	plan, err := MakePlan(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	changed := named("changed", exists(notReady, 7))
	s.Put(changed, named("whole", exists(notReady, 7), exists(unreachable, 7)))
	s.Delete("web", "gone")
	other := named("other")
	other.UID = "another"
	finished := named("finished")
	finished.Status.Phase = corev1.PodFailed
	s.Put(other, finished)
	s.Before = func(method, path string) *metav1.Status {
		if method == http.MethodPatch && strings.HasSuffix(path, "/restless") {
			s.Put(named("restless"))
		}
		return nil
	}
	if err := plan.Apply(t.Context(), waits, fast); err != nil {
		t.Fatal(err)
	}
	r := plan.Report(false)
	if diff := cmp.Diff(Backfill{Looked: 6, Lacking: 6, Mended: 1, Whole: 1, Gone: 3, Failed: 1}, tally(r)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := s.Pod("web", "changed").Spec.Tolerations; !cmp.Equal(got, []corev1.Toleration{exists(notReady, 7), exists(unreachable, 200)}) {
		t.Errorf("the changed pod has %v", got)
	}
	if got := s.Pod("web", "other").Spec.Tolerations; got != nil {
		t.Errorf("a replacement of the same name was patched: %v", got)
	}
}

// What the API server refuses for good is told of, and the others are mended.
func TestBackfillRefused(t *testing.T) {
	s, src := lab(t)
	var pods []*corev1.Pod
	for i := range 60 {
		pods = append(pods, named(fmt.Sprintf("p%02d", i)))
	}
	s.Put(pods...)
	s.Before = func(method, path string) *metav1.Status {
		if method == http.MethodPatch && strings.HasSuffix(path, "5") {
			return fakekube.Refusal(http.StatusForbidden, metav1.StatusReasonForbidden, "admission webhook says no")
		}
		if method == http.MethodPatch && strings.HasSuffix(path, "6") {
			return fakekube.Refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "spec.tolerations[0].key: Invalid value")
		}
		return nil
	}
	r, err := backfillOf(t, src)
	if diff := cmp.Diff(Backfill{Looked: 60, Lacking: 60, Mended: 48, Failed: 12}, tally(r)); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for _, f := range r.Work[0].Failed {
		if !strings.HasSuffix(f.Pod.Name, "5") && !strings.HasSuffix(f.Pod.Name, "6") || f.Error == "" {
			t.Errorf("failed: %+v", f)
		}
	}
}

// A run whose every patch is refused ends long before it has asked for each pod.
func TestBackfillEndsWhenAllIsRefused(t *testing.T) {
	s, src := lab(t)
	for i := range 500 {
		s.Put(named(fmt.Sprintf("p%03d", i)))
	}
	s.Before = func(method, _ string) *metav1.Status {
		if method == http.MethodPatch {
			return fakekube.Refusal(http.StatusForbidden, metav1.StatusReasonForbidden, "cannot patch resource pods")
		}
		return nil
	}
	r, err := backfillOf(t, src)
	if err == nil || !strings.Contains(err.Error(), "in a row") || r.Failed < maxFailedInRow || r.Failed > maxFailedInRow+workers || r.Left+r.Failed != 500 {
		t.Errorf("%v; %+v", err, tally(r))
	}
}

// An interrupted run is gone on with by the next one, with nothing kept in between.
func TestBackfillInterrupted(t *testing.T) {
	s, src := lab(t)
	for i := range 200 {
		s.Put(named(fmt.Sprintf("p%03d", i)))
	}
	plan, err := MakePlan(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pace := fast
	pace.Progress = func(done, _ int) {
		if done == 50 {
			cancel()
		}
	}
	err = plan.Apply(ctx, waits, pace)
	first := plan.Report(false)
	if err == nil || first.Failed != 0 || first.Mended < 50 || first.Left == 0 {
		t.Errorf("%v; %+v", err, tally(first))
	}
	second, err := backfillOf(t, src)
	// The server may carry out a patch whose caller has gone after the second run's list: that pod is whole by then.
	if err != nil || second.Failed != 0 || second.Mended == 0 || second.Mended+second.Whole != second.Lacking || second.Whole > workers {
		t.Errorf("the second run: %v; %+v", err, tally(second))
	}
	third, err := backfillOf(t, src)
	if err != nil || third.Lacking != 0 || third.Looked != 200 {
		t.Errorf("the third run: %v; %+v", err, tally(third))
	}
}

// Patches keep to the rate.
func TestBackfillRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakekube.New()
		k, err := kubernetes.NewForConfig(&rest.Config{Host: "http://kube", QPS: -1, Transport: direct{s}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 11 {
			s.Put(named(fmt.Sprintf("p%d", i)))
		}
		var mu sync.Mutex
		var at []time.Duration
		begin := time.Now()
		s.Before = func(method, _ string) *metav1.Status {
			if method == http.MethodPatch {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(begin).Round(time.Millisecond))
			}
			return nil
		}
		plan, err := MakePlan(t.Context(), Source{Pods: k.CoreV1(), Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Apply(t.Context(), waits, Pace{PerSecond: 50}); err != nil {
			t.Fatal(err)
		}
		var want []time.Duration
		for i := range 11 {
			want = append(want, time.Duration(i)*20*time.Millisecond)
		}
		if d := cmp.Diff(want, at); d != "" {
			t.Errorf("patches (-want +got):\n%s", d)
		}
	})
}

// direct calls a server without a connection, which virtual time does not wait for.
type direct struct{ server http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r = r.Clone(r.Context())
		r.Body = http.NoBody // A server's request always has one.
	}
	w := httptest.NewRecorder()
	d.server.ServeHTTP(w, r)
	return w.Result(), nil
}

// Every page is read, also where the API server has forgotten the state that the list began with.
func TestAuditReadsAllPages(t *testing.T) {
	s, src := lab(t)
	for i := range 2*pageSize + 3 {
		p := named(fmt.Sprintf("p%04d", i))
		if i%2 == 1 {
			p = named(p.Name, exists(notReady, 300), exists(unreachable, 300))
		}
		s.Put(p)
	}
	lists := 0
	s.Before = func(string, string) *metav1.Status {
		if lists++; lists != 2 {
			return nil
		}
		st := fakekube.Refusal(http.StatusGone, metav1.StatusReasonExpired, "too old")
		st.Continue = fmt.Sprint(pageSize - 1) // A place that lies one earlier, to tell it from the one that expired.
		return st
	}
	var totals []int
	src.Progress = func(_, total int) { totals = append(totals, total) }
	audit, err := RunAudit(t.Context(), src, Kinds)
	if err != nil {
		t.Fatal(err)
	}
	if audit.Looked != 2*pageSize+4 || len(audit.Groups) != 1 || lists != 4 || totals[0] != 2*pageSize+3 {
		t.Errorf("looked at %d pods in %d lists, %d groups, totals %v", audit.Looked, lists, len(audit.Groups), totals)
	}
	s.Before = func(string, string) *metav1.Status {
		return fakekube.Refusal(http.StatusGone, metav1.StatusReasonExpired, "too old")
	}
	if _, err := RunAudit(t.Context(), src, Kinds); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("a list that expired without a place to go on: %v", err)
	}
}

func TestAuditGroups(t *testing.T) {
	s, src := lab(t)
	controls := true
	own := func(p *corev1.Pod, kind, name string) *corev1.Pod {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "x"}, {Kind: kind, Name: name, Controller: &controls}}
		return p
	}
	done := named("done")
	done.Status.Phase = corev1.PodSucceeded
	s.Put(own(named("a-1"), "ReplicaSet", "a"), own(named("a-2"), "ReplicaSet", "a"), own(named("b-0", exists("", -1)), "StatefulSet", "b"), named("lone"), done)
	audit, err := RunAudit(t.Context(), src, Kinds)
	if err != nil {
		t.Fatal(err)
	}
	at := Finding{Kind: LeavesAtOnce, Taints: []string{notReady, unreachable}}
	want := &Audit{
		Looked: 5, Exempt: 1, Counts: map[Kind]int{LeavesAtOnce: 3, CannotMatch: 0, Hidden: 0, NeverEnds: 1},
		Groups: []Group{
			{Namespace: "web", Finding: at, Pods: []Pod{{"lone", "uid-lone"}}},
			{Namespace: "web", Owner: Owner{"ReplicaSet", "a"}, Finding: at, Pods: []Pod{{"a-1", "uid-a-1"}, {"a-2", "uid-a-2"}}},
			{Namespace: "web", Owner: Owner{"StatefulSet", "b"}, Pods: []Pod{{"b-0", "uid-b-0"}},
				Finding: Finding{Kind: NeverEnds, Taints: []string{notReady, unreachable}, Toleration: ptr(exists("", -1))}},
		},
	}
	if diff := cmp.Diff(want, audit); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	few, err := RunAudit(t.Context(), src, []Kind{NeverEnds})
	if err != nil || len(few.Groups) != 1 || len(few.Counts) != 1 {
		t.Errorf("%v; %+v", err, few)
	}
}
