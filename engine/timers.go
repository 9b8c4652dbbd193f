package engine

import "time"

// timerHeap has a shard's evictions by the instant each next wants to be looked at.
type timerHeap struct{ indexedHeap[*eviction] }

func (e *eviction) before(o *eviction) bool {
	if !e.wake.Equal(o.wake) {
		return e.wake.Before(o.wake)
	}
	return e.seq() < o.seq()
}

func (e *eviction) at() *int32 { return &e.place }

// arm puts e into the heap for at, or moves it there.
func (h *timerHeap) arm(e *eviction, at time.Time) {
	e.wake = at
	h.push(e)
}

// disarm takes e out of the heap if it is in it.
func (h *timerHeap) disarm(e *eviction) { h.remove(e) }

// next returns the earliest instant, and whether there is one.
func (h *timerHeap) next() (time.Time, bool) {
	if e := h.head(); e != nil {
		return e.wake, true
	}
	return time.Time{}, false
}
