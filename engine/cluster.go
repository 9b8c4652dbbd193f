package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// clusterConf is what shards and dispatcher go by. It is never changed: a new
// one is handed to all shards of the cluster in a barrier.
type clusterConf struct {
	policy Policy
	pauses []Pause
	// reprieves are by pod UID.
	reprieves map[string]*ReprieveRecord
	// live: the feed has delivered a whole list and goes on; decisions are taken.
	live bool
	// released: all shards have decided again after the list, so that the oldest
	// of what is overdue is known and may leave.
	released bool
	damaged  bool
	// lastLive is the last time before the gap that the cluster's state was known.
	lastLive time.Time
}

// pauseFor returns the pause in force for a pod, if there is one.
func (c *clusterConf) pauseFor(p *pod, now time.Time) *Pause {
	var found *Pause
	for i := range c.pauses {
		q := &c.pauses[i]
		if q.over(now) || !q.covers(p.namespace.Value(), p.node.name) {
			continue
		}
		// Of several the one that ends last decides.
		if found == nil || q.Until.IsZero() || !found.Until.IsZero() && q.Until.After(found.Until) {
			found = q
		}
	}
	return found
}

func (q *Pause) covers(namespace, node string) bool {
	switch {
	case q.Node != "":
		return q.Node == node
	case q.Namespace != "":
		return q.Namespace == namespace
	}
	return true
}

// cluster is the router of one cluster: it knows which shard has a pod, holds
// the cluster's record, and lets one feed at a time in.
type cluster struct {
	core       *core
	name       string
	dispatcher *dispatcher
	// ctx ends when the cluster is forgotten, or with its core. It is the dispatcher's.
	ctx    context.Context
	cancel context.CancelFunc
	// gone is closed when a forgotten cluster is off the disk.
	gone    chan struct{}
	ignored ignoredCounts
	foreign foreignTally

	mu      sync.Mutex // guards what follows; nothing blocks while it is held
	rec     ClusterRecord
	damaged bool
	conf    *clusterConf
	sync    SyncState
	// gen numbers the lists; what is of an older one when a list ends is gone.
	gen   uint32
	pods  *podTable
	nodes map[string]*routedNode
	blast blastGuard
	// health is nil while node health is off.
	health  *healthOwner
	session *FeedSession
	// last is the latest feed's hello, lastMessage its latest message.
	last        FeedHello
	lastMessage time.Time
	silence     clock.Timer
	// expiry goes off when a pause or a reprieve ends by itself.
	expiry clock.Timer
	// strayHealth are nodes of which the store remembers something although node
	// health is off now; it is removed at the start.
	strayHealth []string
}

type routedNode struct {
	name, uid string
	gen       uint32
	// guards are of the node's taint keys that the blast radius bounds; never changed in place.
	guards []Guard
}

// ignoredCounts count input that was taken and changes nothing.
type ignoredCounts struct {
	taintEffect, unknownKind, unknownUID atomic.Uint64
}

func newCluster(c *core, l LoadedCluster) *cluster {
	cl := &cluster{
		core: c, gone: make(chan struct{}), name: l.Record.Name, rec: l.Record, damaged: l.Damaged, sync: SyncNever,
		pods: newPodTable(), nodes: map[string]*routedNode{},
	}
	if !l.Record.AdoptedAt.IsZero() || l.Damaged {
		cl.sync = SyncLost
	}
	cl.ctx, cl.cancel = context.WithCancel(c.ctx)
	cl.conf = &clusterConf{
		policy: cl.policy(), pauses: cl.rec.Pauses, damaged: l.Damaged, lastLive: cl.rec.LastLiveAt,
		reprieves: map[string]*ReprieveRecord{},
	}
	cl.dispatcher = newDispatcher(c, cl.name, &cl.conf.policy)
	if cl.conf.policy.watchesHealth() {
		cl.health = newHealthOwner(cl, cl.conf)
	}
	cl.silence = c.newTimer(cl.checkSilence)
	cl.expiry = c.newTimer(cl.expire)
	return cl
}

