package engine

import (
	"strconv"
	"sync/atomic"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
)

// pod is a pod as the engine keeps it: identity, tolerations and a few flags.
// There may be a million: what few have is in tables of its shard.
type pod struct {
	// Identity never changes, so that the router may read it too.
	namespace unique.Handle[string]
	name, uid string
	home      unique.Handle[home]
	// gen is the list the pod was last in; only the router touches it, under cluster.mu.
	gen uint32

	// What follows is owned by the shard.
	place int32 // index in node.pods
	// listed: the feed has shown the pod. A pod known only from an open eviction is not.
	listed, gone, terminating, finished, mirror bool
	// claimed: an order of ours was out, or the taint manager's mark was seen, so
	// that its mark is no news any more.
	claimed bool
	// wave is how many evictions of its owner from the node the pod has come after (see loop).
	wave uint8
	// owner is a hash of what makes another pod of the kind; see comesBack.
	owner uint64

	// node is never nil: a pod without a node is on the node named "".
	node    *node
	tols    *tolerationSet
	boundAt instant
	ev      *eviction
	// quietUntil keeps a pod whose eviction was closed ahead of the feed from being
	// opened again at once: an executor, or another controller's mark, says that it
	// is gone or going, and the feed has yet to show it.
	quietUntil instant
}

// home is the node that a pod names, with the shard that owns it. All its pods
// share one, which goes with the last of them.
type home struct {
	node  string
	shard *shard
}

func (p *pod) nodeName() string { return p.home.Value().node }

func (p *pod) shard() *shard { return p.home.Value().shard }

func (p *pod) fullName() podName { return podName{p.namespace.Value(), p.name} }

// alive reports whether the feed shows the pod, and not at its end.
func (p *pod) alive() bool { return p.listed && !p.gone && !p.terminating && !p.finished }

// node is a node as the engine keeps it, with the pods that name it.
type node struct {
	sc    *shardCluster
	name  string
	known bool
	nodeState
	// stored is the state on disk, or on its way there.
	stored *nodeState
	// seenAt is the last sighting while the cluster was not synced.
	seenAt time.Time
	// force are the taints as decisions use them; derived from nodeState.
	force []Taint
	pods  []*pod
	// shared are the last grounds that an eviction was given.
	shared *grounds
}

// share returns grounds as they are to be kept. The pods of a node mostly follow
// one another with the same.
func (n *node) share(due time.Time, c *Cause) *grounds {
	g := grounds{due: due, cause: *c, node: n, nodeUID: n.uid}
	if n.shared == nil || *n.shared != g {
		n.shared = new(grounds)
		*n.shared = g
	}
	return n.shared
}

func (n *node) add(p *pod) {
	p.node, p.place = n, int32(len(n.pods))
	n.pods = append(n.pods, p)
}

func (n *node) remove(p *pod) {
	last := len(n.pods) - 1
	moved := n.pods[last]
	n.pods[p.place] = moved
	moved.place = p.place
	n.pods[last] = nil
	n.pods = n.pods[:last]
}

// tolerationSet is a pod's list of tolerations, shared by all pods of a shard
// that have the same: a Deployment's pods differ in nothing here.
type tolerationSet struct {
	key  string
	list []corev1.Toleration
	refs int
}

// tolerationInterner hands out shared toleration lists. A shard owns it.
type tolerationInterner struct {
	sets map[string]*tolerationSet
	key  []byte // room for the key that is looked up
}

func (in *tolerationInterner) get(list []corev1.Toleration) *tolerationSet {
	if len(list) == 0 {
		return nil
	}
	in.key = appendTolerations(in.key[:0], list)
	set := in.sets[string(in.key)]
	if set == nil {
		set = &tolerationSet{key: string(in.key), list: list}
		in.sets[set.key] = set
	}
	set.refs++
	return set
}

func (in *tolerationInterner) put(set *tolerationSet) {
	if set == nil {
		return
	}
	if set.refs--; set.refs == 0 {
		delete(in.sets, set.key)
	}
}

func (s *tolerationSet) tolerations() []corev1.Toleration {
	if s == nil {
		return nil
	}
	return s.list
}

// appendTolerations appends what tells lists of tolerations apart.
func appendTolerations(b []byte, list []corev1.Toleration) []byte {
	for i := range list {
		t := &list[i]
		for _, f := range [...]string{t.Key, string(t.Operator), t.Value, string(t.Effect)} {
			b = strconv.AppendInt(b, int64(len(f)), 10)
			b = append(b, ':')
			b = append(b, f...)
		}
		if t.TolerationSeconds != nil {
			b = strconv.AppendInt(b, *t.TolerationSeconds, 10)
		}
		b = append(b, ';')
	}
	return b
}

// eviction is an open eviction. Its shard owns it; seqNo is set by the
// committer at the first commit. There may be a million: what few have at a time is in rest.
type eviction struct {
	pod   *pod // never changes, as openedAt
	seqNo atomic.Uint64
	// grounds is never nil.
	grounds *grounds
	offer   *offer
	rest    *evictionWork
	// wake is the instant in the timer heap, place its index there plus one.
	wake     instant
	openedAt instant
	revision uint64
	place    int32
	// pending counts changes on their way to the disk; committed: at least one is there.
	pending   int32
	committed bool
	indexed   bool
	// behind: it may leave, and is behind what the dispatcher is offered.
	behind bool
	state  State
	hold   Hold
}

