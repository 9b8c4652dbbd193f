package engine

import (
	"slices"
	"time"
)

// batch is a shard's part of what a feed sent at one instant. Node events are
// applied before pod events, as the original does.
type batch struct {
	cluster *cluster
	at      time.Time
	nodes   []nodeOp
	pods    []podOp
	// done is called, in the shard's goroutine, when all of it has been applied
	// and its changes are with the committer.
	done func()
}

// nodeOp is a node event with what the router's count makes of the node's taints.
type nodeOp struct {
	Event
	guards []Guard
}

// podOp is a pod event that the router has resolved to a pod.
type podOp struct {
	pod *pod
	// seen is the pod as the feed shows it; nil if the pod is gone.
	seen *Pod
	// superseded: another UID took the pod's name.
	superseded bool
	// marked: the pod bears the taint manager's mark.
	marked bool
}

func (s *shard) apply(b *batch) {
	sc := s.clusters[b.cluster.name]
	if sc == nil {
		// The cluster was forgotten while the batch was on its way.
		b.done()
		return
	}
	var touched []*node
	for i := range b.nodes {
		if n := s.applyNode(sc, &b.nodes[i], b.at); n != nil {
			touched = append(touched, n)
		}
	}
	s.observeLate(sc, touched)
	for i := range b.pods {
		s.applyPod(sc, &b.pods[i], b.at)
	}
	for _, n := range touched {
		s.decideNode(sc, n)
	}
	for i := range b.pods {
		if p := b.pods[i].pod; !p.gone {
			s.decide(sc, p)
		}
	}
	s.flush()
	b.done()
}

// nodeNamed returns the node of that name, made if need be.
func (sc *shardCluster) nodeNamed(name string) *node {
	n := sc.nodes[name]
	if n == nil {
		n = &node{sc: sc, name: name}
		sc.nodes[name] = n
	}
	return n
}

// tidy forgets a node that is neither known nor named by a pod.
func (sc *shardCluster) tidy(n *node) {
	if !n.known && len(n.pods) == 0 && n.stored == nil {
		delete(sc.nodes, n.name)
	}
}

// applyNode applies a node event and returns the node if its pods need a new decision.
func (s *shard) applyNode(sc *shardCluster, ev *nodeOp, at time.Time) *node {
	if ev.Type == EventDelete {
		if n := sc.nodes[ev.Node.Name]; n != nil && n.known {
			s.nodeGone(sc, n, at)
		}
		return nil
	}
	n := sc.nodeNamed(ev.Node.Name)
	if n.known && n.uid != ev.Node.UID {
		// That the old one is gone is seen now; since when the new one is there is not.
		seenAt := n.seenAt
		s.nodeGone(sc, n, at)
		n = sc.nodeNamed(ev.Node.Name)
		n.seenAt = seenAt
	}
	look := sighting{at: at, lastSeen: at, live: sc.conf.live}
	if !sc.conf.live {
		look.lastSeen = sc.conf.lastLive
		if n.seenAt.After(look.lastSeen) {
			look.lastSeen = n.seenAt
		}
		n.seenAt = at
	}
	next, ignored := n.observe(ev.Node, look)
	next.guards = ev.guards
	if ignored > 0 {
		sc.ignored.taintEffect.Add(uint64(ignored))
	}
	if n.known && n.nodeState.equal(&next) {
		return nil
	}
	wasKnown := n.known
	changed := !slices.Equal(n.taints, next.taints) || !n.episodeStart.Equal(next.episodeStart)
	n.nodeState, n.known = next, true
	n.force = n.inForce()
	if sc.conf.live {
		s.storeNode(sc, n)
	}
	if wasKnown && !changed {
		return nil
	}
	return n
}

// nodeGone closes what is open on a node whose object is gone (D15).
func (s *shard) nodeGone(sc *shardCluster, n *node, at time.Time) {
	n.nodeState, n.known, n.force = nodeState{}, false, nil
	n.seenAt = at
	for _, p := range n.pods {
		if p.ev != nil {
			s.leave(sc, p.ev, CloseNodeDeleted)
		}
	}
	if sc.conf.live {
		s.storeNode(sc, n)
	}
	sc.tidy(n)
}

// storeNode writes the node's state if it differs from what is on disk.
func (s *shard) storeNode(sc *shardCluster, n *node) {
	if !n.known || len(n.taints) == 0 {
		if n.stored != nil {
			n.stored = nil
			s.change(Change{Kind: ChangeDeleteNode, Cluster: sc.name, Node: &NodeRecord{Cluster: sc.name, Name: n.name}})
		}
		return
	}
	if n.stored != nil && n.stored.equal(&n.nodeState) {
		return
	}
	state := n.nodeState
	n.stored = &state
	s.change(Change{Kind: ChangePutNode, Cluster: sc.name, Node: &NodeRecord{
		Cluster: sc.name, Name: n.name, UID: n.uid, Taints: n.taints, EpisodeStart: n.episodeStart, Guards: n.guards,
	}})
}