// over says why a cluster can no longer be used: it was forgotten, or its core
// has ended. Whoever has found it by its name asks, with mu held.
func (cl *cluster) over() error {
	switch {
	case cl.ctx.Err() == nil:
		return nil
	case cl.core.ctx.Err() != nil:
		return ErrUnavailable
	}
	return fmt.Errorf("%w: %q was forgotten", ErrClusterUnknown, cl.name)
}

// policy is the one in force: defaults, then the config file's fields, then the
// operator's. mu is held.
func (cl *cluster) policy() Policy { return cl.policyWith(cl.rec.Policy) }

// etag names the state of the stored policy.
func (cl *cluster) etag() string { return strconv.FormatUint(cl.rec.PolicyVersion, 10) }

// record returns the change that writes the cluster's record as it is. A damaged
// one stays as it is on disk, so that a restart finds the damage again: what an
// operator had set is lost, and must not turn into defaults. mu is held.
func (cl *cluster) record() Change {
	if cl.damaged {
		return Change{Cluster: cl.name}
	}
	r := cl.rec
	r.Pauses, r.Blasts = slices.Clone(r.Pauses), slices.Clone(r.Blasts)
	return Change{Kind: ChangePutCluster, Cluster: cl.name, Record: &r}
}

// reconfiguration is a new conf on its way through the shards.
type reconfiguration struct {
	edit func(*clusterConf)
	// each brings a shard's evictions in line with the new conf.
	each func(*shard, *shardCluster)
	// save, if set, edits the cluster's record, under mu, when all that the shards
	// changed is queued before it; the record is then written.
	save func(*ClusterRecord)
	// extra is written with it.
	extra []Change
	// then is called when all of it is on disk; mu is not held.
	then func()
}

// reconfigure hands a new conf to all shards of the cluster, as a barrier:
// nothing of the cluster is dispatched until all have it and what they changed
// is on disk. mu is held.
func (cl *cluster) reconfigure(r reconfiguration) {
	conf := *cl.conf
	r.edit(&conf)
	cl.conf = &conf
	cl.dispatcher.inbox.put(dispatchMsg{suspend: 1}, dispatchMsg{policy: &conf.policy})
	finish := func() {
		cl.dispatcher.inbox.put(dispatchMsg{suspend: -1})
		cl.mu.Lock()
		if cl.session != nil {
			cl.session.tellMode()
		}
		cl.mu.Unlock()
		if r.then != nil {
			r.then()
		}
	}
	cl.core.onShards(func(s *shard) {
		if sc := s.clusters[cl.name]; sc != nil {
			sc.conf = &conf
			r.each(s, sc)
		}
	}, cl.healthToo(&conf, func() {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		changes := append([]Change{{Cluster: cl.name}}, r.extra...)
		if r.save != nil {
			r.save(&cl.rec)
			changes = append(changes, cl.record())
		}
		cl.core.commit(finish, changes...)
	}))
}

// regate looks again at every eviction that is due or out: a gate has changed.
// recall is the reason for which orders may be called back, RecallNone for none.
func (s *shard) regate(sc *shardCluster, recall RecallReason) {
	s.releaseOverdue(sc)
	for _, e := range sc.activeInOrder(s.now) {
		switch e.state {
		case StateDue:
			if e.pending == 0 {
				s.heap.disarm(e)
				s.regateDue(sc, e)
			}
		case StateDelivered:
			// One whose order has not left is looked at after its commit.
			if e.handed() && sc.conf.callsBack(e.pod, recall, s.now) {
				s.recall(sc, e, recall, CancelUnspecified)
			}
		}
	}
}

// callsBack reports whether the gate of that reason is closed for the pod, so
// that its order is called back: in a gap of the feed too, in which all is held,
// and no other pod's.
func (c *clusterConf) callsBack(p *pod, reason RecallReason, now time.Time) bool {
	switch reason {
	case RecallPaused:
		return c.pauseFor(p, now) != nil
	case RecallReprieved:
		r := c.reprieves[p.uid]
		return r != nil && !r.over(now)
	case RecallShadow:
		return c.policy.Mode != ModeEnforce
	}
	return false
}

