package engine

import (
	"context"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// shard owns the nodes that hash to it, their pods and the pods' evictions.
// One goroutine handles its inbox; nothing of it is locked or shared.
type shard struct {
	id    int
	core  *core
	inbox *mailbox[shardMsg]
	timer clock.Timer

	// Owned by the goroutine.
	clusters map[string]*shardCluster
	interner tolerationInterner
	// waits has the clusters by their next wait to fall due, heap the evictions
	// that want to be looked at for another reason. firedTo is the instant up to
	// which all that waited has been looked at.
	waits     indexedHeap[*shardCluster]
	heap      timerHeap
	firedTo   time.Time
	armedFor  time.Time      // what the timer is set to; zero if it is not
	out       []pending      // changes of this round
	now       time.Time      // engine time of the message being handled
	steps     []Step         // room for decisions
	nodeSteps []Step         // the same for those that many pods share
	versions  []Version      // room for new ones
	evictions []eviction     // the same
	record    EvictionRecord // room for that of an order
}

// shardCluster is a shard's part of a cluster.
type shardCluster struct {
	*cluster
	conf  *clusterConf
	nodes map[string]*node
	// index has the committed open evictions in the order of (due, seq), bySeq in
	// that of their sequence.
	index dueIndex
	bySeq seqList
	// nextWait is the instant, later than shard.firedTo, at which the next of those
	// that wait may fall due; place is the cluster's in shard.waits.
	nextWait time.Time
	place    int32
	// fresh and retries have those that no gate holds.
	fresh, retries window
	// requested are the evictions with requests.
	requested map[*eviction]struct{}
	// quiet are pods that were given a quiet time, and its end, in that order.
	quiet []quietPod
	// late are marks that were no decision's yet when they came, see observeLate.
	late map[*pod]lateMark
	// said is what shadow mode has said of the pods that are there; saidBefore is what
	// it said before the start, by pod UID, until the first list has shown the pods.
	// All shards of the cluster share saidBefore: it never changes.
	said       map[*pod]wouldEvict
	saidBefore map[string]wouldEvict
	// loops are owners whose pods were evicted from a node lately.
	loops map[loopKey]*loop
	// loopsEnd is the instant before which none of loops has been quiet for long enough.
	loopsEnd time.Time
	pods     int
	counts   counts
}

// wouldEvict is what shadow mode said of a pod.
type wouldEvict struct {
	due   instant
	cause string
}

// say remembers what shadow mode says of a pod.
func (sc *shardCluster) say(p *pod, w wouldEvict) {
	if sc.said == nil {
		sc.said = map[*pod]wouldEvict{}
	}
	sc.said[p] = w
}

// counts are a shard's open evictions by state and, of the due ones, by hold.
type counts struct {
	states [StateClosed + 1]int
	holds  [HoldRateLimited + 1]int
	stuck  int
}

// stuckAttempts marks an eviction as stuck.
const stuckAttempts = 10

// shardMsg is a message to a shard: exactly one of its parts is set.
type shardMsg struct {
	batch     *batch
	committed []*eviction
	revision  uint64
	wake      bool
	permit    *permit
	turn      *permit
	result    *resultMsg
	task      func(*shard)
}

func newShard(c *core, id int) *shard {
	s := &shard{id: id, core: c, inbox: newMailbox[shardMsg](&c.activity), clusters: map[string]*shardCluster{}, interner: tolerationInterner{sets: map[string]*tolerationSet{}}}
	s.timer = c.clock.NewTimer(func() { s.inbox.put(shardMsg{wake: true}) })
	return s
}

func newShardCluster(c *cluster, conf *clusterConf) *shardCluster {
	return &shardCluster{
		cluster: c, conf: conf, nodes: map[string]*node{}, index: newDueIndex(),
		requested: map[*eviction]struct{}{},
	}
}

func (s *shard) run(ctx context.Context) error {
	defer s.timer.Stop()
	var spare []shardMsg
	for {
		msgs := s.inbox.take(ctx, spare)
		if msgs == nil {
			return nil
		}
		for i := range msgs {
			s.handle(&msgs[i])
		}
		s.flush()
		s.rearm()
		n := len(msgs)
		clear(msgs)
		spare = msgs
		s.inbox.done(n)
	}
}

func (s *shard) handle(m *shardMsg) {
	s.now = s.core.clock.Now()
	switch {
	case m.batch != nil:
		s.apply(m.batch)
	case m.committed != nil:
		for _, e := range m.committed {
			s.committed(e, m.revision)
		}
		s.core.committer.told.put(m.committed)
	case m.wake:
		s.armedFor = time.Time{}
		s.fireDue()
	case m.permit != nil:
		s.permitted(m.permit)
	case m.turn != nil:
		s.turn(m.turn)
	case m.result != nil:
		s.answered(m.result)
	case m.task != nil:
		m.task(s)
	}
}

// flush sends the round's changes to the committer. It is called before
// anything that must come after them in the order of commits.
func (s *shard) flush() {
	if len(s.out) == 0 {
		return
	}
	s.core.committer.put(s.out...)
	// The next round may be like this one.
	s.out = s.core.committer.used.get(len(s.out))
}

// rearm sets the one timer to the earliest eviction.
func (s *shard) rearm() {
	next, ok := s.next()
	switch {
	case !ok:
		if !s.armedFor.IsZero() {
			s.timer.Stop()
			s.armedFor = time.Time{}
		}
	case !next.Equal(s.armedFor):
		s.timer.Reset(next)
		s.armedFor = next
	}
}

// change queues a change that no eviction waits for.
func (s *shard) change(c Change) {
	s.out = append(s.out, pending{kind: c.Kind, cluster: c.Cluster, other: &c})
}

// put queues the eviction as it stands. What it does next waits for the commit.
func (s *shard) put(sc *shardCluster, e *eviction) {
	e.pending++
	s.out = append(s.out, pending{kind: ChangePutEviction, cluster: sc.name, version: s.version(e), tell: true, shard: int32(s.id)})
}

// notify tells watchers of a change that is not stored.
func (s *shard) notify(sc *shardCluster, e *eviction) {
	if !e.committed {
		return
	}
	s.out = append(s.out, pending{kind: ChangeNotify, cluster: sc.name, version: s.version(e)})
}

// set moves the eviction to a state and hold, keeping the counts.
func (sc *shardCluster) set(e *eviction, state State, hold Hold, until time.Time) {
	if e.state != StateUnspecified {
		sc.count(e, -1)
	}
	e.state, e.hold = state, hold
	if e.rest != nil || !until.IsZero() {
		e.more().holdUntil(until)
	}
	sc.count(e, 1)
}

func (sc *shardCluster) count(e *eviction, by int) {
	sc.counts.states[e.state] += by
	if e.state == StateDue {
		sc.counts.holds[e.hold] += by
	}
	if e.attempts() >= stuckAttempts {
		sc.counts.stuck += by
	}
}

// committed is called when a change of the eviction is on disk.
func (s *shard) committed(e *eviction, revision uint64) {
	e.pending--
	e.revision = revision
	fresh := !e.committed
	e.committed = true
	if e.state == StateClosed {
		return
	}
	sc := e.sc()
	if fresh {
		sc.bySeq.add(e)
	}
	s.reindex(sc, e)
	switch {
	case e.state == StateDelivered && !e.handed():
		s.saved(sc, e)
	case e.pending == 0:
		s.arm(sc, e)
	}
}

// arm puts the eviction into the timer heap for the next instant it is due to be looked at.
func (s *shard) arm(sc *shardCluster, e *eviction) {
	switch e.state {
	case StateWaiting:
		// Later ones are found in the index.
		if !e.due().After(s.firedTo) {
			s.heap.arm(e, e.due())
		}
	case StateDue:
		if !e.leaving() {
			s.heap.arm(e, s.now)
		}
	case StateDelivered, StateRecalling:
		s.heap.arm(e, e.rest.delivery.Deadline)
	case StateConfirming:
		s.heap.arm(e, e.rest.confirmBy.time())
	}
}

// isOpen says which evictions are still in a list of open ones.
func isOpen(e *eviction) bool { return e.state != StateClosed }

// reindex puts a committed eviction where readers and the timer find it.
func (s *shard) reindex(sc *shardCluster, e *eviction) {
	if e.committed && !e.indexed {
		sc.index.add(e)
		s.expect(sc, e.due())
	}
}

// unindex takes the eviction out of the order of due instants, before its due changes.
func (s *shard) unindex(sc *shardCluster, e *eviction) {
	if e.indexed {
		sc.index.remove(e)
	}
}
