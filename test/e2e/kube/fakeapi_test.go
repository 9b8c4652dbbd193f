package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server of nodes and pods that only lists and watches.
type fakeAPI struct {
	server *httptest.Server
	// plain has it take no list as a watch, as older servers do not.
	plain bool
	// listed is called, once, when a whole list was sent and before anything that comes after it.
	listed sync.Once
	then   func()

	mu sync.Mutex // guards what follows
	// changed is closed, and another one, when the log grows or the server goes away.
	changed chan struct{}
	version int
	objects map[types.UID]logged
	log     []logged
	// refuse is how many requests of a resource are refused before it is served again.
	refuse map[string]int
	away   chan struct{} // closed when the streams of now end
}

// logged is a change as a watch tells it.
type logged struct {
	resource string
	version  int
	kind     watch.EventType
	object   metav1.Object
}

func newFakeAPI(t *testing.T) (*fakeAPI, kubernetes.Interface) {
	t.Helper()
	a := &fakeAPI{then: func() {}, changed: make(chan struct{}), objects: map[types.UID]logged{}, refuse: map[string]int{}, away: make(chan struct{})}
	a.server = httptest.NewServer(a)
	t.Cleanup(a.server.Close)
	cs, err := kubernetes.NewForConfig(&rest.Config{Host: a.server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return a, cs
}

// put stores an object and tells of it so many times.
func (a *fakeAPI) put(object metav1.Object, times int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := watch.Modified
	if _, there := a.objects[object.GetUID()]; !there {
		kind = watch.Added
	}
	a.version++
	object.SetResourceVersion(strconv.Itoa(a.version))
	e := logged{resourceOf(object), a.version, kind, object}
	a.objects[object.GetUID()] = e
	for range times {
		a.log = append(a.log, e)
	}
	a.tellLocked()
}

func (a *fakeAPI) remove(object metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	delete(a.objects, object.GetUID())
	a.log = append(a.log, logged{resourceOf(object), a.version, watch.Deleted, object})
	a.tellLocked()
}

func (a *fakeAPI) tellLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// outage ends all streams, has change happen while nobody looks, and refuses so many requests of each resource. What
// happened before is known by lists only afterwards.
func (a *fakeAPI) outage(requests int, change func()) {
	a.mu.Lock()
	for _, resource := range []string{"nodes", "pods"} {
		a.refuse[resource] = requests
	}
	close(a.away)
	a.away = make(chan struct{})
	a.mu.Unlock()
	change()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = nil
}

func resourceOf(object metav1.Object) string {
	if _, ok := object.(*corev1.Node); ok {
		return "nodes"
	}
	return "pods"
}

// ServeHTTP implements [http.Handler].
func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource, q := path.Base(r.URL.Path), r.URL.Query()
	a.mu.Lock()
	refused, away := a.refuse[resource] > 0, a.away
	if refused {
		a.refuse[resource]--
	}
	a.mu.Unlock()
	whole := q.Get("sendInitialEvents") == "true"
	w.Header().Set("Content-Type", "application/json")
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	switch {
	case refused:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case whole && a.plain:
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case !q.Has("watch"):
		a.list(w, resource)
		a.listed.Do(a.then)
	default:
		s := stream{w: w, away: away, done: r.Context().Done()}
		if whole {
			from = a.initial(&s, resource)
			a.listed.Do(a.then)
		}
		a.watch(&s, resource, from)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)})
}

// all are the objects of a resource, and the version of that.
func (a *fakeAPI) all(resource string) (list []metav1.Object, version int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(a.objects)) {
		if e := a.objects[uid]; e.resource == resource {
			list = append(list, e.object)
		}
	}
	return list, a.version
}

func (a *fakeAPI) list(w http.ResponseWriter, resource string) {
	list, version := a.all(resource)
	kind := map[string]string{"nodes": "NodeList", "pods": "PodList"}[resource]
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": "v1", "metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}, "items": list,
	})
}

// stream is an answer to a watch.
type stream struct {
	w          http.ResponseWriter
	away, done <-chan struct{}
}

func (s *stream) send(kind watch.EventType, object any) {
	_ = json.NewEncoder(s.w).Encode(map[string]any{"type": kind, "object": object})
	_ = http.NewResponseController(s.w).Flush()
}

// initial sends a whole list as a watch does and returns its version.
func (a *fakeAPI) initial(s *stream, resource string) int {
	list, version := a.all(resource)
	for _, object := range list {
		s.send(watch.Added, object)
	}
	kind := map[string]string{"nodes": "Node", "pods": "Pod"}[resource]
	s.send(watch.Bookmark, map[string]any{"kind": kind, "apiVersion": "v1", "metadata": metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	return version
}

// watch sends what comes after a version, until the server goes away.
func (a *fakeAPI) watch(s *stream, resource string, from int) {
	_ = http.NewResponseController(s.w).Flush()
	for sent := 0; ; {
		a.mu.Lock()
		log, changed := slices.Clone(a.log[min(sent, len(a.log)):]), a.changed
		sent = len(a.log)
		a.mu.Unlock()
		for _, e := range log {
			if e.resource == resource && e.version > from {
				s.send(e.kind, e.object)
			}
		}
		select {
		case <-changed:
		case <-s.away:
			return
		case <-s.done:
			return
		}
	}
}

func fakeNode(name, ready string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionStatus(ready)}}},
	}
}

func fakePod(i int) *corev1.Pod {
	name := fmt.Sprint("p", i)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
	}
}