func (s *shard) applyPod(sc *shardCluster, op *podOp, at time.Time) {
	p := op.pod
	if op.seen == nil {
		s.mark(sc, op, false, at)
		s.podGone(sc, p, op.superseded)
		return
	}
	if p.node == nil {
		sc.nodeNamed(p.nodeName()).add(p)
		sc.pods++
		if w, ok := sc.saidBefore[p.uid]; ok {
			sc.say(p, w)
		}
	}
	fresh := !p.listed
	if fresh {
		p.listed = true
		if p.boundAt == 0 {
			// Never later than when the service first saw the pod there (D8).
			p.boundAt = instantOf(at)
			if b := op.seen.BoundAt; !b.IsZero() && b.Before(at) {
				p.boundAt = instantOf(b)
			}
		}
		s.comesBack(sc, p, op.seen)
	}
	tols := s.interner.get(op.seen.Tolerations)
	s.interner.put(p.tols)
	p.tols = tols
	p.mirror = op.seen.Mirror
	s.mark(sc, op, fresh, at)
	if op.seen.Finished && !p.finished {
		p.finished = true
		s.podOver(sc, p, ClosePodFinished)
	}
	if op.seen.Terminating && !p.terminating {
		p.terminating = true
		s.podOver(sc, p, ClosePodDeleted)
	}
	p.finished, p.terminating = op.seen.Finished, op.seen.Terminating
}

// podOver closes the eviction of a pod seen terminating or finished.
func (s *shard) podOver(sc *shardCluster, p *pod, reason CloseReason) {
	if p.ev != nil {
		s.leave(sc, p.ev, reason)
	}
}

// podGone takes a pod out of the mirror.
func (s *shard) podGone(sc *shardCluster, p *pod, superseded bool) {
	if p.gone || p.node == nil {
		return
	}
	p.gone = true
	p.node.remove(p)
	sc.pods--
	s.interner.put(p.tols)
	p.tols = nil
	p.quietUntil = 0
	delete(sc.said, p)
	if p.ev != nil {
		reason := ClosePodDeleted
		if superseded {
			reason = CloseSuperseded
		}
		s.leave(sc, p.ev, reason)
	}
	sc.tidy(p.node)
}

// leave closes an eviction whose pod is out of reach: gone, over, or on a node
// that is gone. One that may be with an executor waits for its answer, so that
// history tells the truth.
func (s *shard) leave(sc *shardCluster, e *eviction, reason CloseReason) {
	switch e.state {
	case StateDelivered:
		if !e.handed() {
			s.undeliver(sc, e)
			s.close(sc, e, reason, CancelUnspecified)
			return
		}
		if reason == CloseNodeDeleted {
			s.dropRequests(sc, e)
			s.recall(sc, e, RecallNodeDeleted, CancelUnspecified)
		}
	case StateRecalling:
		if reason == CloseNodeDeleted {
			s.dropRequests(sc, e)
			d := *e.rest.delivery
			d.Recall, d.RecallCause = RecallNodeDeleted, CancelUnspecified
			e.rest.delivery = &d
			s.put(sc, e)
		}
	case StateConfirming:
		switch reason {
		case ClosePodFinished:
		case CloseNodeDeleted:
			// The feed may go on showing the pod, on a new node of the name.
			s.closeAhead(sc, e, CloseEvicted)
		default:
			s.close(sc, e, CloseEvicted, CancelUnspecified)
		}
	default:
		if e.lastOutcome() == OutcomeEvicted && reason != ClosePodFinished {
			reason = CloseEvicted
		}
		s.close(sc, e, reason, CancelUnspecified)
	}
}

// listed is the end of a whole list: sync is live, all is decided again. With
// adopt every start is the end of the list (D10).
func (s *shard) listed(sc *shardCluster, adopt bool, at time.Time) {
	for _, n := range sc.nodes {
		if adopt {
			n.adopt(at)
		}
		n.force = n.inForce()
		s.storeNode(sc, n)
		s.decideNode(sc, n)
		sc.tidy(n)
	}
}

// quietPod is a pod whose quiet time ends at until, unless it was given another since.
type quietPod struct {
	pod   *pod
	until instant
}

// hush begins a pod's quiet time.
func (s *shard) hush(sc *shardCluster, p *pod) {
	p.quietUntil = instantOf(s.now.Add(confirmTimeout))
	sc.quiet = append(sc.quiet, quietPod{p, p.quietUntil})
}

// stirQuiet decides again for pods whose quiet time is over. Heartbeats call it.
func (s *shard) stirQuiet(sc *shardCluster) {
	for now := instantOf(s.now); len(sc.quiet) > 0 && sc.quiet[0].until <= now; {
		q := sc.quiet[0]
		sc.quiet[0] = quietPod{}
		sc.quiet = sc.quiet[1:]
		if p := q.pod; p.quietUntil == q.until {
			p.quietUntil = 0
			s.decide(sc, p)
		}
	}
	if len(sc.quiet) == 0 {
		sc.quiet = nil
	}
}
