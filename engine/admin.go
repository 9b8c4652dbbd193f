package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// withCluster runs f with the cluster's lock held and waits until what f
// started calls done.
func (g *Engine) withCluster(ctx context.Context, name string, f func(c *core, cl *cluster, done func()) error) error {
	c, cl, err := g.find(name)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	cl.mu.Lock()
	if err = cl.over(); err == nil {
		err = f(c, cl, func() { close(done) })
	}
	cl.mu.Unlock()
	if err != nil {
		return err
	}
	return c.await(ctx, done)
}

// Pause holds what falls due in the pause's scope. When it returns, the pause is
// on disk, no order of its scope starts any more, and those that are out have
// been recalled (I7). A pause of the same scope is replaced. Pausing a cluster
// that is not known yet makes it known, so that it can be paused before it joins.
func (g *Engine) Pause(ctx context.Context, name string, p Pause) (Pause, error) {
	c, err := g.current()
	if err != nil {
		return Pause{}, err
	}
	c.ensure(name)
	err = g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		if cl.damaged {
			return damagedError(cl.name)
		}
		p.CreatedAt = c.clock.Now()
		if !p.Until.IsZero() && !p.Until.After(p.CreatedAt) {
			return fmt.Errorf("%w: the pause's end %s is not in the future", ErrInvalid, p.Until.Format(time.RFC3339))
		}
		p.ID = c.newToken()
		pauses := slices.DeleteFunc(slices.Clone(cl.conf.pauses), func(q Pause) bool {
			return q.Node == p.Node && q.Namespace == p.Namespace || q.over(p.CreatedAt)
		})
		cl.setPauses(append(pauses, p), RecallPaused, done)
		return nil
	})
	return p, err
}

func damagedError(name string) error {
	return fmt.Errorf("%w: %q; repair it by setting its whole policy, or forget it", ErrClusterDamaged, name)
}

// setPauses puts a list of pauses in force. mu is held.
func (cl *cluster) setPauses(pauses []Pause, recall RecallReason, done func()) {
	cl.reconfigure(reconfiguration{
		edit: func(c *clusterConf) { c.pauses = pauses },
		each: func(s *shard, sc *shardCluster) { s.regate(sc, recall) },
		// As they are by then: one may have ended in the meantime.
		save: func(r *ClusterRecord) { r.Pauses = cl.conf.pauses },
		then: done,
	})
	cl.armExpiry()
}

// Resume ends the pause of exactly that scope, or of that id, and returns how
// many due evictions it releases. With validateOnly it only counts.
func (g *Engine) Resume(ctx context.Context, scope PauseScope, validateOnly bool) (released int, err error) {
	if released, err = g.countReleased(ctx, scope); err != nil || validateOnly {
		return released, err
	}
	err = g.withCluster(ctx, scope.Cluster, func(_ *core, cl *cluster, done func()) error {
		i := findPause(cl.conf.pauses, scope)
		if i < 0 {
			return pauseUnknown(scope)
		}
		cl.setPauses(slices.Delete(slices.Clone(cl.conf.pauses), i, i+1), RecallNone, done)
		return nil
	})
	return released, err
}

func pauseUnknown(s PauseScope) error {
	return fmt.Errorf("%w: cluster %q has no pause of that scope or id", ErrPauseUnknown, s.Cluster)
}

func findPause(pauses []Pause, scope PauseScope) int {
	return slices.IndexFunc(pauses, func(p Pause) bool {
		if scope.ID != "" {
			return p.ID == scope.ID
		}
		return p.Node == scope.Node && p.Namespace == scope.Namespace
	})
}

// countReleased counts the evictions that only the pause keeps back.
func (g *Engine) countReleased(ctx context.Context, scope PauseScope) (int, error) {
	counts, err := g.countOnShards(ctx, scope.Cluster, func(cl *cluster) (func(*shard, *shardCluster) int, error) {
		i := findPause(cl.conf.pauses, scope)
		if i < 0 {
			return nil, pauseUnknown(scope)
		}
		without := *cl.conf
		without.pauses = slices.Delete(slices.Clone(cl.conf.pauses), i, i+1)
		return func(s *shard, sc *shardCluster) int {
			n := 0
			for e := range sc.active(s.now) {
				// Not e.hold: that of an eviction whose answer has just come is set a moment later.
				if e.state != StateDue {
					continue
				}
				hold, _ := s.held(sc, e)
				if after, _ := without.held(e, s.now); hold == HoldPaused && after == HoldNone {
					n++
				}
			}
			return n
		}, nil
	})
	return counts, err
}

