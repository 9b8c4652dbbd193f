package engine_test

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
)

// model says what must be, from the rules alone and in the plainest way: it
// keeps a little history of what was seen and works everything out anew each
// time. It must not call the engine's decision.
type model struct {
	now      time.Time
	live     bool
	adopted  bool
	lastLive time.Time
	nodes    map[string]*mNode // as the cluster has them
	known    map[string]*mSeen // as the service has seen them
	pods     map[string]*mPod  // by UID, as the cluster has them

	paused     bool
	shadow     bool
	defaults   map[string]time.Duration
	noDefaults bool
	ignored    map[string]bool
	reprieves  map[string]time.Time
}

type mTaint struct {
	key, value string
	added      time.Time
}

type mNode struct {
	uid    string
	taints []mTaint
}

type mSeen struct {
	uid     string
	starts  map[mTaint2]mStart
	episode time.Time
}

type mTaint2 struct{ key, value string }

type mStart struct{ added, start time.Time }

type mPod struct {
	namespace, name, uid, node    string
	tolerations                   []corev1.Toleration
	bound                         time.Time
	terminating, finished, mirror bool
	requests                      map[string]time.Time
}

const (
	notReady    = "node.kubernetes.io/not-ready"
	unreachable = "node.kubernetes.io/unreachable"
)

func newModel(now time.Time) *model {
	return &model{
		now: now, nodes: map[string]*mNode{}, known: map[string]*mSeen{}, pods: map[string]*mPod{},
		defaults: map[string]time.Duration{notReady: 300 * time.Second, unreachable: 300 * time.Second},
		ignored:  map[string]bool{}, reprieves: map[string]time.Time{},
	}
}

// see is a look at a node while the feed is live.
func (m *model) see(name string) {
	n := m.nodes[name]
	if n == nil {
		delete(m.known, name)
		return
	}
	old := m.known[name]
	if old == nil || old.uid != n.uid {
		old = &mSeen{uid: n.uid, starts: map[mTaint2]mStart{}}
	}
	now := &mSeen{uid: n.uid, starts: map[mTaint2]mStart{}}
	inEpisode := false
	for _, t := range n.taints {
		id := mTaint2{t.key, t.value}
		start := m.now
		if was, ok := old.starts[id]; ok {
			start = was.start
		}
		now.starts[id] = mStart{t.added, start}
		inEpisode = inEpisode || t.key == notReady || t.key == unreachable
	}
	if inEpisode {
		now.episode = m.now
		if !old.episode.IsZero() {
			now.episode = old.episode
		}
	}
	m.known[name] = now
}

// list is a look at everything after a gap, or the first ever.
func (m *model) list() {
	first := !m.adopted || m.now.Sub(m.lastLive) > 24*time.Hour
	before := m.known
	m.known = map[string]*mSeen{}
	for name, n := range m.nodes {
		old := before[name]
		if old == nil || old.uid != n.uid {
			old = &mSeen{starts: map[mTaint2]mStart{}}
		}
		s := &mSeen{uid: n.uid, starts: map[mTaint2]mStart{}}
		var earliest time.Time
		carried := false
		for _, t := range n.taints {
			id := mTaint2{t.key, t.value}
			start := t.added
			if start.IsZero() || start.After(m.now) {
				start = m.now
			}
			if start.Before(m.lastLive) {
				start = m.lastLive
			}
			was, ok := old.starts[id]
			same := ok && was.added.Equal(t.added)
			if same {
				start = was.start
			}
			if first {
				start = m.now
			}
			s.starts[id] = mStart{t.added, start}
			if t.key == notReady || t.key == unreachable {
				carried = carried || same
				if earliest.IsZero() || start.Before(earliest) {
					earliest = start
				}
			}
		}
		s.episode = earliest
		if carried && !first && !old.episode.IsZero() {
			s.episode = old.episode
		}
		m.known[name] = s
	}
	m.adopted, m.live = true, true
}

// due says whether and when a pod must leave.
func (m *model) due(p *mPod) (time.Time, bool) {
	n := m.known[p.node]
	if p.node == "" || n == nil || p.terminating || p.finished || p.mirror {
		return time.Time{}, false
	}
	var due time.Time
	found := false
	offer := func(t time.Time) {
		if !found || t.Before(due) {
			due, found = t, true
		}
	}
	for id, st := range n.starts {
		if m.ignored[id.key] {
			continue
		}
		start := st.start
		if id.key == notReady || id.key == unreachable {
			start = n.episode
		}
		if p.bound.After(start) {
			start = p.bound
		}
		if wait, ever := m.wait(p, id); !ever {
			offer(start.Add(wait))
		}
	}
	for _, at := range p.requests {
		offer(at)
	}
	return due, found
}

// wait is how long a pod tolerates a taint.
func (m *model) wait(p *mPod, id mTaint2) (time.Duration, bool) {
	for _, t := range p.tolerations {
		if t.Effect != "" && t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if t.Key != "" && t.Key != id.key {
			continue
		}
		if t.Operator != corev1.TolerationOpExists && t.Value != id.value {
			continue
		}
		switch {
		case t.TolerationSeconds == nil || *t.TolerationSeconds > 9223372036:
			return 0, true
		case *t.TolerationSeconds < 0:
			return 0, false
		}
		return time.Duration(*t.TolerationSeconds) * time.Second, false
	}
	if d, ok := m.defaults[id.key]; ok && !m.noDefaults {
		return d, false
	}
	return 0, false
}

// maySend says whether an order for a pod may leave now.
func (m *model) maySend(uid string) string {
	p := m.pods[uid]
	switch {
	case !m.live:
		return "I4: the cluster is not synced"
	case p == nil:
		return "D14: there is no such pod"
	case m.paused:
		return "I7: the cluster is paused"
	case m.shadow:
		return "the mode is SHADOW"
	case m.reprieves[uid].After(m.now):
		return "I7: the pod has a reprieve"
	}
	due, ok := m.due(p)
	switch {
	case !ok:
		return "nothing makes the pod leave"
	case due.After(m.now):
		return "I3: it is due at " + due.Format(time.RFC3339)
	}
	return ""
}

func upsertNode(name string, n *mNode) engine.Event {
	ev := &engine.Node{Name: name, UID: n.uid}
	for _, t := range n.taints {
		ev.Taints = append(ev.Taints, engine.ObservedTaint{Key: t.key, Value: t.value, Effect: "NoExecute", TimeAdded: t.added})
	}
	return engine.Event{Type: engine.EventUpsert, Node: ev}
}

func upsertPod(p *mPod) engine.Event {
	return engine.Event{Type: engine.EventUpsert, Pod: &engine.Pod{
		Namespace: p.namespace, Name: p.name, UID: p.uid, Node: p.node, Tolerations: p.tolerations,
		Terminating: p.terminating, Finished: p.finished, Mirror: p.mirror, BoundAt: p.bound,
		// Each pod has an owner of its own: the waits of pods that come back are tested apart.
		Owner: "owner of " + p.uid,
	}}
}