// regateDue puts a due eviction before the gates again. What shadow mode would
// send waits for its timer, so that all events of the instant come first (D16);
// what is to be sent waits for the dispatcher's.
func (s *shard) regateDue(sc *shardCluster, e *eviction) {
	if hold, _ := s.held(sc, e); hold == HoldNone && sc.conf.policy.Mode != ModeEnforce {
		s.withdraw(sc, e)
		sc.set(e, StateDue, HoldNone, time.Time{})
		s.heap.arm(e, s.now)
		return
	}
	s.gate(sc, e)
}

// releaseOverdue puts before the gates what is overdue and has a timer that has yet to
// tell: what fell due while the cluster was not synced, or was decided to be overdue in
// this instant. So the dispatcher has all of it before it grants the first permit (I8).
// Shards read the clock one after the other, each once the barrier has begun: what
// was overdue by then all of them find. What has fallen due since is later than all
// of that, and its order as grant says.
func (s *shard) releaseOverdue(sc *shardCluster) {
	var overdue []*eviction
	sc.index.ascend(time.Time{}, 0, func(e *eviction) bool {
		if e.state == StateWaiting && e.pending == 0 && !e.due().After(s.now) {
			overdue = append(overdue, e)
		}
		return !e.due().After(s.now)
	})
	for _, e := range overdue {
		s.heap.disarm(e)
		s.regateDue(sc, e)
	}
}

// active are the evictions past their due instant, whatever their state, in the
// order of (due, seq). The index must not change before the end.
func (sc *shardCluster) active(now time.Time) iter.Seq[*eviction] {
	return func(yield func(*eviction) bool) {
		sc.index.ascend(time.Time{}, 0, func(e *eviction) bool {
			return !e.due().After(now) && (e.state == StateWaiting || yield(e))
		})
	}
}

// activeInOrder returns the active evictions in a slice of its own.
func (sc *shardCluster) activeInOrder(now time.Time) []*eviction {
	return slices.Collect(sc.active(now))
}

// redecide takes the decision of every pod again: the policy has changed.
func (s *shard) redecide(sc *shardCluster) {
	for _, n := range sc.nodes {
		s.decideNode(sc, n)
	}
}

// locate finds a pod by UID, or by namespace and name. mu is held.
func (cl *cluster) locate(ref PodRef) *pod {
	if ref.UID != "" {
		p := cl.pods.byUID(ref.UID)
		if p != nil && ref.Name != "" && (p.name != ref.Name || p.namespace.Value() != ref.Namespace) {
			return nil
		}
		return p
	}
	return cl.pods.byName(ref.Namespace, ref.Name)
}

// podFor finds a pod for a caller and says why it cannot.
func (cl *cluster) podFor(ref PodRef) (*pod, error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	p := cl.locate(ref)
	switch {
	case p == nil && cl.sync != SyncLive:
		return nil, fmt.Errorf("%w: cluster %q", ErrNotSynced, cl.name)
	case p == nil:
		return nil, fmt.Errorf("%w: %s in cluster %q", ErrPodUnknown, ref, cl.name)
	}
	return p, nil
}

// String names the pod as people do.
func (r PodRef) String() string {
	if r.Name == "" {
		return "pod with UID " + r.UID
	}
	if r.UID == "" {
		return fmt.Sprintf("pod %s/%s", r.Namespace, r.Name)
	}
	return fmt.Sprintf("pod %s/%s with UID %s", r.Namespace, r.Name, r.UID)
}

// end tells the feed that the core is over. After a store failure the feed's
// stream may go on with a new list once there is a new core.
func (cl *cluster) end(cause error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.silence.Stop()
	cl.expiry.Stop()
	f := cl.session
	if f == nil {
		return
	}
	f.over, cl.session = cause, nil
	if errors.Is(cause, ErrUnavailable) {
		f.sink.Resync("the store failed and is opened again; what was not acknowledged may be lost")
		return
	}
	f.sink.Ended(cause)
}

// nodePause returns the pause in force for a node, if there is one.
func (c *clusterConf) nodePause(name string, now time.Time) *Pause {
	for i := range c.pauses {
		if q := &c.pauses[i]; !q.over(now) && q.Namespace == "" && q.covers("", name) {
			return q
		}
	}
	return nil
}