// countOnShards adds up what a function counts in every shard of a cluster.
func (g *Engine) countOnShards(ctx context.Context, name string, prepare func(*cluster) (func(*shard, *shardCluster) int, error)) (int, error) {
	var counts []int
	err := g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		count, err := prepare(cl)
		if err != nil {
			return err
		}
		counts = make([]int, len(c.shards))
		c.onShards(func(s *shard) {
			if sc := s.clusters[name]; sc != nil {
				counts[s.id] = count(s, sc)
			}
		}, done)
		return nil
	})
	if err != nil {
		return 0, err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return total, nil
}

// Policy returns a cluster's policy.
func (g *Engine) Policy(ctx context.Context, name string) (PolicyStatus, error) {
	var st PolicyStatus
	err := g.withCluster(ctx, name, func(_ *core, cl *cluster, done func()) error {
		st = cl.policyStatus()
		done()
		return nil
	})
	return st, err
}

func (cl *cluster) policyStatus() PolicyStatus {
	return PolicyStatus{Effective: cl.conf.policy, Stored: cl.rec.Policy, Etag: cl.etag()}
}

// SetPolicy changes a cluster's stored policy. It fails with ErrEtag if the etag
// is not the current one. A cluster that is not known yet becomes known, so that
// its policy can be there before it joins. A damaged cluster record is repaired
// by setting at least the mode: the cluster is adopted anew.
func (g *Engine) SetPolicy(ctx context.Context, name string, u PolicyUpdate) (PolicyStatus, error) {
	c, err := g.current()
	if err != nil {
		return PolicyStatus{}, err
	}
	if !u.ValidateOnly {
		c.ensure(name)
	}
	impact, err := g.policyImpact(ctx, name, u)
	if err != nil {
		return PolicyStatus{}, err
	}
	var st PolicyStatus
	err = g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		if err := cl.checkEtag(u.Etag); err != nil {
			return err
		}
		next := cl.policyWith(cl.rec.Policy.Merge(u.Patch, u.Clear))
		if err := cl.checkHealth(&next); err != nil && !u.Force {
			return err
		}
		if u.ValidateOnly {
			st = cl.policyStatus()
			st.Stored = cl.rec.Policy.Merge(u.Patch, u.Clear)
			st.Effective = cl.policyWith(st.Stored)
			done()
			return nil
		}
		if cl.damaged && u.Patch.Fields&PolicyMode == 0 {
			return damagedError(cl.name)
		}
		cl.applyPolicy(cl.rec.Policy.Merge(u.Patch, u.Clear), done)
		st = cl.policyStatus()
		return nil
	})
	st.Impact, st.Warnings = impact, st.Effective.Idle(st.Stored.Fields)
	return st, err
}

func (cl *cluster) checkEtag(etag string) error {
	if etag != "" && etag != cl.etag() {
		return fmt.Errorf("%w: etag is %q, not %q", ErrEtag, cl.etag(), etag)
	}
	return nil
}

// policyWith is the policy in force if stored were the operator's. mu is held.
func (cl *cluster) policyWith(stored PolicyPatch) Policy {
	return DefaultPolicy().With(cl.core.opts.ClusterPolicy(cl.name)).With(stored)
}

