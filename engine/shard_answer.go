package engine

import (
	"time"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

// resultMsg is an executor's answer, or its request for more time, on its way to the shard.
type resultMsg struct {
	ev      *eviction
	cluster string
	token   string
	result  Result
	// extend asks for more time instead.
	extend bool
	// reply is called once, after what it says is on disk: with the time left
	// for an extension, and with ok false if the token is not live (any more).
	reply func(left time.Duration, ok bool)
}

// answered takes an executor's answer. Only a live token does anything (I6).
func (s *shard) answered(m *resultMsg) {
	e := m.ev
	d := e.delivery()
	if e.pod.ev != e || d == nil || d.Token != m.token || !e.handed() {
		s.core.observer.UnknownToken()
		// What ended the delivery may not be on disk yet, and if it never gets there the token is live again.
		if !s.core.deliveries.defers(m) {
			s.after(m.cluster, func() { m.reply(0, false) })
		}
		return
	}
	sc := e.sc()
	if m.extend {
		s.extend(sc, e, m.reply)
		return
	}
	failpoint.Hit(failpoint.ResultReceived)
	s.resolve(sc, e, m.result, func() { m.reply(0, true) })
}

// after calls f once everything the shard has changed of the cluster so far is on disk.
func (s *shard) after(cluster string, f func()) {
	s.out = append(s.out, pending{cluster: cluster, then: f})
}

// extend gives a delivery more time, up to maxDelivery in all.
func (s *shard) extend(sc *shardCluster, e *eviction, reply func(time.Duration, bool)) {
	d := *e.rest.delivery
	limit := d.SentAt.Add(maxDelivery)
	if d.Deadline = s.now.Add(deliveryDeadline); d.Deadline.After(limit) {
		d.Deadline = limit
	}
	if !d.Deadline.After(e.rest.delivery.Deadline) {
		d.Deadline = e.rest.delivery.Deadline
	}
	e.rest.delivery = &d
	s.put(sc, e)
	left := d.Deadline.Sub(s.now)
	s.after(sc.name, func() { reply(left, true) })
}

// resolve ends a delivery with its outcome, and calls then, if set, when that is
// on disk. Every delivery comes here exactly once, or through undeliver.
func (s *shard) resolve(sc *shardCluster, e *eviction, res Result, then func()) {
	token := e.rest.delivery.Token
	s.conclude(sc, e, res)
	// Not before: who asks for the token until then has to wait for the disk, in answered.
	s.after(sc.name, func() {
		if then != nil {
			then()
		}
		s.core.deliveries.remove(token)
	})
}

// conclude does what the table of outcomes says.
func (s *shard) conclude(sc *shardCluster, e *eviction, res Result) {
	m := e.rest
	d := m.delivery
	s.returnCredit(sc.dispatcher, m.link)
	s.core.observer.Result(sc.name, res.Outcome, s.now.Sub(d.SentAt))
	m.delivery, m.link = nil, nil
	m.resultAt, m.lastOutcome = instantOf(s.now), res.Outcome
	m.say(res.Message)
	s.heap.disarm(e)
	if res.Outcome != OutcomeNoAnswer {
		m.noAnswers = 0
	}
	switch res.Outcome {
	case OutcomeEvicted:
		s.evicted(sc, e, d)
	case OutcomeGone:
		s.closeAhead(sc, e, CloseGone)
	case OutcomeSuperseded:
		s.closeAhead(sc, e, CloseSuperseded)
	default:
		if d.Recall != RecallNone {
			s.recalled(sc, e, d)
			return
		}
		s.failed(sc, e, res)
	}
}

// evicted waits for the feed to show what the executor reported, unless it has.
func (s *shard) evicted(sc *shardCluster, e *eviction, d *Delivery) {
	if e.pod.gone || e.pod.terminating {
		s.close(sc, e, CloseEvicted, CancelUnspecified)
		return
	}
	if d.Recall == RecallCancelled || d.Recall == RecallNodeDeleted {
		// Nothing wants the pod gone any more, but gone it is.
		s.closeAhead(sc, e, CloseEvicted)
		return
	}
	e.rest.confirmBy = instantOf(s.now.Add(confirmTimeout))
	sc.set(e, StateConfirming, HoldNone, time.Time{})
	s.put(sc, e)
}

// closeAhead closes an eviction whose pod the feed may still show: it is not
// opened again for as long as a confirmation may take.
func (s *shard) closeAhead(sc *shardCluster, e *eviction, reason CloseReason) {
	p := e.pod
	s.close(sc, e, reason, CancelUnspecified)
	if p.gone {
		return
	}
	s.hush(sc, p)
}

// recalled ends an order that was called back before it did anything.
func (s *shard) recalled(sc *shardCluster, e *eviction, d *Delivery) {
	p, requests := e.pod, e.requests()
	if !sc.conf.live {
		// What wants the pod gone by now, the next list tells. Until then the
		// eviction stays, so that a crash cannot lose a wait between the two (I2).
		e.rest.notBefore = 0
		s.dueAgain(sc, e)
		return
	}
	switch d.Recall {
	case RecallCancelled:
		s.close(sc, e, CloseCancelled, d.RecallCause)
	case RecallReprieved:
		s.close(sc, e, CloseCancelled, CancelReprieve)
	case RecallNodeDeleted:
		s.close(sc, e, CloseNodeDeleted, CancelUnspecified)
	default:
		e.rest.notBefore = 0
		s.dueAgain(sc, e)
		return
	}
	// What wants the pod gone by now is another eviction.
	if len(requests) > 0 && !p.gone && !p.terminating && !p.finished {
		s.openRequested(sc, p, requests)
		return
	}
	s.decide(sc, p)
}

// failed puts an eviction that did not come about back among the due ones.
func (s *shard) failed(sc *shardCluster, e *eviction, res Result) {
	m := e.rest
	switch res.Outcome {
	case OutcomeStale:
		m.notBefore = instantOf(s.now.Add(staleBackOff))
	case OutcomeBlocked:
		m.notBefore = instantOf(s.now.Add(blockedBackOff(&sc.conf.policy, e.due(), s.now, res.RetryAfter)))
	case OutcomeRecalled:
		// The executor hands it back unasked, as one that drains does.
		m.notBefore = 0
	case OutcomeNoAnswer:
		s.attempt(sc, e)
		m.noAnswers++
		m.notBefore = 0
		if m.noAnswers > 1 {
			m.notBefore = instantOf(s.now.Add(s.backOff(m.noAnswers - 1)))
		}
	default:
		s.attempt(sc, e)
		m.notBefore = instantOf(s.now.Add(s.backOff(m.attempts)))
	}
	s.dueAgain(sc, e)
}

// blockedBackOff is the wait after BLOCKED. It does not go beyond the end of
// the budget's wait, so that the delete that then follows is not late.
func blockedBackOff(p *Policy, due, now time.Time, asked time.Duration) time.Duration {
	wait := min(max(asked, minBlockedBackOff), maxBlockedBackOff)
	if p.Method == MethodEvictThenDelete {
		wait = max(min(wait, p.budgetLeft(due, now)), lastBlockedBackOff)
	}
	return wait
}

func (s *shard) attempt(sc *shardCluster, e *eviction) {
	sc.count(e, -1)
	e.more().attempts++
	sc.count(e, 1)
}

// backOff is the wait after the n-th attempt, n from 1.
func (s *shard) backOff(n uint32) time.Duration {
	d := maxBackOff
	if n < 10 {
		d = min(firstBackOff<<(n-1), maxBackOff)
	}
	return s.core.jitter(d)
}

// dueAgain makes an eviction due after a delivery. The decision is taken anew:
// what changed while the order was out counts now.
func (s *shard) dueAgain(sc *shardCluster, e *eviction) {
	sc.set(e, StateDue, HoldNone, time.Time{})
	if s.decide(sc, e.pod); e.pod.ev != e || e.pending > 0 && e.state != StateDue {
		return
	}
	if e.pod.gone {
		s.leave(sc, e, ClosePodDeleted)
		return
	}
	s.put(sc, e)
}

// noAnswer ends a delivery whose stream ended and did not come back.
func (s *shard) noAnswer(e *eviction, token string) {
	if d := e.delivery(); e.pod.ev == e && d != nil && d.Token == token && e.handed() {
		s.resolve(e.sc(), e, Result{Outcome: OutcomeNoAnswer, Message: "the executor's stream ended"}, nil)
	}
}
