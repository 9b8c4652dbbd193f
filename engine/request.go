package engine

import (
	"context"
	"fmt"
	"slices"
)

// maxRequests bounds the requests that one pod may have at a time.
const maxRequests = 16

// RequestEviction records another party's wish that a pod leaves and returns the
// eviction as it stands on disk. Repeating a request with the same id and
// content changes nothing. Errors: ErrPodUnknown (synced cluster), ErrNotSynced,
// ErrNotSubject, ErrRequestConflict, ErrInvalid (too many requests).
func (g *Engine) RequestEviction(ctx context.Context, r EvictionRequest) (*EvictionRecord, error) {
	var rec *EvictionRecord
	err := g.onPod(ctx, r.Cluster, r.Pod, func(s *shard, sc *shardCluster, p *pod, done func(error)) {
		err := s.request(sc, p, r)
		if err != nil {
			done(err)
			return
		}
		e := p.ev
		s.after(sc.name, func() { s.inbox.put(shardMsg{task: func(*shard) { rec = e.record(); done(nil) }}) })
	})
	if err != nil {
		return nil, err // The shard may yet write rec.
	}
	return rec, nil
}

// WithdrawEviction takes a request back and returns the eviction as it then is
// on disk: closed if nothing else wants the pod gone. Errors: ErrRequestUnknown, ErrClusterUnknown.
func (g *Engine) WithdrawEviction(ctx context.Context, name, requester, id string) (*EvictionRecord, error) {
	c, err := g.current()
	if err != nil {
		return nil, err
	}
	p, err := c.requested(ctx, name, requester, id)
	if err != nil {
		return nil, err
	}
	var left *Version
	err = g.onPod(ctx, name, PodRef{UID: p.uid}, func(s *shard, sc *shardCluster, p *pod, done func(error)) {
		if left = s.withdrawRequest(sc, p, requester, id); left == nil {
			done(requestUnknown(name, requester, id))
			return
		}
		s.after(sc.name, func() { done(nil) })
	})
	if err != nil {
		return nil, err // The shard may yet write left.
	}
	return left.Record(), nil
}

func requestUnknown(name, requester, id string) error {
	return fmt.Errorf("%w: id %q of requester %q in cluster %q", ErrRequestUnknown, id, requester, name)
}

// requested finds the pod that a request is for.
func (c *core) requested(ctx context.Context, name, requester, id string) (*pod, error) {
	if c.cluster(name) == nil {
		return nil, fmt.Errorf("%w: %q", ErrClusterUnknown, name)
	}
	for _, s := range c.shards {
		var found *pod
		err := c.ask(ctx, s, func(s *shard) {
			sc := s.clusters[name]
			if sc == nil {
				return
			}
			for e := range sc.requested {
				if findRequest(e.requests(), requester, id) >= 0 {
					found = e.pod
				}
			}
		})
		// After an error the shard may yet write found.
		if err != nil {
			return nil, err
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, requestUnknown(name, requester, id)
}

func findRequest(list []Request, requester, id string) int {
	return slices.IndexFunc(list, func(r Request) bool { return r.Requester == requester && r.ID == id })
}

// onPod runs f in the shard of a pod and waits until f's done was called.
func (g *Engine) onPod(ctx context.Context, name string, ref PodRef, f func(*shard, *shardCluster, *pod, func(error))) error {
	c, cl, err := g.find(name)
	if err != nil {
		return err
	}
	p, err := cl.podFor(ref)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	p.shard().inbox.put(shardMsg{task: func(s *shard) {
		sc := s.clusters[name]
		if sc == nil || p.node == nil || p.gone {
			done <- fmt.Errorf("%w: %s in cluster %q", ErrPodUnknown, ref, name)
			return
		}
		f(s, sc, p, func(err error) { done <- err })
	}})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return ErrUnavailable
	}
}

// request adds a request to a pod and takes the decision anew.
func (s *shard) request(sc *shardCluster, p *pod, r EvictionRequest) error {
	if !sc.conf.live {
		return fmt.Errorf("%w: cluster %q", ErrNotSynced, sc.name)
	}
	req := Request{ID: r.ID, Requester: r.Requester, Reason: r.Reason, NotBefore: r.NotBefore, RequestedAt: s.now}
	var list []Request
	if p.ev != nil {
		list = p.ev.requests()
	}
	if i := findRequest(list, r.Requester, r.ID); i >= 0 {
		if old := list[i]; !old.NotBefore.Equal(req.NotBefore) || old.Reason != req.Reason {
			return fmt.Errorf("%w: id %q of requester %q", ErrRequestConflict, r.ID, r.Requester)
		}
		return nil
	}
	if len(list) >= maxRequests {
		return fmt.Errorf("%w: the pod has %d requests already", ErrInvalid, len(list))
	}
	if d := s.ruling(sc, p, &sc.conf.policy); d.Verdict == VerdictNotSubject {
		return fmt.Errorf("%w: %s", ErrNotSubject, d.Exempt)
	}
	list = append(slices.Clone(list), req)
	if p.ev == nil {
		s.openRequested(sc, p, list)
		return nil
	}
	p.ev.edit(func(u *uncommon) { u.requests = list })
	sc.requested[p.ev] = struct{}{}
	s.put(sc, p.ev)
	s.decide(sc, p)
	return nil
}

// openRequested opens an eviction for requests; a taint that comes first takes
// its place with the decision.
func (s *shard) openRequested(sc *shardCluster, p *pod, list []Request) {
	first := &list[0]
	for i := range list {
		if requestDue(&list[i]).Before(requestDue(first)) {
			first = &list[i]
		}
	}
	e := s.opened(sc, p, p.node.share(requestDue(first), &Cause{Kind: CauseRequest, RequestID: first.ID, Requester: first.Requester}))
	e.edit(func(u *uncommon) { u.requests = list })
	if p.quietUntil > instantOf(s.now) {
		// An executor has just reported the pod gone; it is not to be sent for again at once.
		e.rest.notBefore = p.quietUntil
	}
	sc.requested[e] = struct{}{}
	s.put(sc, e)
	s.decide(sc, p)
}

// withdrawRequest takes a request off a pod and returns the version of the eviction
// that is now on its way to the disk; nil if there is no such request.
func (s *shard) withdrawRequest(sc *shardCluster, p *pod, requester, id string) *Version {
	e := p.ev
	if e == nil {
		return nil
	}
	i := findRequest(e.requests(), requester, id)
	if i < 0 {
		return nil
	}
	e.edit(func(u *uncommon) { u.requests = slices.Delete(slices.Clone(u.requests), i, i+1) })
	if len(e.requests()) == 0 {
		delete(sc.requested, e)
	}
	s.put(sc, e)
	// While the feed is lost this decides nothing: the end of the next list does.
	s.decide(sc, p)
	return s.queued(e)
}

// dropRequests takes the requests off an eviction that is over with its node
// (D15). Those that come until its executor answers are for what comes next.
func (s *shard) dropRequests(sc *shardCluster, e *eviction) {
	e.edit(func(u *uncommon) { u.requests = nil })
	delete(sc.requested, e)
}

// queued is the latest version of an eviction on its way to the disk; the commit
// gives it its revision.
func (s *shard) queued(e *eviction) *Version {
	for i := len(s.out) - 1; i >= 0; i-- {
		if v := s.out[i].version; v != nil && v.ev == e {
			return s.out[i].version
		}
	}
	return nil
}
