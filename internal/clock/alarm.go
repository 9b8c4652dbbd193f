package clock

import (
	"container/heap"
	"sync"
	"time"
)

// maxSleep bounds one sleep, after which is looked again. The runtime's timers
// stand still while the machine is suspended, and engine time does not.
const maxSleep = 30 * time.Second

// alarm has a clock's armed timers and calls each when its instant has come.
type alarm struct {
	now    func() time.Time
	wakeUp func(ring func()) sleeper

	mu    sync.Mutex // guards what follows
	armed timerHeap
	// sleeper is nil while nothing is armed; until is what it was set to, zero if it is not.
	sleeper sleeper
	until   time.Time
}

// sleeper calls back after a time. It is not safe for concurrent use.
type sleeper interface {
	// sleep has it call once, d from now, instead of what was set before; of that a
	// call may still come.
	sleep(d time.Duration)
	// end lets it go.
	end()
}

type realTimer struct {
	alarm *alarm
	f     func()

	// Guarded by alarm.mu. place is the index in the heap plus one; zero: not armed.
	at    time.Time
	place int
}

// Reset implements [Timer].
func (t *realTimer) Reset(at time.Time) {
	t.alarm.mu.Lock()
	defer t.alarm.mu.Unlock()
	if t.at = at; t.place == 0 {
		heap.Push(&t.alarm.armed, t)
	} else {
		heap.Fix(&t.alarm.armed, t.place-1)
	}
	t.alarm.rest()
}

// Stop implements [Timer].
func (t *realTimer) Stop() {
	t.alarm.mu.Lock()
	defer t.alarm.mu.Unlock()
	if t.place != 0 {
		heap.Remove(&t.alarm.armed, t.place-1)
		t.alarm.rest()
	}
}

// ring calls the timers whose instant has come. It may be of an earlier setting:
// what counts is the time.
func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = time.Time{}
	for now := a.now(); len(a.armed) > 0 && !a.armed[0].at.After(now); {
		t, _ := heap.Pop(&a.armed).(*realTimer)
		go t.f()
	}
	a.rest()
}

// rest sleeps until the earliest instant. mu is held.
func (a *alarm) rest() {
	switch {
	case len(a.armed) > 0:
		if a.sleeper == nil {
			a.sleeper = a.wakeUp(a.ring)
		}
		if at := a.armed[0].at; !at.Equal(a.until) {
			a.until = at
			a.sleeper.sleep(min(max(at.Sub(a.now()), 0), maxSleep))
		}
	case a.sleeper != nil:
		a.sleeper.end()
		a.sleeper, a.until = nil, time.Time{}
	}
}

// timerHeap has armed timers, the earliest first.
type timerHeap []*realTimer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	t, _ := x.(*realTimer)
	*h = append(*h, t)
	t.place = len(*h)
}

func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.place = 0
	return t
}
