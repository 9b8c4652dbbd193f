package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// deliveryGrace is how long the deliveries of an ended stream are kept for the
// same executor to come back.
const deliveryGrace = 5 * time.Second

// deliveryRef tells where a live token belongs.
type deliveryRef struct {
	// health is set for an order for a node, shard and ev for an eviction's.
	health  *healthOwner
	shard   *shard
	ev      *eviction
	cluster string
	// session is the stream that has the order; nil after a restart.
	session *ExecutorSession
	// leaving is set when the token goes for good; nothing takes an answer any more.
	leaving *leaving
}

// leaving are tokens that go together, for good, once that is on disk. Until then
// it may come to nothing, so that nobody is told that one of them is unknown.
type leaving struct {
	tokens  []string
	replies []func()
}

// deliveries are the tokens that are live, or whose end is not on disk yet. The
// shard knows which.
type deliveries struct {
	mu   sync.Mutex // guards live, and all that is leaving
	live map[string]deliveryRef
}

func newDeliveries() *deliveries { return &deliveries{live: map[string]deliveryRef{}} }

func (d *deliveries) add(token string, ref deliveryRef) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live[token] = ref
}

func (d *deliveries) remove(token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.live, token)
}

func (d *deliveries) get(token string) (deliveryRef, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ref, ok := d.live[token]
	return ref, ok
}

// claim moves a token to a session and reports whether it is live and the session's to take.
func (d *deliveries) claim(token string, s *ExecutorSession) (deliveryRef, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ref, ok := d.live[token]
	if !ok || ref.leaving != nil || !s.serves(ref.cluster) {
		return deliveryRef{}, false
	}
	ref.session = s
	d.live[token] = ref
	return ref, true
}

// leave calls an order back whose token goes with others.
func (d *deliveries) leave(token string, l *leaving) {
	d.recall(token, RecallCancelled)
	d.mu.Lock()
	defer d.mu.Unlock()
	if ref, ok := d.live[token]; ok {
		ref.leaving = l
		d.live[token] = ref
		l.tokens = append(l.tokens, token)
	}
}

// gone removes what was leaving, since it is on disk, and answers who waited for that.
func (d *deliveries) gone(l *leaving) {
	d.mu.Lock()
	for _, token := range l.tokens {
		delete(d.live, token)
	}
	replies := l.replies
	d.mu.Unlock()
	for _, reply := range replies {
		reply()
	}
}

// defers has the answer to a token that is leaving wait until it is gone. It
// reports false if the token is not leaving.
func (d *deliveries) defers(m *resultMsg) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.live[m.token].leaving
	if l == nil {
		return false
	}
	l.replies = append(l.replies, func() { m.reply(0, false) })
	return true
}

// of returns the tokens of a session.
func (d *deliveries) of(s *ExecutorSession) map[string]deliveryRef {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]deliveryRef{}
	for token, ref := range d.live {
		if ref.session == s {
			out[token] = ref
		}
	}
	return out
}

// recall tells the executor that has the order, if one is there.
func (d *deliveries) recall(token string, reason RecallReason) {
	if ref, ok := d.get(token); ok && ref.session != nil {
		ref.session.recall(RecallOrder{Token: token, Reason: reason})
	}
}

// executors are the attached executor streams.
type executors struct {
	core *core

	mu       sync.Mutex // guards what follows
	sessions map[string]*ExecutorSession
	graces   map[*ExecutorSession]clock.Timer
	ended    error
}

func newExecutors(c *core) *executors {
	return &executors{core: c, sessions: map[string]*ExecutorSession{}, graces: map[*ExecutorSession]clock.Timer{}}
}

// ExecutorSession is one executor stream.
type ExecutorSession struct {
	core  *core
	hello ExecutorHello
	sink  OrderSink

	mu sync.Mutex // guards what follows
	// links are the session's place with each cluster's dispatcher.
	links map[string]*execLink
	over  error
}

// attach gives an executor its place. A stream of the same executor that is
// still there ends, and its orders pass to the new one if it has them still.
func (x *executors) attach(hello ExecutorHello, sink OrderSink) (*ExecutorSession, error) {
	s := &ExecutorSession{core: x.core, hello: hello, sink: sink, links: map[string]*execLink{}}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended != nil {
		return nil, x.ended
	}
	old := x.sessions[hello.ID]
	if old != nil {
		old.end(ErrSuperseded)
	}
	x.sessions[hello.ID] = s
	held, claimed := map[string]int{}, map[string]deliveryRef{}
	for _, token := range hello.HeldTokens {
		if _, twice := claimed[token]; twice {
			continue
		}
		if ref, ok := x.core.deliveries.claim(token, s); ok {
			held[ref.cluster]++
			claimed[token] = ref
		}
	}
	for _, cl := range x.core.all() {
		s.link(cl, held[cl.name])
	}
	for _, token := range slices.Sorted(maps.Keys(claimed)) {
		s.adopt(token, claimed[token])
	}
	// What an earlier stream of this executor had and the new one does not, was
	// lost on the way: nobody will answer it.
	for other, timer := range x.graces {
		if other.hello.ID == hello.ID {
			timer.Stop()
			delete(x.graces, other)
			other.giveUp()
		}
	}
	if old != nil {
		old.giveUp()
	}
	return s, nil
}

// clusterAdded gives sessions for all clusters their place with a new one.
func (x *executors) clusterAdded(cl *cluster) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.sessions {
		s.link(cl, 0)
	}
}

// clusterForgotten takes a cluster's place away from all sessions.
func (x *executors) clusterForgotten(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.sessions {
		s.mu.Lock()
		delete(s.links, name)
		s.mu.Unlock()
	}
}

