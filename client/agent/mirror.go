package agent

import (
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// maxQueue bounds the changes that wait for the stream. Beyond it a new list
// says the same in less.
const maxQueue = 100_000

// state is what is known of a cluster's nodes and pods, and the changes that the
// service has not been told. Both mirrors and the queue are under one lock, so
// that a list is of one instant and the changes after it follow it without a gap.
type state struct {
	mu    sync.Mutex // guards what follows, and the mirrors' own fields
	nodes mirror
	pods  mirror
	queue []*reprievev1.Event
	// told says that a list was taken, so that changes are queued.
	told bool
	// relist says that the queue is not the whole truth any more.
	relist bool
	// in and out count the events that ever came into the queue and were emitted.
	in, out uint64
	// moved is closed and replaced whenever any of this changes.
	moved  chan struct{}
	teller teller
}

// teller is told what people should know of the mirrors.
type teller interface {
	// relisted: a watch lost its place and listed again.
	relisted(resource string)
	// unfit: these fields of an object are beyond the contract's bounds. They were
	// cut, or the object was left out.
	unfit(resource, key string, fields []string, leftOut bool)
}

func newState(t teller) *state {
	s := &state{moved: make(chan struct{}), teller: t}
	s.nodes = mirror{state: s, resource: "nodes", objects: map[string]kept{}}
	s.pods = mirror{state: s, resource: "pods", objects: map[string]kept{}}
	return s
}

// signal wakes whoever waits for a change. mu is held.
func (s *state) signal() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// stir is signal for those outside.
func (s *state) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signal()
}

// push queues a change. mu is held.
func (s *state) push(e *reprievev1.Event) {
	if !s.told || s.relist {
		return
	}
	if len(s.queue) >= maxQueue {
		s.queue, s.relist = nil, true
	} else {
		s.queue = append(s.queue, e)
		s.in++
	}
	s.signal()
}

// tell is push for those outside.
func (s *state) tell(e *reprievev1.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.push(e)
}

// list takes the whole state, nodes first, from which on changes are queued. It
// reports false while one of the mirrors has not had its first list.
func (s *state) list() ([][]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.nodes.synced || !s.pods.synced {
		return nil, false
	}
	all := make([][]byte, 0, len(s.nodes.objects)+len(s.pods.objects))
	for _, m := range []*mirror{&s.nodes, &s.pods} {
		for _, k := range m.objects {
			all = append(all, k.event)
		}
	}
	s.queue, s.told, s.relist = nil, true, false
	s.out = s.in
	return all, true
}

// take empties the queue. It reports whether a new list is needed instead.
func (s *state) take() (events []*reprievev1.Event, relist bool, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, s.queue = s.queue, nil
	return events, s.relist, s.moved
}

// emitted notes that n events have been handed on.
func (s *state) emitted(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out += uint64(n)
	s.signal()
}

// counts are the numbers of nodes, of pods and of queued changes.
func (s *state) counts() (nodes, pods, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes.objects), len(s.pods.objects), len(s.queue)
}

// waiter returns a channel that is closed at the next change.
func (s *state) waiter() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

// podShows reports whether the pod of that UID is known to have the condition
// that an eviction sets first.
func (s *state) podShows(namespace, name, uid string) bool {
	s.mu.Lock()
	k, ok := s.pods.objects[namespace+"/"+name]
	s.mu.Unlock()
	if !ok || k.uid != uid {
		return false
	}
	var e reprievev1.Event
	return proto.Unmarshal(k.event, &e) == nil && e.GetPod().GetDisruptionReason() == deletionByTaint
}

// kept is an object as it was last told: a marshalled event, which takes a
// fraction of what the object takes.
type kept struct {
	uid   string
	event []byte
}

// mirror is the store of one resource's reflector.
type mirror struct {
	state    *state
	resource string
	synced   bool
	objects  map[string]kept
}

var (
	_ cache.ReflectorStore    = (*mirror)(nil)
	_ cache.TransformingStore = (*mirror)(nil)
)

// listed is an object that has just come in, of a list or a watch.
type listed struct {
	key string
	kept
}

// Transformer implements [cache.TransformingStore]: a streamed list gathers what
// is kept of its objects, so that the objects are never there all at once.
func (m *mirror) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		l, _, err := m.keep(obj)
		return l, err
	}
}

// Resync implements [cache.ReflectorStore]; there is nothing to tell again.
func (m *mirror) Resync() error { return nil }

// Add implements [cache.ReflectorStore].
func (m *mirror) Add(obj any) error { return m.put(obj) }

// Update implements [cache.ReflectorStore].
func (m *mirror) Update(obj any) error { return m.put(obj) }

func (m *mirror) put(obj any) error {
	l, e, err := m.keep(obj)
	if err != nil || e == nil {
		return err
	}
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	if old, ok := m.objects[l.key]; ok && old.uid == l.uid && string(old.event) == string(l.event) {
		return nil
	}
	m.objects[l.key] = l.kept
	m.state.push(e)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (m *mirror) Delete(obj any) error {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	e, err := event(obj, reprievev1.Event_EVENT_TYPE_DELETE)
	if err != nil {
		return err
	}
	// What was cut was told of when the object came.
	_, tellable := client.Fit(e)
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	delete(m.objects, key)
	if tellable {
		m.state.push(e)
	}
	return nil
}

// Replace implements [cache.ReflectorStore]: a whole list. After the first one it
// means that the watch lost its place: what happened in between is not known, so
// the service needs a list too. A list in place of changes is what makes an
// object that is missing from it removed at the list's end and no earlier.
func (m *mirror) Replace(list []any, _ string) error {
	objects := make(map[string]kept, len(list))
	for _, obj := range list {
		l, ok := obj.(listed)
		if !ok {
			var err error
			if l, _, err = m.keep(obj); err != nil {
				return err
			}
		}
		if l.event != nil {
			objects[l.key] = l.kept
		}
	}
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	m.objects = objects
	if m.synced {
		m.state.teller.relisted(m.resource)
		m.state.queue, m.state.relist = nil, true
	}
	m.synced = true
	m.state.signal()
	return nil
}

// keep makes what is kept of an object and the event that tells of it: nothing of
// one that cannot be told.
func (m *mirror) keep(obj any) (listed, *reprievev1.Event, error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return listed{}, nil, err
	}
	e, err := event(obj, reprievev1.Event_EVENT_TYPE_UPSERT)
	if err != nil {
		return listed{}, nil, err
	}
	cut, tellable := client.Fit(e)
	if len(cut) > 0 || !tellable {
		m.state.teller.unfit(m.resource, key, cut, !tellable)
	}
	if !tellable {
		return listed{key: key}, nil, nil
	}
	// Deterministic, so that equal events are equal bytes.
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return listed{}, nil, err
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return listed{}, nil, err
	}
	return listed{key: key, kept: kept{uid: string(o.GetUID()), event: raw}}, e, nil
}