// applyPolicy puts a stored policy in force. mu is held.
func (cl *cluster) applyPolicy(stored PolicyPatch, done func()) {
	now := cl.core.clock.Now()
	repair := cl.damaged
	cl.damaged = false
	cl.rec.Policy = stored
	cl.rec.PolicyVersion++
	policy := cl.policyWith(stored)
	toShadow := policy.Mode == ModeShadow && cl.conf.policy.Mode == ModeEnforce
	recall := RecallNone
	if toShadow {
		recall = RecallShadow
	}
	cl.switchHealth(&policy)
	live := cl.session != nil && cl.session.live
	cl.reconfigure(reconfiguration{
		edit: func(c *clusterConf) { c.policy, c.damaged = policy, false },
		each: func(s *shard, sc *shardCluster) {
			if repair && sc.conf.live {
				s.listed(sc, true, now)
			}
			s.redecide(sc)
			s.regate(sc, recall)
		},
		save: func(r *ClusterRecord) {
			if repair && live {
				r.UID, r.AdoptedAt, r.LastLiveAt = cl.last.ClusterUID, now, now
			}
		},
		then: done,
	})
	if !policy.watchesHealth() {
		// The owner has been told, and ends.
		cl.health = nil
	}
}

// policyImpact counts the pods that a policy would make due at once.
func (g *Engine) policyImpact(ctx context.Context, name string, u PolicyUpdate) (ImpactCount, error) {
	n, err := g.countOnShards(ctx, name, func(cl *cluster) (func(*shard, *shardCluster) int, error) {
		if err := cl.checkEtag(u.Etag); err != nil {
			return nil, err
		}
		next := cl.policyWith(cl.rec.Policy.Merge(u.Patch, u.Clear))
		return func(s *shard, sc *shardCluster) int { return s.wouldBecomeDue(sc, &next) }, nil
	})
	return ImpactCount{BecomeDue: n}, err
}

// wouldBecomeDue counts pods that next lets leave now and the policy in force does not.
func (s *shard) wouldBecomeDue(sc *shardCluster, next *Policy) int {
	if next.Mode != ModeEnforce || !sc.conf.live {
		return 0
	}
	n := 0
	for _, node := range sc.nodes {
		for _, p := range node.pods {
			d := s.ruling(sc, p, next)
			if d.Verdict != VerdictLeave || d.Due.After(s.now) {
				continue
			}
			was := s.ruling(sc, p, &sc.conf.policy)
			letGo := next.DisableBlastRadius && p.ev != nil && p.ev.state == StateDue && p.ev.hold == HoldBlastRadius
			if letGo || sc.conf.policy.Mode != ModeEnforce || was.Verdict != VerdictLeave || was.Due.After(s.now) {
				n++
			}
		}
	}
	return n
}

// GrantReprieve gives one pod a stay until a given end. When it returns no order
// for the pod starts any more; one that is out has been recalled (I7). The pod
// must be known.
func (g *Engine) GrantReprieve(ctx context.Context, name string, ref PodRef, r ReprieveRecord) (ReprieveRecord, error) {
	err := g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		p := cl.locate(ref)
		switch {
		case p == nil && cl.sync != SyncLive:
			return fmt.Errorf("%w: cluster %q", ErrNotSynced, cl.name)
		case p == nil:
			return fmt.Errorf("%w: %s in cluster %q", ErrPodUnknown, ref, cl.name)
		}
		r.Cluster, r.Namespace, r.Pod, r.UID, r.CreatedAt = cl.name, p.namespace.Value(), p.name, p.uid, c.clock.Now()
		if !r.Until.After(r.CreatedAt) {
			return fmt.Errorf("%w: the reprieve's end %s is not in the future", ErrInvalid, r.Until.Format(time.RFC3339))
		}
		stored := r
		cl.setReprieves(RecallReprieved, Change{Kind: ChangePutReprieve, Cluster: cl.name, Reprieve: &stored}, done)
		return nil
	})
	return r, err
}

// RevokeReprieve takes a pod's stay back. By name that is the pod's that has the
// name now, or of those that had it, the one that ends last.
func (g *Engine) RevokeReprieve(ctx context.Context, name string, ref PodRef) error {
	return g.withCluster(ctx, name, func(_ *core, cl *cluster, done func()) error {
		r := cl.reprieveOf(ref)
		if r == nil {
			return fmt.Errorf("%w: %s in cluster %q", ErrReprieveUnknown, ref, cl.name)
		}
		cl.setReprieves(RecallNone, deleteReprieve(cl.name, r.UID), done)
		return nil
	})
}

