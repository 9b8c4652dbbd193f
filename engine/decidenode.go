package engine

import (
	"runtime"
	"time"
)

// ruled is a decision with the grounds that an eviction opened by it is given.
type ruled struct {
	Decision
	grounds *grounds // nil until one was
}

// decideNode decides for all pods of a node. Pods that are alike to the decision
// share one.
func (s *shard) decideNode(sc *shardCluster, n *node) {
	var last *pod
	var r ruled
	earliest := n.earliestStart()
	for _, p := range n.pods {
		if !s.concerns(sc, p) {
			continue
		}
		if last == nil || !p.alike(last, earliest) {
			in := p.input(&sc.conf.policy)
			in.Steps = s.nodeSteps
			r = ruled{Decision: Decide(in)}
			s.nodeSteps, last = r.Steps, p
		}
		s.follow(sc, p, &r)
	}
	if len(s.out) >= flushFrom {
		s.flush()
		// With all processors taken by shards the committer would begin when they
		// are done, and find all of it long out of the caches.
		runtime.Gosched()
	}
}

// flushFrom is how many changes a shard collects, of a round that makes many,
// before the committer begins with them.
const flushFrom = 512

// earliestStart is that of the node's taints; zero if there are none.
func (n *node) earliestStart() instant {
	var at time.Time
	for i := range n.force {
		if start := n.force[i].Start; i == 0 || start.Before(at) {
			at = start
		}
	}
	return instantOf(at)
}

// alike reports whether the decision over p is that over o, a pod of the same
// node, because nothing that it depends on differs. earliest is the earliest
// start of the node's taints: which binding before it is a pod's makes no difference (D8).
func (p *pod) alike(o *pod, earliest instant) bool {
	return p.tols == o.tols && p.namespace == o.namespace &&
		p.terminating == o.terminating && p.finished == o.finished && p.mirror == o.mirror &&
		(p.boundAt == o.boundAt || p.boundAt <= earliest && o.boundAt <= earliest) &&
		(p.ev == nil || len(p.ev.requests()) == 0) && (o.ev == nil || len(o.ev.requests()) == 0)
}
