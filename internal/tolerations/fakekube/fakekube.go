package fakekube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Server is an API server that has pods and nothing else.
type Server struct {
	// URL is its address; empty unless it was made by Start.
	URL string
	// Before, if set, is called before each call is answered, with its method and path.
	// What it returns, if anything, is the answer. It may call the server's methods.
	Before func(method, path string) *metav1.Status

	mu      sync.Mutex // guards what follows
	pods    []*corev1.Pod
	version int
	calls   map[string]int
}

// New returns a server that answers through its ServeHTTP alone.
func New() *Server { return &Server{version: 1000, calls: map[string]int{}} }

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := New()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	return s
}

// Put creates a pod, or replaces the one of that name. A pod without a UID gets one.
func (s *Server) Put(pods ...*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range pods {
		s.version++
		pod = pod.DeepCopy()
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		pod.ResourceVersion = strconv.Itoa(s.version)
		if pod.UID == "" {
			pod.UID = types.UID("uid-" + pod.Name)
		}
		i, found := s.find(pod.Namespace, pod.Name)
		if found {
			s.pods[i] = pod
		} else {
			s.pods = slices.Insert(s.pods, i, pod)
		}
	}
}

// Delete removes a pod.
func (s *Server) Delete(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, found := s.find(namespace, name); found {
		s.pods = slices.Delete(s.pods, i, i+1)
	}
}

// Pod is a pod as it is now; nil if there is none.
func (s *Server) Pod(namespace, name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, found := s.find(namespace, name); found {
		return s.pods[i].DeepCopy()
	}
	return nil
}

// Calls is how many calls of a method there were.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// find is a pod's place. mu is held.
func (s *Server) find(namespace, name string) (int, bool) {
	return slices.BinarySearchFunc(s.pods, namespace+"/"+name, func(p *corev1.Pod, key string) int {
		return strings.Compare(p.Namespace+"/"+p.Name, key)
	})
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.calls[r.Method]++
	s.mu.Unlock()
	if s.Before != nil {
		if st := s.Before(r.Method, r.URL.Path); st != nil {
			reply(w, int(st.Code), st)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var namespace, name string
	switch parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/"); {
	case len(parts) == 1 && parts[0] == "pods":
	case len(parts) >= 3 && parts[0] == "namespaces" && parts[2] == "pods":
		namespace = parts[1]
		if len(parts) > 3 {
			name = parts[3]
		}
	default:
		refuse(w, Refusal(http.StatusNotFound, metav1.StatusReasonNotFound, "no "+r.URL.Path))
		return
	}
	if name == "" {
		s.list(w, r, namespace)
		return
	}
	i, found := s.find(namespace, name)
	switch {
	case !found:
		refuse(w, Refusal(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("pods %q not found", name)))
	case r.Method == http.MethodPatch:
		s.patch(w, i, body)
	default:
		reply(w, http.StatusOK, s.pods[i])
	}
}

// list answers a page. The place to go on is the number of pods before it.
func (s *Server) list(w http.ResponseWriter, r *http.Request, namespace string) {
	query := r.URL.Query()
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		refuse(w, Refusal(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error()))
		return
	}
	all := slices.DeleteFunc(slices.Clone(s.pods), func(p *corev1.Pod) bool {
		return (namespace != "" && p.Namespace != namespace) || !selector.Matches(labels.Set(p.Labels))
	})
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	to := len(all)
	if limit > 0 && from+limit < to {
		to = from + limit
		left := int64(len(all) - to)
		list.Continue, list.RemainingItemCount = strconv.Itoa(to), &left
	}
	for _, p := range all[min(from, to):to] {
		list.Items = append(list.Items, *p)
	}
	reply(w, http.StatusOK, list)
}

// patch applies a JSON patch that adds tolerations under preconditions.
func (s *Server) patch(w http.ResponseWriter, i int, body []byte) {
	var ops []struct {
		Op, Path string
		Value    json.RawMessage
	}
	pod := s.pods[i].DeepCopy()
	err := json.Unmarshal(body, &ops)
	for _, op := range ops {
		switch op.Op + " " + op.Path {
		case "test /metadata/uid":
			if string(op.Value) != strconv.Quote(string(pod.UID)) {
				refuse(w, Refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the uid is another"))
				return
			}
		case "replace /metadata/resourceVersion":
			if string(op.Value) != strconv.Quote(pod.ResourceVersion) {
				refuse(w, Refusal(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified"))
				return
			}
		case "add /spec/tolerations":
			err = json.Unmarshal(op.Value, &pod.Spec.Tolerations)
		case "add /spec/tolerations/-":
			if pod.Spec.Tolerations == nil {
				err = fmt.Errorf("%s: there is no list", op.Path)
				break
			}
			var t corev1.Toleration
			err = json.Unmarshal(op.Value, &t)
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		default:
			err = fmt.Errorf("unknown operation %s %s", op.Op, op.Path)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		refuse(w, Refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, err.Error()))
		return
	}
	s.version++
	pod.ResourceVersion = strconv.Itoa(s.version)
	s.pods[i] = pod
	reply(w, http.StatusOK, pod)
}

// Refusal is an API server's answer that refuses a call.
func Refusal(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	}
}

func refuse(w http.ResponseWriter, st *metav1.Status) { reply(w, int(st.Code), st) }

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // A caller that has left needs no answer.
}
