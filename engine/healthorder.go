package engine

import (
	"time"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

// hold says what keeps orders for a node back, and until when if that is known.
func (h *healthOwner) hold(n *healthNode) (Hold, time.Time) {
	c := h.conf
	switch {
	case !c.live || !c.released:
		return HoldClusterNotSynced, time.Time{}
	case c.damaged:
		return HoldRecordDamaged, time.Time{}
	}
	if p := c.nodePause(n.name, h.now); p != nil {
		return HoldPaused, p.Until
	}
	if n.notBefore.After(h.now) {
		return HoldBackingOff, n.notBefore
	}
	if n.offer != nil && h.cl.dispatcher.nodesWait.Load() {
		return HoldNoExecutor, time.Time{}
	}
	return HoldNone, time.Time{}
}

// open reports whether an order for the node may leave now.
func (h *healthOwner) open(n *healthNode) bool {
	hold, _ := h.hold(n)
	return h.conf.policy.actsOnHealth() && (hold == HoldNone || hold == HoldNoExecutor)
}

// review brings a node's order in line with what is wanted of the node now.
func (h *healthOwner) review(n *healthNode) {
	if n.delivery != nil {
		h.reviewSent(n)
		return
	}
	_, ok := h.machine.Want(n.name)
	if !ok {
		// The feed shows it: what differs from now on is news.
		n.settleAt = time.Time{}
	}
	if !ok || !h.open(n) || n.settleAt.After(h.now) {
		h.withdraw(n)
		return
	}
	if n.offer == nil {
		n.offer = &nodeOffer{owner: h, node: n}
		h.cl.dispatcher.inbox.put(dispatchMsg{node: n.offer})
	}
}

func (h *healthOwner) withdraw(n *healthNode) {
	if n.offer != nil {
		h.cl.dispatcher.inbox.put(dispatchMsg{unnode: n.offer})
		n.offer = nil
	}
}

// reviewSent calls an order back that is no longer wanted, or that a gate holds.
func (h *healthOwner) reviewSent(n *healthNode) {
	if !n.sent || n.delivery.Recall != RecallNone {
		return
	}
	var reason RecallReason
	switch c := h.conf; {
	case c.nodePause(n.name, h.now) != nil:
		reason = RecallPaused
	case !c.policy.actsOnHealth():
		reason = RecallShadow
	case c.live && !h.machine.Knows(n.name, n.want.UID):
		reason = RecallNodeDeleted
	case c.live && h.machine.Contradicts(n.name, n.want.UID, n.want.Ordered):
		reason = RecallCancelled
	default:
		return
	}
	d := *n.delivery
	d.Recall = reason
	n.delivery = &d
	h.store(n)
	h.core.deliveries.recall(d.Token, reason)
}

// permitted decides again and commits the delivery, or returns the permit.
func (h *healthOwner) permitted(p *healthPermit) {
	n := p.offer.node
	want, ok := h.machine.Want(n.name)
	if n.offer != p.offer || !ok || !h.open(n) || n.settleAt.After(h.now) {
		h.returnCredit(p.link)
		if n.offer == p.offer {
			n.offer = nil
			h.review(n)
		}
		return
	}
	n.offer, n.want, n.link, n.sent, n.shown = nil, want, p.link, false, false
	n.delivery = &Delivery{
		Token: h.core.newToken(), ExecutorID: p.link.session.hello.ID, SentAt: h.now, Deadline: h.now.Add(deliveryDeadline),
	}
	h.tokens[n.delivery.Token] = n
	h.machine.Ordered(n.name, want.Ordered)
	h.core.deliveries.add(n.delivery.Token, deliveryRef{health: h, session: p.link.session, cluster: h.cl.name})
	h.storeThen(n, func() { h.inbox.put(healthMsg{committed: n}) })
}

// saved hands a committed delivery to the executor, after one more look (I1, I4, I7).
func (h *healthOwner) saved(n *healthNode) {
	if n.delivery == nil || n.sent {
		return
	}
	if h.open(n) && !h.machine.Contradicts(n.name, n.want.UID, n.want.Ordered) {
		failpoint.Hit(failpoint.NodeOrderBefore)
		if n.link.session.order(Order{
			Token: n.delivery.Token, DeadlineIn: n.delivery.Deadline.Sub(h.now), Attempt: n.attempts + 1,
			Node: &NodeOrder{Cluster: h.cl.name, Name: n.name, Want: n.want},
		}) {
			failpoint.Hit(failpoint.NodeOrderAfter)
			n.sent = true
			return
		}
	}
	h.core.deliveries.remove(n.delivery.Token)
	h.drop(n)
	h.machine.NotDone(n.name)
	h.store(n)
	h.review(n)
}

// drop ends a node's delivery and gives its credit back. Others still find the
// owner by its token.
func (h *healthOwner) drop(n *healthNode) {
	delete(h.tokens, n.delivery.Token)
	h.returnCredit(n.link)
	n.delivery, n.link, n.sent = nil, nil, false
}

func (h *healthOwner) returnCredit(link *execLink) {
	if link != nil {
		h.cl.dispatcher.inbox.put(dispatchMsg{credit: link})
	}
}

// byToken finds the node whose live order has the token; nil if none has (I6).
func (h *healthOwner) byToken(token string) *healthNode {
	if n := h.tokens[token]; n != nil && n.sent {
		return n
	}
	return nil
}

// adopt gives an order that an executor has brought back its place.
func (h *healthOwner) adopt(a *adoption) {
	n := h.byToken(a.token)
	if n == nil {
		h.returnCredit(a.link)
		return
	}
	n.link = a.link
	if r := n.delivery.Recall; r != RecallNone {
		a.link.session.recall(RecallOrder{Token: a.token, Reason: r})
	}
}

// answered takes an executor's answer, or its request for more time.
func (h *healthOwner) answered(m *resultMsg) {
	n := h.byToken(m.token)
	if n == nil {
		h.core.observer.UnknownToken()
		h.after(func() { m.reply(0, false) })
		return
	}
	failpoint.Hit(failpoint.NodeResultReceived)
	if !m.extend {
		h.resolve(n, m.result)
		h.after(func() { m.reply(0, true) })
		return
	}
	d := *n.delivery
	limit := d.SentAt.Add(maxDelivery)
	if next := h.now.Add(deliveryDeadline); next.After(d.Deadline) {
		d.Deadline = next
	}
	if d.Deadline.After(limit) {
		d.Deadline = limit
	}
	n.delivery = &d
	left := d.Deadline.Sub(h.now)
	h.store(n)
	h.after(func() { m.reply(left, true) })
}

// after calls f once all that was changed so far is on disk.
func (h *healthOwner) after(f func()) {
	h.out = append(h.out, pending{cluster: h.cl.name, then: f})
}

// noAnswer ends a delivery that nobody answered.
func (h *healthOwner) noAnswer(token, why string) {
	if n := h.byToken(token); n != nil {
		h.resolve(n, Result{Outcome: OutcomeNoAnswer, Message: why})
	}
}

// resolve ends a delivery with its outcome.
func (h *healthOwner) resolve(n *healthNode, res Result) {
	d := n.delivery
	if n.link != nil && res.Outcome != OutcomeRecalled {
		h.cl.dispatcher.inbox.put(dispatchMsg{answer: &nodeAnswer{link: n.link, outcome: res.Outcome}})
	}
	h.drop(n)
	h.core.observer.NodeResult(h.cl.name, res.Outcome, h.now.Sub(d.SentAt))
	n.lastOutcome, n.lastMessage = res.Outcome, res.Message
	first := n.attempts == 0
	switch res.Outcome {
	case OutcomeApplied:
		n.attempts, n.notBefore = 0, time.Time{}
		if !n.shown {
			n.settleAt = h.now.Add(healthSettle)
		}
		h.machine.Applied(n.name, d.SentAt, n.want.Ordered)
	case OutcomeStale:
		h.machine.NotDone(n.name)
		h.backsOff(n, d, healthStaleBackOff)
		if n.want.Unknown {
			h.machine.Stale(h.now, n.name, d.ExecutorID)
		}
	case OutcomeGone, OutcomeSuperseded:
		n.notBefore = h.now.Add(healthGoneBackOff)
	case OutcomeRecalled:
		h.machine.NotDone(n.name)
		h.backsOff(n, d, firstBackOff)
	default:
		if d.Recall != RecallNone {
			break
		}
		n.attempts++
		if res.Outcome != OutcomeNoAnswer || !first {
			h.backsOff(n, d, h.backOff(n.attempts))
		}
	}
	h.store(n)
	h.review(n)
	// Not before: who asks for the token until then has to wait for the disk, in answered.
	h.after(func() { h.core.deliveries.remove(d.Token) })
}

// backsOff keeps orders for a node back after one that came to nothing. One that was
// called back is not wanted any more, and what is wanted now does not wait for it.
func (h *healthOwner) backsOff(n *healthNode, d *Delivery, wait time.Duration) {
	if d.Recall == RecallNone {
		n.notBefore = h.now.Add(wait)
	}
}

// backOff is the wait after the n-th attempt, n from 1.
func (h *healthOwner) backOff(n uint32) time.Duration {
	d := maxHealthBackOff
	if n < 5 {
		d = min(firstBackOff<<(n-1), maxHealthBackOff)
	}
	return h.core.jitter(d)
}
