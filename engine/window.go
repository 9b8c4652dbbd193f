package engine

import (
	"cmp"
	"time"
)

// offerWindow is how many due evictions of one kind a shard puts before its
// cluster's dispatcher at a time. It is enough to grant from while the next come.
const offerWindow = 1024

// window has what may leave of a shard's part of a cluster, of one kind: first
// orders or retries. The dispatcher is offered the oldest. What is behind them
// costs nothing but a mark: the index of due instants has it in its order.
type window struct {
	// offered counts the offers that the dispatcher has, behind those that may leave
	// and are not offered.
	offered, behind int
	// upTo is the last place in the order that was offered since there was no offer:
	// what comes before it must be offered, too (I8). Nothing behind comes before from.
	upTo, from duePlace
}

// duePlace is a place in the order in which evictions leave.
type duePlace struct {
	due time.Time
	seq uint64
}

func (e *eviction) duePlace() duePlace { return duePlace{e.due(), e.seq()} }

func (p duePlace) before(q duePlace) bool {
	return cmp.Or(p.due.Compare(q.due), cmp.Compare(p.seq, q.seq)) < 0
}

// windowOf is the window that a due eviction belongs to.
func (sc *shardCluster) windowOf(retry bool) *window {
	if retry {
		return &sc.retries
	}
	return &sc.fresh
}

// retry reports whether an order for the eviction would be one more after a failed one.
func (e *eviction) retry() bool { return e.attempts() > 0 }

// leaving reports whether the eviction waits for a permit only.
func (e *eviction) leaving() bool { return e.offer != nil || e.behind }

// offer has an eviction that no gate holds wait for a permit.
func (s *shard) offer(sc *shardCluster, e *eviction) {
	if e.leaving() {
		return
	}
	w := sc.windowOf(e.retry())
	at := e.duePlace()
	if w.behind == 0 && w.offered < offerWindow || at.before(w.upTo) {
		w.put(sc, e)
		return
	}
	if w.behind == 0 || at.before(w.from) {
		w.from = at
	}
	e.behind = true
	if w.behind++; w.behind == 1 {
		s.tellBehind(sc, e.retry(), true)
	}
}

// put offers an eviction to the dispatcher.
func (w *window) put(sc *shardCluster, e *eviction) {
	if at := e.duePlace(); w.offered == 0 || w.upTo.before(at) {
		w.upTo = at
	}
	w.offered++
	e.offer = &offer{ev: e, grounds: e.grounds, retry: e.retry()}
	sc.dispatcher.inbox.put(dispatchMsg{offer: e.offer})
}

// withdraw takes back an offer that the dispatcher has, or is still to be made.
func (s *shard) withdraw(sc *shardCluster, e *eviction) {
	switch {
	case e.offer != nil:
		sc.dispatcher.inbox.put(dispatchMsg{withdraw: e.offer})
		s.unoffered(sc, e)
	case e.behind:
		e.behind = false
		w := sc.windowOf(e.retry())
		if w.behind--; w.behind == 0 {
			s.tellBehind(sc, e.retry(), false)
		}
	}
}

// unoffered notes that the dispatcher does not have the eviction's offer any more.
func (s *shard) unoffered(sc *shardCluster, e *eviction) {
	retry := e.offer.retry
	e.offer = nil
	w := sc.windowOf(retry)
	if w.offered--; w.behind > 0 && w.offered <= offerWindow/2 {
		s.refill(sc, w, retry)
	}
}

// refill offers what is next behind a window.
func (s *shard) refill(sc *shardCluster, w *window, retry bool) {
	sc.index.ascend(w.from.due, w.from.seq, func(e *eviction) bool {
		w.from = e.duePlace()
		if e.behind && e.retry() == retry {
			e.behind = false
			w.behind--
			w.put(sc, e)
		}
		return w.behind > 0 && w.offered < offerWindow
	})
	if w.behind == 0 {
		s.tellBehind(sc, retry, false)
	}
}

// tellBehind tells the dispatcher whether there is more than it is offered.
func (s *shard) tellBehind(sc *shardCluster, retry, more bool) {
	sc.dispatcher.inbox.put(dispatchMsg{behind: &behindMsg{shard: s.id, retry: retry, more: more}})
}