// end ends all sessions.
func (x *executors) end(cause error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = cause
	for id, s := range x.sessions {
		s.end(cause)
		delete(x.sessions, id)
	}
	for s, timer := range x.graces {
		timer.Stop()
		delete(x.graces, s)
	}
}

// serves reports whether the executor asked for the cluster and may have it.
func (s *ExecutorSession) serves(cluster string) bool {
	return (slices.Contains(s.hello.Clusters, "*") || slices.Contains(s.hello.Clusters, cluster)) &&
		(s.hello.Allowed == nil || s.hello.Allowed(cluster))
}

// link gives the session its place with a cluster's dispatcher.
func (s *ExecutorSession) link(cl *cluster, outstanding int) {
	if !s.serves(cl.name) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil || s.links[cl.name] != nil {
		return
	}
	l := &execLink{session: s, capacity: s.hello.Capacity, outstanding: outstanding, attachedAt: s.core.clock.Now()}
	s.links[cl.name] = l
	cl.dispatcher.inbox.put(dispatchMsg{attach: l})
}

// adopt tells the shard of a held order whose credit it now takes. The shard gives
// the credit back if the order has ended, whether or not its token is forgotten yet.
func (s *ExecutorSession) adopt(token string, ref deliveryRef) {
	s.mu.Lock()
	link := s.links[ref.cluster]
	s.mu.Unlock()
	if ref.health != nil {
		if !ref.health.inbox.put(healthMsg{adopted: &adoption{token: token, link: link}}) {
			ref.health.returnCredit(link)
		}
		return
	}
	ref.shard.inbox.put(shardMsg{task: func(sh *shard) {
		if d := ref.ev.delivery(); d == nil || d.Token != token {
			sh.returnCredit(ref.ev.sc().dispatcher, link)
			return
		}
		ref.ev.rest.link = link
		if d := ref.ev.delivery(); d.Recall != RecallNone {
			s.recall(RecallOrder{Token: token, Reason: d.Recall})
		}
	}})
}

// end takes the session out of the dispatchers. Its orders stay where they are.
func (s *ExecutorSession) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return
	}
	s.over = cause
	for name, l := range s.links {
		if cl := s.core.cluster(name); cl != nil {
			cl.dispatcher.inbox.put(dispatchMsg{detach: l})
		}
	}
	s.sink.Ended(cause)
}

// giveUp ends what the session still has as unanswered.
func (s *ExecutorSession) giveUp() {
	for token, ref := range s.core.deliveries.of(s) {
		if ref.health != nil {
			ref.health.inbox.put(healthMsg{lost: token})
			continue
		}
		ref.shard.inbox.put(shardMsg{task: func(sh *shard) { sh.noAnswer(ref.ev, token) }})
	}
}

func (s *ExecutorSession) order(o Order) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over == nil && s.sink.Order(o)
}

func (s *ExecutorSession) recall(r RecallOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.sink.Recall(r)
	}
}

// Result takes an executor's answer and calls reply once: with true after it is
// on disk; with false, which is no error, if the token is not live and, if it
// was, after its end is on disk. Replies to one token come in the order of its answers.
func (s *ExecutorSession) Result(r Result, reply func(accepted bool)) {
	m := &resultMsg{token: r.Token, result: r, reply: func(_ time.Duration, ok bool) { reply(ok) }}
	s.send(m)
}

// Extend asks for more time for an order and calls reply once, like Result, with the time left.
func (s *ExecutorSession) Extend(token string, reply func(left time.Duration, ok bool)) {
	s.send(&resultMsg{token: token, extend: true, reply: reply})
}

func (s *ExecutorSession) send(m *resultMsg) {
	ref, ok := s.core.deliveries.get(m.token)
	if mine := ok && s.serves(ref.cluster); !mine || ref.leaving != nil {
		s.core.observer.UnknownToken()
		if !mine || !s.core.deliveries.defers(m) {
			m.reply(0, false)
		}
		return
	}
	if ref.health != nil {
		if !ref.health.inbox.put(healthMsg{result: m}) {
			ref.health.refuseResult(m)
		}
		return
	}
	m.ev, m.cluster = ref.ev, ref.cluster
	ref.shard.inbox.put(shardMsg{result: m})
}

// SetCapacity changes how many orders of a cluster may be outstanding, of all
// clusters if cluster is empty.
func (s *ExecutorSession) SetCapacity(cluster string, capacity int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cluster == "" {
		s.hello.Capacity = capacity
	} else if s.links[cluster] == nil {
		return fmt.Errorf("%w: %q is not one of the executor's", ErrClusterUnknown, cluster)
	}
	for name, l := range s.links {
		if cl := s.core.cluster(name); cl != nil && (cluster == "" || cluster == name) {
			cl.dispatcher.inbox.put(dispatchMsg{capacity: &capacityMsg{link: l, capacity: capacity}})
		}
	}
	return nil
}

// Drain stops new orders; those that are out may still be answered.
func (s *ExecutorSession) Drain() {
	// The empty name is every cluster, which cannot be unknown.
	_ = s.SetCapacity("", 0)
}

// Close ends the session from its own side: the same executor has deliveryGrace
// to come back with the tokens it holds.
func (s *ExecutorSession) Close() {
	x := s.core.executors
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sessions[s.hello.ID] == s {
		delete(x.sessions, s.hello.ID)
	}
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over != nil {
		return
	}
	s.end(context.Canceled)
	if x.ended != nil {
		return
	}
	var timer clock.Timer
	timer = s.core.newTimer(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.graces[s] == timer {
			delete(x.graces, s)
			s.giveUp()
		}
	})
	x.graces[s] = timer
	timer.Reset(s.core.clock.Now().Add(deliveryGrace))
}