// grounds are what an eviction goes by: its cause, the due instant that follows
// from it, and its node. They never change: evictions on the same grounds share them.
type grounds struct {
	due     time.Time
	cause   Cause
	node    *node // the pod's
	nodeUID string
}

// evictionWork is what few evictions have at a time, with what is not stored of it.
type evictionWork struct {
	evictionRest
	link *execLink
	// permit is set while there is a delivery whose order has not left.
	permit *permit
}

// evictionRest is what is stored, or shown to readers, of what few evictions have.
type evictionRest struct {
	// delivery and uncommon are never changed in place; versions share them.
	delivery    *Delivery
	uncommon    *uncommon
	notBefore   instant
	firstSentAt instant
	lastSentAt  instant
	resultAt    instant
	confirmBy   instant
	attempts    uint32
	noAnswers   uint32
	lastOutcome Outcome
}

// uncommon is what most evictions do without even while an order of theirs is out.
type uncommon struct {
	requests []Request
	// holdUntil ends the eviction's hold.
	holdUntil time.Time
	// lastMessage came with the last outcome.
	lastMessage string
	// firstDue is the due instant it was opened with, once that has moved.
	firstDue time.Time
	observed *Observation
}

// none is what evictions have that have nothing uncommon.
var none uncommon

// uncommonly is what the eviction has that most do without, for reading.
func (e *eviction) uncommonly() *uncommon {
	if e.rest == nil || e.rest.uncommon == nil {
		return &none
	}
	return e.rest.uncommon
}

// edit changes what is uncommon: versions keep what they have.
func (e *eviction) edit(change func(*uncommon)) { e.more().edit(change) }

func (m *evictionRest) edit(change func(*uncommon)) {
	var u uncommon
	if m.uncommon != nil {
		u = *m.uncommon
	}
	change(&u)
	m.uncommon = &u
}

// holdUntil and say change what is often set to what it is.
func (m *evictionRest) holdUntil(t time.Time) {
	if u := m.uncommon; u != nil && !u.holdUntil.Equal(t) || u == nil && !t.IsZero() {
		m.edit(func(u *uncommon) { u.holdUntil = t })
	}
}

func (m *evictionRest) say(message string) {
	if u := m.uncommon; u != nil && u.lastMessage != message || u == nil && message != "" {
		m.edit(func(u *uncommon) { u.lastMessage = message })
	}
}

// sc is the shard's part of the eviction's cluster, for the shard alone. The pod,
// which leads there too, is far from its cache.
func (e *eviction) sc() *shardCluster { return e.grounds.node.sc }

func (e *eviction) seq() uint64 { return e.seqNo.Load() }

func (e *eviction) due() time.Time { return e.grounds.due }

func (e *eviction) cause() *Cause { return &e.grounds.cause }

func (e *eviction) more() *evictionWork {
	if e.rest == nil {
		e.rest = &evictionWork{}
	}
	return e.rest
}

// attempts counts orders that ended in DENIED, FAILED or no answer.
func (e *eviction) attempts() uint32 {
	if e.rest == nil {
		return 0
	}
	return e.rest.attempts
}

func (e *eviction) requests() []Request { return e.uncommonly().requests }

func (e *eviction) delivery() *Delivery {
	if e.rest == nil {
		return nil
	}
	return e.rest.delivery
}

// handed reports whether the order may be with an executor. After a restart it
// may: it cannot be known whether it left before.
func (e *eviction) handed() bool {
	return e.rest != nil && e.rest.delivery != nil && e.rest.permit == nil
}

func (e *eviction) lastOutcome() Outcome {
	if e.rest == nil {
		return OutcomeUnspecified
	}
	return e.rest.lastOutcome
}

func (e *eviction) notBefore() time.Time {
	if e.rest == nil {
		return time.Time{}
	}
	return e.rest.notBefore.time()
}

// restore fills an eviction from what the store had.
func (e *eviction) restore(r *EvictionRecord) {
	e.seqNo.Store(r.Seq)
	e.state = r.State
	if e.state == StateDue {
		e.state = StateWaiting
	}
	e.openedAt, e.revision = instantOf(r.OpenedAt), r.Revision
	e.committed = true
	e.pod.claimed = !r.FirstSentAt.IsZero()
	if len(r.Requests) == 0 && r.Delivery == nil && r.NotBefore.IsZero() && r.LastOutcome == 0 && r.FirstSentAt.IsZero() &&
		r.FirstDue.IsZero() && r.Attempts == 0 && r.NoAnswers == 0 {
		return
	}
	e.rest = &evictionWork{
		evictionRest: evictionRest{
			delivery: r.Delivery, attempts: r.Attempts, noAnswers: r.NoAnswers,
			notBefore: instantOf(r.NotBefore), lastOutcome: r.LastOutcome,
			firstSentAt: instantOf(r.FirstSentAt), lastSentAt: instantOf(r.LastSentAt), resultAt: instantOf(r.ResultAt), confirmBy: instantOf(r.ConfirmBy),
		},
	}
	if len(r.Requests) > 0 || r.LastMessage != "" || !r.FirstDue.IsZero() {
		e.rest.uncommon = &uncommon{requests: r.Requests, lastMessage: r.LastMessage, firstDue: r.FirstDue}
	}
}

// causeKey tells causes apart where only their identity counts.
func causeKey(c *Cause) string {
	if c.Kind == CauseRequest {
		return "request\x00" + c.Requester + "\x00" + c.RequestID
	}
	return "taint\x00" + c.Taint.Key + "\x00" + c.Taint.Value
}