// reprieveOf finds a reprieve by its pod, which need not be there any more. mu is held.
func (cl *cluster) reprieveOf(ref PodRef) *ReprieveRecord {
	if ref.UID != "" {
		return cl.conf.reprieves[ref.UID]
	}
	if p := cl.locate(ref); p != nil && cl.conf.reprieves[p.uid] != nil {
		return cl.conf.reprieves[p.uid]
	}
	var last *ReprieveRecord
	for _, r := range cl.conf.reprieves {
		if r.Namespace == ref.Namespace && r.Pod == ref.Name && (last == nil || r.Until.After(last.Until)) {
			last = r
		}
	}
	return last
}

// setReprieves puts the change of a pod's reprieve in force. mu is held.
func (cl *cluster) setReprieves(recall RecallReason, change Change, done func()) {
	cl.reconfigure(reconfiguration{
		edit: func(c *clusterConf) {
			c.reprieves = maps.Clone(c.reprieves)
			if r := change.Reprieve; change.Kind == ChangeDeleteReprieve {
				delete(c.reprieves, r.UID)
			} else {
				c.reprieves[r.UID] = r
			}
		},
		each:  func(s *shard, sc *shardCluster) { s.regate(sc, recall) },
		extra: []Change{change},
		then:  done,
	})
	cl.armExpiry()
}

// Reprieves returns the reprieves of a cluster, by end. Those that are over are left out.
func (g *Engine) Reprieves(ctx context.Context, name string) ([]ReprieveRecord, error) {
	var out []ReprieveRecord
	err := g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		for _, r := range cl.conf.reprieves {
			if !r.over(c.clock.Now()) {
				out = append(out, *r)
			}
		}
		done()
		return nil
	})
	slices.SortFunc(out, func(a, b ReprieveRecord) int { return a.Until.Compare(b.Until) })
	return out, err
}

// ForgetCluster removes a cluster and all its records. Its feed ends; executors
// are told to stop what they have. Until that is on disk the cluster's name is not
// free, and nobody is told what a failed commit would make untrue.
func (g *Engine) ForgetCluster(ctx context.Context, name string) error {
	return g.withCluster(ctx, name, func(c *core, cl *cluster, done func()) error {
		if f := cl.session; f != nil {
			// It still has its place: if the store fails it is to list again.
			f.over = ErrUnavailable
			f.unsync(SyncLost)
		}
		cl.silence.Stop()
		cl.expiry.Stop()
		l := &leaving{}
		finish := func() {
			c.commit(func() {
				c.forgotten(cl, l)
				done()
			}, Change{Kind: ChangeForgetCluster, Cluster: name})
		}
		if h := cl.health; h != nil {
			// What it has yet to write must come before.
			left := newCountdown(2, finish)
			finish, cl.health = left.done, nil
			h.inbox.put(healthMsg{stop: l, done: left.done})
		}
		cl.cancel()
		c.onShards(func(s *shard) { s.forget(name, l) }, finish)
		return nil
	})
}

// forgotten takes leave of a cluster that is off the disk.
func (c *core) forgotten(cl *cluster, l *leaving) {
	cl.mu.Lock()
	if f := cl.session; f != nil {
		f.over = fmt.Errorf("%w: cluster %q was forgotten", ErrSuperseded, cl.name)
		cl.session = nil
		f.sink.Ended(f.over)
	}
	cl.mu.Unlock()
	c.mu.Lock()
	delete(c.clusters, cl.name)
	c.mu.Unlock()
	c.executors.clusterForgotten(cl.name)
	c.deliveries.gone(l)
	c.observer.Forgotten(cl.name)
	close(cl.gone)
}

// forget drops a shard's part of a cluster.
func (s *shard) forget(name string, l *leaving) {
	sc := s.clusters[name]
	if sc == nil {
		return
	}
	delete(s.clusters, name)
	s.waits.remove(sc)
	drop := func(e *eviction) {
		s.heap.disarm(e)
		if d := e.delivery(); d != nil {
			s.core.deliveries.leave(d.Token, l)
		}
		e.pod.ev, e.state = nil, StateClosed
	}
	for _, n := range sc.nodes {
		for _, p := range n.pods {
			if p.ev != nil {
				drop(p.ev)
			}
		}
	}
	// Of pods that are gone already, what is still out.
	for e := range sc.active(s.now) {
		drop(e)
	}
}
