package engine

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// nodeState is what the rules D9 to D11 remember of a node.
type nodeState struct {
	uid          string
	taints       []Taint
	episodeStart time.Time
	// guards are the router's; the rules do not touch them.
	guards []Guard
}

// sighting is one look at a node.
type sighting struct {
	// at is when the node was seen.
	at time.Time
	// lastSeen is the lower bound for the start of what is new: the last time the
	// node's state was known. While the cluster is synced that is at itself.
	lastSeen time.Time
	// live: the cluster is synced, so that nothing came and went unseen.
	live bool
}

// observe returns the state that follows from seeing a node with the given
// taints. It is a pure function. ignored counts taints whose effect is missing
// or unknown (D1).
func (prev nodeState) observe(node *Node, s sighting) (next nodeState, ignored int) {
	next.uid = node.UID
	if prev.uid != node.UID {
		prev = nodeState{}
	}
	for _, o := range node.Taints {
		if !knownEffect(o.Effect) {
			ignored++
		}
		if o.Effect != string(corev1.TaintEffectNoExecute) || next.taint(o.Key, o.Value) != nil {
			continue
		}
		next.taints = append(next.taints, Taint{
			Key: o.Key, Value: o.Value, TimeAdded: o.TimeAdded,
			Start: prev.start(o, s),
		})
	}
	next.episodeStart = prev.episode(&next, s)
	return next, ignored
}

func knownEffect(effect string) bool {
	switch corev1.TaintEffect(effect) {
	case corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule:
		return true
	}
	return false
}

// start is D9: the start of a taint that goes on, or the timeAdded of a new one
// within the time in which it can have come.
func (prev nodeState) start(o ObservedTaint, s sighting) time.Time {
	if t := prev.taint(o.Key, o.Value); t != nil && (s.live || t.TimeAdded.Equal(o.TimeAdded)) {
		return t.Start
	}
	start := o.TimeAdded
	if start.IsZero() || start.After(s.at) {
		start = s.at
	}
	if start.Before(s.lastSeen) {
		start = s.lastSeen
	}
	return start
}

// episode is D11: the start of the not-ready/unreachable episode in next.
func (prev nodeState) episode(next *nodeState, s sighting) time.Time {
	var start time.Time
	same := false
	for _, t := range next.taints {
		if !isEpisodeKey(t.Key) {
			continue
		}
		if start.IsZero() || t.Start.Before(start) {
			start = t.Start
		}
		if p := prev.taint(t.Key, t.Value); p != nil && p.TimeAdded.Equal(t.TimeAdded) {
			same = true
		}
	}
	if !start.IsZero() && !prev.episodeStart.IsZero() && (s.live || same) {
		return prev.episodeStart
	}
	return start
}

func isEpisodeKey(key string) bool { return key == taintNotReady || key == taintUnreachable }

func (n *nodeState) taint(key, value string) *Taint {
	for i := range n.taints {
		if n.taints[i].Key == key && n.taints[i].Value == value {
			return &n.taints[i]
		}
	}
	return nil
}

// adopt sets every start to at (D10).
func (n *nodeState) adopt(at time.Time) {
	n.taints = slices.Clone(n.taints)
	for i := range n.taints {
		n.taints[i].Start = at
	}
	if !n.episodeStart.IsZero() {
		n.episodeStart = at
	}
}

// inForce returns the taints with the starts that decisions use: those of an
// episode have the episode's start.
func (n *nodeState) inForce() []Taint {
	if n.episodeStart.IsZero() {
		return n.taints
	}
	out := slices.Clone(n.taints)
	for i := range out {
		if isEpisodeKey(out[i].Key) {
			out[i].Start = n.episodeStart
		}
	}
	return out
}

func (n *nodeState) equal(o *nodeState) bool {
	return n.uid == o.uid && n.episodeStart.Equal(o.episodeStart) && slices.EqualFunc(n.taints, o.taints, func(a, b Taint) bool {
		return a.Key == b.Key && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded) && a.Start.Equal(b.Start)
	}) && slices.EqualFunc(n.guards, o.guards, func(a, b Guard) bool {
		return a.Key == b.Key && a.Mark == b.Mark && a.Since.Equal(b.Since)
	})
}
