package engine

import (
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

const (
	// deliveryDeadline is how long an executor has for an answer, and what each extension adds.
	deliveryDeadline = 30 * time.Second
	// maxDelivery is the longest a delivery may last with all its extensions.
	maxDelivery = 10 * time.Minute
	// confirmTimeout is how long the feed has to show what an executor reported.
	confirmTimeout = 60 * time.Second
	// staleBackOff and minBlockedBackOff are the waits after STALE and BLOCKED.
	staleBackOff      = 5 * time.Second
	minBlockedBackOff = 10 * time.Second
	// lastBlockedBackOff is the shortest wait after BLOCKED, near the end of the budget's wait or past it.
	lastBlockedBackOff = time.Second
	// maxBlockedBackOff bounds what an executor may ask for with retry_after.
	maxBlockedBackOff = time.Hour
	// firstBackOff is doubled with each attempt, up to maxBackOff.
	firstBackOff = time.Second
	maxBackOff   = 5 * time.Minute
)

// ruling is the decision over a pod as the shard holds it. The answer is valid
// until the next ruling.
func (s *shard) ruling(sc *shardCluster, p *pod, policy *Policy) Decision {
	in := p.input(policy)
	in.Steps = s.steps
	d := Decide(in)
	s.steps = d.Steps
	return d
}

func (p *pod) input(policy *Policy) DecideInput {
	return DecideInput{NodeKnown: p.node.known, Taints: p.node.force, Guards: p.node.guards, Policy: policy, Subject: p.subject()}
}

func (p *pod) subject() Subject {
	sub := Subject{
		Namespace: p.namespace.Value(), Tolerations: p.tols.tolerations(), BoundAt: p.boundAt.time(),
		Unscheduled: p.node.name == "", Terminating: p.terminating, Finished: p.finished, Mirror: p.mirror,
	}
	if p.ev != nil {
		sub.Requests = p.ev.requests()
	}
	return sub
}

// cause turns a decision's reason into what is kept of it.
func (p *pod) cause(d *Decision) Cause {
	if d.Request >= 0 {
		r := p.ev.requests()[d.Request]
		return Cause{Kind: CauseRequest, RequestID: r.ID, Requester: r.Requester}
	}
	step := &d.Steps[d.Step]
	c := Cause{Kind: CauseTaint, Taint: step.Taint, Start: step.Start, Default: step.Default}
	if step.Toleration >= 0 {
		c.Toleration = &p.tols.list[step.Toleration]
	}
	return c
}

func (c *Cause) equal(o *Cause) bool {
	return c.Kind == o.Kind && c.sameKey(o) && c.Start.Equal(o.Start) && c.Default == o.Default &&
		c.Taint.Start.Equal(o.Taint.Start) && c.Taint.TimeAdded.Equal(o.Taint.TimeAdded) && sameToleration(c, o)
}

// sameKey says whether two causes of a kind have the same causeKey.
func (c *Cause) sameKey(o *Cause) bool {
	if c.Kind == CauseRequest {
		return c.Requester == o.Requester && c.RequestID == o.RequestID
	}
	return c.Taint.Key == o.Taint.Key && c.Taint.Value == o.Taint.Value
}

func sameToleration(a, b *Cause) bool {
	x, y := a.Toleration, b.Toleration
	if x == nil || y == nil {
		return x == y
	}
	if x == y {
		return true
	}
	sameSeconds := (x.TolerationSeconds == nil) == (y.TolerationSeconds == nil) &&
		(x.TolerationSeconds == nil || *x.TolerationSeconds == *y.TolerationSeconds)
	return sameSeconds && x.Key == y.Key && x.Operator == y.Operator && x.Value == y.Value && x.Effect == y.Effect
}

// decide brings a pod's eviction in line with the decision as it is now (D13).
func (s *shard) decide(sc *shardCluster, p *pod) {
	if s.concerns(sc, p) {
		s.follow(sc, p, &ruled{Decision: s.ruling(sc, p, &sc.conf.policy)})
	}
}

// concerns reports whether a pod needs a decision. One that is gone needs none:
// its eviction leaves.
func (s *shard) concerns(sc *shardCluster, p *pod) bool {
	switch {
	case !sc.conf.live:
		return false
	case p.ev == nil:
		return !p.gone && len(p.node.force) > 0
	case p.gone:
		s.leave(sc, p.ev, ClosePodDeleted)
		return false
	}
	return true
}

// follow does what a decision over a pod says.
func (s *shard) follow(sc *shardCluster, p *pod, r *ruled) {
	if p.ev != nil {
		s.revise(sc, p.ev, &r.Decision)
		return
	}
	if r.Verdict != VerdictLeave || p.saidAlready(sc, s.now, &r.Decision) {
		return
	}
	if r.grounds == nil {
		cause := p.cause(&r.Decision)
		r.grounds = p.node.share(r.Due, &cause)
	}
	s.put(sc, s.opened(sc, p, r.grounds))
}

// saidAlready reports whether opening an eviction now would only repeat what
// shadow mode has recorded, or what an executor has just reported.
func (p *pod) saidAlready(sc *shardCluster, now time.Time, d *Decision) bool {
	if p.quietUntil != 0 && p.quietUntil > instantOf(now) {
		return true
	}
	if sc.conf.policy.Mode != ModeShadow {
		return false
	}
	w, ok := sc.said[p]
	if !ok || w.due != instantOf(d.Due) {
		return false
	}
	c := p.cause(d)
	return w.cause == causeKey(&c)
}

// opened is a new eviction that is not on its way to the disk yet.
func (s *shard) opened(sc *shardCluster, p *pod, g *grounds) *eviction {
	e := s.newEviction(p, g)
	e.openedAt = instantOf(s.now)
	p.ev = e
	if nb := sc.loopBackOff(p, &g.cause); nb.After(s.now) {
		e.more().notBefore = instantOf(nb)
	}
	sc.set(e, StateWaiting, HoldNone, time.Time{})
	return e
}

// evictionChunk is how many evictions are allocated at once, most often of one
// node. An open one keeps the memory of all, so that there are few.
const evictionChunk = 6

// newEviction returns an eviction of which nothing else is set.
func (s *shard) newEviction(p *pod, g *grounds) *eviction {
	if len(s.evictions) == 0 {
		s.evictions = make([]eviction, evictionChunk)
	}
	e := &s.evictions[0]
	s.evictions = s.evictions[1:]
	e.pod, e.grounds = p, g
	return e
}

// revise applies a new decision to an open eviction.
func (s *shard) revise(sc *shardCluster, e *eviction, d *Decision) {
	switch d.Verdict {
	case VerdictLeave:
		s.reschedule(sc, e, d)
	case VerdictNever:
		s.cancel(sc, e, s.cancelCause(sc, e))
	case VerdictNotSubject:
		switch d.Exempt {
		case ExemptTerminating:
			s.leave(sc, e, ClosePodDeleted)
		case ExemptFinished:
			s.leave(sc, e, ClosePodFinished)
		case ExemptNodeUnknown:
			s.leave(sc, e, CloseNodeDeleted)
		default:
			s.cancel(sc, e, CancelPolicy)
		}
	}
}

// cancelCause says what took away the reason of an eviction.
func (s *shard) cancelCause(sc *shardCluster, e *eviction) CancelCause {
	if e.cause().Kind == CauseRequest {
		return CancelRequestWithdrawn
	}
	t := e.pod.node.taint(e.cause().Taint.Key, e.cause().Taint.Value)
	switch {
	case t == nil:
		return CancelTaintRemoved
	case e.pod.node.has(t.Key, GuardRejected):
		return CancelRejected
	case slices.Contains(sc.conf.policy.IgnoredTaintKeys, t.Key):
		return CancelPolicy
	default:
		return CancelToleration
	}
}

// reschedule moves an eviction to the due instant of a decision that stands.
func (s *shard) reschedule(sc *shardCluster, e *eviction, d *Decision) {
	cause := e.pod.cause(d)
	if e.due().Equal(d.Due) && e.cause().equal(&cause) {
		if e.state == StateDue && e.hold == HoldBlastRadius && e.pending == 0 {
			// Something that is not held may make the pod leave by now.
			s.heap.arm(e, s.now)
		}
		return
	}
	switch e.state {
	case StateConfirming, StateRecalling:
		return
	case StateDelivered:
		// One whose order has not left is looked at after its commit.
		if e.handed() && d.Due.After(s.now) {
			s.recall(sc, e, RecallCancelled, s.moveCause(e, &cause))
		}
		return
	}
	s.withdraw(sc, e)
	s.heap.disarm(e)
	s.unindex(sc, e)
	if due := e.due(); !due.Equal(d.Due) && e.uncommonly().firstDue.IsZero() {
		e.edit(func(u *uncommon) { u.firstDue = due })
	}
	e.grounds = e.pod.node.share(d.Due, &cause)
	s.reindex(sc, e)
	if d.Due.After(s.now) && e.state == StateDue {
		sc.set(e, StateWaiting, HoldNone, time.Time{})
	}
	s.put(sc, e)
}

// moveCause says why a decision that still stands no longer stands for now.
func (s *shard) moveCause(e *eviction, next *Cause) CancelCause {
	switch {
	case e.cause().Kind == CauseRequest:
		return CancelRequestWithdrawn
	case e.pod.node.taint(e.cause().Taint.Key, e.cause().Taint.Value) == nil:
		return CancelTaintRemoved
	case e.pod.node.has(e.cause().Taint.Key, GuardRejected):
		return CancelRejected
	case e.cause().Default && next.Default:
		return CancelPolicy
	default:
		return CancelToleration
	}
}

// cancel ends an eviction whose decision no longer stands.
func (s *shard) cancel(sc *shardCluster, e *eviction, cause CancelCause) {
	switch e.state {
	case StateConfirming, StateRecalling:
		// The answer is in, or awaited: it closes the eviction.
		return
	case StateDelivered:
		// One whose order has not left is looked at after its commit.
		if e.handed() {
			s.recall(sc, e, RecallCancelled, cause)
		}
		return
	}
	s.close(sc, e, CloseCancelled, cause)
}

// close writes the eviction to history and forgets it.
func (s *shard) close(sc *shardCluster, e *eviction, reason CloseReason, cause CancelCause) {
	s.withdraw(sc, e)
	s.heap.disarm(e)
	s.unindex(sc, e)
	sc.count(e, -1)
	delete(sc.requested, e)
	e.state, e.hold = StateClosed, HoldNone
	e.pod.ev = nil
	if e.committed {
		sc.bySeq.leave(isOpen)
	}
	v := s.lastVersion(e)
	if v.rest != nil {
		v.rest.delivery, v.rest.confirmBy, v.rest.notBefore = nil, 0, 0
		v.rest.holdUntil(time.Time{})
	}
	v.closedAt, v.closeReason, v.cancelCause = instantOf(s.now), reason, cause
	e.pending++
	closing := pending{kind: ChangeCloseEviction, cluster: sc.name, version: v, tell: true, shard: int32(s.id)}
	if stay := sc.conf.reprieves[e.pod.uid]; stay != nil && endsReprieve(e.pod, reason) {
		closing.dropReprieve = true
		closing.then = func() { sc.reprieveDropped(stay) }
	}
	s.out = append(s.out, closing)
	s.core.observer.Closed(sc.name, reason)
}

// endsReprieve says whether a pod's reprieve goes with its eviction: the feed
// shows the pod's end. What only an executor says of it may be wrong.
func endsReprieve(p *pod, reason CloseReason) bool {
	if !p.gone && !p.terminating && !p.finished {
		return false
	}
	switch reason {
	case CloseEvicted, CloseGone, CloseSuperseded, ClosePodDeleted, ClosePodFinished:
		return true
	}
	return false
}

// fire looks at an eviction whose instant has come.
func (s *shard) fire(e *eviction) {
	sc := e.sc()
	switch e.state {
	case StateWaiting, StateDue:
		s.gate(sc, e)
	case StateDelivered, StateRecalling:
		s.resolve(sc, e, Result{Outcome: OutcomeNoAnswer, Message: "no answer by the deadline"}, nil)
	case StateConfirming:
		sc.set(e, StateDue, HoldNone, time.Time{})
		e.rest.confirmBy = 0
		if s.decide(sc, e.pod); e.pod.ev == e && e.state == StateDue && e.pending == 0 {
			s.put(sc, e)
		}
	}
}

// held returns the first gate that keeps the eviction back, in the order of
// the gates, and when it opens by itself.
func (s *shard) held(sc *shardCluster, e *eviction) (Hold, time.Time) {
	return sc.conf.held(e, s.now)
}

func (c *clusterConf) held(e *eviction, now time.Time) (Hold, time.Time) {
	switch {
	case !c.live || !c.released:
		return HoldClusterNotSynced, time.Time{}
	case c.damaged:
		return HoldRecordDamaged, time.Time{}
	}
	if p := c.pauseFor(e.pod, now); p != nil {
		return HoldPaused, p.Until
	}
	if r := c.reprieves[e.pod.uid]; r != nil && !r.over(now) {
		return HoldReprieved, r.Until
	}
	if nb := e.notBefore(); nb.After(now) {
		return HoldBackingOff, nb
	}
	if held, until := c.blastHold(e, now); held {
		return HoldBlastRadius, until
	}
	return HoldNone, time.Time{}
}

// gate lets a due eviction through to the dispatcher, or holds it.
func (s *shard) gate(sc *shardCluster, e *eviction) {
	if hold, until := s.held(sc, e); hold != HoldNone {
		s.withdraw(sc, e)
		fresh := e.state != StateDue || e.hold != hold
		sc.set(e, StateDue, hold, until)
		if !until.IsZero() {
			s.heap.arm(e, until)
		}
		if fresh {
			s.notify(sc, e)
		}
		return
	}
	if sc.conf.policy.Mode != ModeEnforce {
		sc.say(e.pod, wouldEvict{due: instantOf(e.due()), cause: causeKey(e.cause())})
		s.close(sc, e, CloseWouldEvict, CancelUnspecified)
		// Its requests have had their answer; a taint may still be to come.
		s.decide(sc, e.pod)
		return
	}
	sc.set(e, StateDue, HoldNone, time.Time{})
	s.offer(sc, e)
}

// permitted decides again and commits the delivery, or returns the permit.
func (s *shard) permitted(p *permit) {
	e := p.offer.ev
	if e.offer != p.offer || e.state != StateDue || e.pod.ev != e {
		s.returnPermit(p)
		return
	}
	sc := e.sc()
	s.unoffered(sc, e)
	if !s.stands(sc, e) {
		s.returnPermit(p)
		s.arm(sc, e)
		return
	}
	m := e.more()
	m.delivery = &Delivery{
		Token: s.core.newToken(), ExecutorID: p.link.session.hello.ID, SentAt: s.now, Deadline: s.now.Add(deliveryDeadline),
	}
	m.link, m.permit = p.link, p
	m.lastSentAt = instantOf(s.now)
	if m.firstSentAt == 0 {
		m.firstSentAt = m.lastSentAt
	}
	s.heap.disarm(e)
	sc.set(e, StateDelivered, HoldNone, time.Time{})
	s.core.deliveries.add(m.delivery.Token, deliveryRef{shard: s, ev: e, session: p.link.session, cluster: sc.name})
	s.put(sc, e)
	p.awaited = e.pending
}

// stands reports whether the eviction may be sent now, as it is: no gate holds it
// and the decision is the one that it was made due by.
func (s *shard) stands(sc *shardCluster, e *eviction) bool {
	if e.pod.gone || e.due().After(s.now) || sc.conf.policy.Mode != ModeEnforce {
		return false
	}
	if hold, _ := s.held(sc, e); hold != HoldNone {
		return false
	}
	d := s.ruling(sc, e.pod, &sc.conf.policy)
	if d.Verdict != VerdictLeave || !d.Due.Equal(e.due()) {
		return false
	}
	cause := e.pod.cause(&d)
	return e.cause().equal(&cause)
}

// saved is called for each commit of an eviction whose order has not left. From
// that of its delivery on the order waits for its turn.
func (s *shard) saved(sc *shardCluster, e *eviction) {
	p := e.rest.permit
	if p.awaited--; p.awaited == 0 && sc.dispatcher.line.ready(p) {
		s.hand(sc, e)
	}
}

// turn is called when every permit before has been used or returned.
func (s *shard) turn(p *permit) {
	if e := p.offer.ev; e.rest != nil && e.rest.permit == p {
		s.hand(e.sc(), e)
	}
}

// hand gives a committed delivery to the executor, after one more look. Nothing
// else keeps an order back that is not wanted any more: what changed during the
// commit has left the delivery alone, unless the eviction itself is over.
func (s *shard) hand(sc *shardCluster, e *eviction) {
	m := e.rest
	if s.stands(sc, e) {
		lateness := s.now.Sub(e.due())
		failpoint.Hit(failpoint.OrderBefore)
		policy := &sc.conf.policy
		e.fill(&s.record)
		if m.link.session.order(Order{
			Token: m.delivery.Token, DeadlineIn: m.delivery.Deadline.Sub(s.now), Attempt: e.attempts() + 1,
			EvictionID: EvictionID(sc.name, e.seq()), Method: policy.Method, BudgetWait: policy.budgetLeft(e.due(), s.now),
			Eviction: &s.record,
		}) {
			failpoint.Hit(failpoint.OrderAfter)
			s.pass(m.permit)
			m.permit, e.pod.claimed = nil, true
			s.core.observer.Sent(sc.name, lateness, e.attempts())
			sc.sentFrom(e, s.now)
			s.heap.arm(e, m.delivery.Deadline)
			return
		}
	}
	s.undeliver(sc, e)
	s.dueAgain(sc, e)
}

// undeliver takes back a delivery whose order has not left.
func (s *shard) undeliver(sc *shardCluster, e *eviction) {
	m := e.rest
	s.core.deliveries.remove(m.delivery.Token)
	s.returnPermit(m.permit)
	if e.attempts() == 0 && m.lastOutcome == OutcomeUnspecified {
		m.firstSentAt, m.lastSentAt = 0, 0
	}
	m.delivery, m.link, m.permit = nil, nil, nil
	sc.set(e, StateDue, HoldNone, time.Time{})
}

// returnPermit gives back a permit that no order left by.
func (s *shard) returnPermit(p *permit) {
	s.returnCredit(p.offer.dispatcher(), p.link)
	s.pass(p)
}

// returnCredit frees an executor's place; link is nil if the order took none.
func (s *shard) returnCredit(d *dispatcher, link *execLink) {
	if link != nil {
		d.inbox.put(dispatchMsg{credit: link})
	}
}

// pass gives the turn to the next in line.
func (s *shard) pass(p *permit) {
	d := p.offer.dispatcher()
	next, roomy := d.line.leave(p)
	if next != nil {
		next.offer.ev.pod.shard().inbox.put(shardMsg{turn: next})
	}
	if roomy {
		d.inbox.put(dispatchMsg{roomy: true})
	}
}

// recall calls back an order that is out.
func (s *shard) recall(sc *shardCluster, e *eviction, reason RecallReason, cause CancelCause) {
	m := e.rest
	d := *m.delivery
	d.Recall, d.RecallCause = reason, cause
	m.delivery = &d
	sc.set(e, StateRecalling, HoldNone, time.Time{})
	s.put(sc, e)
	s.core.deliveries.recall(d.Token, reason)
}
