package clock

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Virtual is a clock that stands still until its owner moves it.
type Virtual struct {
	mu     sync.Mutex // guards what follows
	now    time.Time
	armed  map[*virtualTimer]struct{}
	serial uint64
}

// NewVirtual returns a virtual clock that reads start.
func NewVirtual(start time.Time) *Virtual {
	return &Virtual{now: start.Round(0).UTC(), armed: map[*virtualTimer]struct{}{}}
}

// Now implements [Clock].
func (c *Virtual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set moves the clock forward to t and fires nothing. A t in the past is ignored.
func (c *Virtual) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.now) {
		c.now = t.Round(0).UTC()
	}
}

// Next returns the earliest instant a timer is armed for, and whether there is one.
func (c *Virtual) Next() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var next time.Time
	found := false
	for t := range c.armed {
		if !found || t.at.Before(next) {
			next, found = t.at, true
		}
	}
	return next, found
}

// Fire calls, one after the other and in the order of their arming, the timers
// whose instant has come, and returns how many. Timers that these arm wait for
// the next Fire.
func (c *Virtual) Fire() int {
	c.mu.Lock()
	var due []*virtualTimer
	for t := range c.armed {
		if !t.at.After(c.now) {
			due = append(due, t)
			delete(c.armed, t)
		}
	}
	c.mu.Unlock()
	sortBySerial(due)
	for _, t := range due {
		t.f()
	}
	return len(due)
}

func sortBySerial(timers []*virtualTimer) {
	slices.SortFunc(timers, func(a, b *virtualTimer) int { return cmp.Compare(a.serial, b.serial) })
}

// NewTimer implements [Clock].
func (c *Virtual) NewTimer(f func()) Timer { return &virtualTimer{clock: c, f: f} }

type virtualTimer struct {
	clock  *Virtual
	f      func()
	at     time.Time // guarded by clock.mu, like serial
	serial uint64
}

func (t *virtualTimer) Reset(at time.Time) {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.clock.serial++
	if at.Before(t.clock.now) {
		// An instant that has passed means now, and what comes at now comes after
		// all that its owner does at now.
		at = t.clock.now
	}
	t.at, t.serial = at, t.clock.serial
	t.clock.armed[t] = struct{}{}
}

func (t *virtualTimer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.armed, t)
}
