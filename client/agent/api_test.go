package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) {
	// Before client-go has goroutines that log: some of them are nobody's to wait for.
	QuietKlog(slog.New(&klogged))
	// klog's flusher belongs to the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// klogged takes what client-go logs to where the test that runs wants it.
var klogged switched

// switched is a handler whose output is changed while others write.
type switched struct{ to atomic.Pointer[slog.Handler] }

// use sends what is logged to h from here on; nil discards it.
func (s *switched) use(h slog.Handler) { s.to.Store(&h) }

func (s *switched) handler() slog.Handler {
	if h := s.to.Load(); h != nil && *h != nil {
		return *h
	}
	return slog.DiscardHandler
}

func (s *switched) Enabled(ctx context.Context, l slog.Level) bool {
	return s.handler().Enabled(ctx, l)
}

func (s *switched) Handle(ctx context.Context, r slog.Record) error {
	return s.handler().Handle(ctx, r)
}

func (s *switched) WithAttrs([]slog.Attr) slog.Handler { return s }

func (s *switched) WithGroup(string) slog.Handler { return s }

// kinds are the resources that an api has.
var kinds = map[string]string{"nodes": "Node", "pods": "Pod", "leases": "Lease"}

// api is a small API server: nodes, pods and nodes' leases that can be listed and watched, and
// whatever a test wants other calls to be answered with.
type api struct {
	t   *testing.T
	url string

	mu      sync.Mutex // guards what follows
	objects map[string]map[string]any
	watches map[string][]*apiWatch
	calls   []string
	bodies  []string
	version int
	// down refuses all calls.
	down bool
	// answers are taken first, by "METHOD path".
	answers map[string]func(w http.ResponseWriter, body []byte)
	// changed is closed and replaced at every call and every new watch.
	changed chan struct{}
}

type apiWatch struct {
	events chan any
	end    chan struct{}
}

func newAPI(t *testing.T) *api {
	a := &api{
		t: t, objects: map[string]map[string]any{"nodes": {}, "pods": {}, "leases": {}}, watches: map[string][]*apiWatch{}, version: 100,
		answers: map[string]func(http.ResponseWriter, []byte){}, changed: make(chan struct{}),
	}
	srv := httptest.NewServer(a)
	a.url = srv.URL
	t.Cleanup(func() {
		for resource := range kinds {
			a.endWatches(resource)
		}
		srv.Close()
	})
	return a
}

func (a *api) kube() kubernetes.Interface {
	conf := &rest.Config{Host: a.url, QPS: -1}
	conf.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		a.t.Cleanup(func() { rt.(*http.Transport).CloseIdleConnections() })
		return rt
	})
	k, err := kubernetes.NewForConfig(conf)
	if err != nil {
		a.t.Fatal(err)
	}
	return k
}

// on answers a call so from now on.
func (a *api) on(call string, f func(w http.ResponseWriter, body []byte)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[call] = f
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	call := r.Method + " " + r.URL.Path
	query := r.URL.Query()
	resource := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/"), leasesPath)
	_, collection := kinds[resource]
	if collection {
		call += " v=" + query.Get("resourceVersion")
		if query.Get("watch") != "" {
			call += " watch"
		}
	}
	a.mu.Lock()
	a.calls, a.bodies = append(a.calls, call), append(a.bodies, string(body))
	answer, down := a.answers[call], a.down
	a.signal()
	a.mu.Unlock()
	switch {
	case down:
		fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
	case answer != nil:
		answer(w, body)
	case collection:
		a.collection(w, r, resource)
	case r.Method == http.MethodGet && strings.HasPrefix(resource, "leases/"):
		a.object(w, "leases", strings.TrimPrefix(resource, "leases/"))
	default:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no "+call)
	}
}

// signal wakes who waits. mu is held.
func (a *api) signal() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// until waits until cond, which is called with mu held, is true.
func (a *api) until(what string, cond func() bool) {
	a.t.Helper()
	for {
		a.mu.Lock()
		ok, changed := cond(), a.changed
		a.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-a.t.Context().Done():
			a.t.Fatalf("never: %s", what)
		}
	}
}

func (a *api) collection(w http.ResponseWriter, r *http.Request, resource string) {
	query := r.URL.Query()
	kind, version := kinds[resource], "v1"
	if resource == "leases" {
		version = "coordination.k8s.io/v1"
	}
	if query.Get("watch") == "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		items := []any{}
		for _, o := range a.objects[resource] {
			items = append(items, o)
		}
		reply(w, http.StatusOK, map[string]any{
			"kind": kind + "List", "apiVersion": version, "metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": items,
		})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	a.mu.Lock()
	mine := &apiWatch{events: make(chan any, 1000), end: make(chan struct{})}
	if query.Get("sendInitialEvents") == "true" {
		for _, o := range a.objects[resource] {
			mine.events <- map[string]any{"type": "ADDED", "object": o}
		}
		mine.events <- map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"kind": kind, "apiVersion": version,
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}},
		}}
	}
	a.watches[resource] = append(a.watches[resource], mine)
	a.signal()
	a.mu.Unlock()
	w.(http.Flusher).Flush()
	for {
		select {
		case e := <-mine.events:
			if enc.Encode(e) != nil {
				return
			}
			w.(http.Flusher).Flush()
		case <-mine.end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// object answers with one object of a resource.
func (a *api) object(w http.ResponseWriter, resource, name string) {
	a.mu.Lock()
	o, ok := a.objects[resource][name]
	a.mu.Unlock()
	if !ok {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no "+name)
		return
	}
	reply(w, http.StatusOK, o)
}

// send tells all watches of a resource.
func (a *api) send(resource string, event any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.watches[resource] {
		w.events <- event
	}
}

// put changes an object and tells of it.
func (a *api) put(resource, typ string, o metav1.Object) {
	typ, raw := a.store(resource, typ, o)
	a.send(resource, map[string]any{"type": typ, "object": raw})
}

// store changes an object and tells nobody, as while a watch is behind.
func (a *api) store(resource, typ string, o metav1.Object) (event string, raw map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	o.SetResourceVersion(fmt.Sprint(a.version))
	_, known := a.objects[resource][o.GetName()]
	raw = asMap(a.t, o)
	a.objects[resource][o.GetName()] = raw
	if typ == "" {
		typ = map[bool]string{false: "ADDED", true: "MODIFIED"}[known]
	}
	if typ == "DELETED" {
		delete(a.objects[resource], o.GetName())
	}
	return typ, raw
}

// lose makes watches of a resource lose their place.
func (a *api) lose(resource string) {
	a.send(resource, map[string]any{"type": "ERROR", "object": metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old",
	}})
}

// endWatches cuts the watches of a resource.
func (a *api) endWatches(resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.watches[resource] {
		close(w.end)
	}
	a.watches[resource] = nil
}

// count is how many calls so far begin so.
func (a *api) count(prefix string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}

func asMap(t *testing.T, o any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func reply(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) {
	st := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: message}
	if len(causes) > 0 {
		st.Details = &metav1.StatusDetails{Causes: causes, RetryAfterSeconds: 10}
		w.Header().Set("Retry-After", "10")
	}
	reply(w, code, st)
}

func testNode(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.NodeSpec{Taints: taints},
	}
}

// leasesPath is where the nodes' leases are.
const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/"

func testLease(node string, renewed time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: node, UID: types.UID("uid-lease-" + node)},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &at},
	}
}

func testPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: node},
	}
}
