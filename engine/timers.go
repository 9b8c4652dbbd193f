package engine

import (
	"cmp"
	"time"
)

// timerHeap has evictions by the instant each next wants to be looked at. Those
// that wait for their due instant are not in it unless that has passed: the
// index has them in that order already.
type timerHeap struct{ indexedHeap[*eviction] }

func (e *eviction) before(o *eviction) bool {
	return cmp.Or(cmp.Compare(e.wake, o.wake), cmp.Compare(e.seq(), o.seq())) < 0
}

func (e *eviction) at() *int32 { return &e.place }

// arm puts e into the heap for at, or moves it there.
func (h *timerHeap) arm(e *eviction, at time.Time) {
	e.wake = instantOf(at)
	h.push(e)
}

// disarm takes e out of the heap if it is in it.
func (h *timerHeap) disarm(e *eviction) { h.remove(e) }

// next returns the earliest instant, and whether there is one.
func (h *timerHeap) next() (time.Time, bool) {
	if e := h.head(); e != nil {
		return e.wake.time(), true
	}
	return time.Time{}, false
}

func (sc *shardCluster) before(o *shardCluster) bool {
	return cmp.Or(sc.nextWait.Compare(o.nextWait), cmp.Compare(sc.name, o.name)) < 0
}

func (sc *shardCluster) at() *int32 { return &sc.place }

// expect has the timer go off for a wait that ends at due, unless that has passed:
// then the eviction itself is armed.
func (s *shard) expect(sc *shardCluster, due time.Time) {
	if due.After(s.firedTo) && (sc.place == 0 || due.Before(sc.nextWait)) {
		sc.nextWait = due
		s.waits.push(sc)
	}
}

// next is the earliest instant at which there is something to look at.
func (s *shard) next() (time.Time, bool) {
	next, ok := s.heap.next()
	if sc := s.waits.head(); sc != nil && (!ok || sc.nextWait.Before(next)) {
		return sc.nextWait, true
	}
	return next, ok
}

// fireDue looks at every eviction whose instant has come.
func (s *shard) fireDue() {
	for {
		next, ok := s.next()
		if !ok || next.After(s.now) {
			break
		}
		if e := s.heap.head(); e != nil && !e.wake.time().After(next) {
			s.heap.disarm(e)
			s.fire(e)
		} else {
			s.fireWaits(s.waits.head())
		}
	}
	s.firedTo = s.now
}

// fireWaits looks at what waits in a cluster until its next wait is over.
func (s *shard) fireWaits(sc *shardCluster) {
	if g := sc.index.group(sc.nextWait); g != nil {
		for _, e := range g.all() {
			// One with a change on its way is armed when that is on disk.
			if e.state == StateWaiting && e.pending == 0 {
				s.fire(e)
			}
		}
	}
	next := sc.index.after(sc.nextWait)
	if next == nil {
		s.waits.remove(sc)
		return
	}
	sc.nextWait = next.due
	s.waits.push(sc)
}
