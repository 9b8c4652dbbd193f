package clock

import (
	"math"
	"sync"
	"time"
)

// Real is engine time on a machine: wall clock at start plus elapsed
// CLOCK_BOOTTIME. A step of the wall clock does not move it.
type Real struct {
	wall  func() time.Time
	boot  func() time.Duration // called with mu held
	alarm alarm

	mu    sync.Mutex // guards start and boot0
	start time.Time
	boot0 time.Duration
}

// NewReal starts engine time at the wall clock's reading.
func NewReal() *Real {
	boot := bootClock{read: bootTime}
	return newReal(wallTime, boot.now, newSleeper)
}

func newReal(wall func() time.Time, boot func() time.Duration, sleep func(ring func()) sleeper) *Real {
	c := &Real{wall: wall, boot: boot}
	c.alarm.now, c.alarm.wakeUp = c.Now, sleep
	c.start, c.boot0 = together(wall, boot)
	return c
}

const (
	// closeReadings is near enough for two clocks that are read one after the other.
	closeReadings = 50 * time.Microsecond
	// readings bounds how often they are read for that.
	readings = 20
)

// together reads both clocks at one instant. A process that is not run between
// the two readings, as on a busy machine, would be behind for all its life by as
// long: so they are read again until little time passed, and the closest count.
// What is left makes engine time late, never early.
func together(wall func() time.Time, boot func() time.Duration) (start time.Time, boot0 time.Duration) {
	least := time.Duration(math.MaxInt64)
	for i := 0; i < readings && least > closeReadings; i++ {
		before, now, after := boot(), wall(), boot()
		if gap := after - before; gap < least {
			least, start, boot0 = gap, now.Round(0).UTC(), after
		}
	}
	return start, boot0
}

// bootAge is how long a reading of CLOCK_BOOTTIME is carried on. A time of the
// machine's sleep is that late in engine time, which delays and never hastens.
const bootAge = 5 * time.Millisecond

// bootClock reads CLOCK_BOOTTIME, which takes a system call, now and then. In
// between, the runtime's clock carries it on: the two differ only by the time
// that the machine sleeps. It is not safe for concurrent use.
type bootClock struct {
	read func() time.Duration
	// at is the latest reading, since the runtime's time of it, last the latest answer.
	at, last time.Duration
	since    time.Time
}

func (b *bootClock) now() time.Duration {
	passed := time.Since(b.since)
	if b.since.IsZero() || passed >= bootAge {
		// In this order: what passes between the two makes an answer late, not early.
		b.at, passed = b.read(), 0
		b.since = time.Now()
	}
	b.last = max(b.last, b.at+passed)
	return b.last
}

// Now implements [Clock].
func (c *Real) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start.Add(c.boot() - c.boot0)
}

// Floor moves engine time forward to at least t, so that a start on a machine
// whose wall clock went back does not repeat time that the store has seen.
// Call it before the engine starts.
func (c *Real) Floor(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	boot := c.boot()
	if now := c.start.Add(boot - c.boot0); now.Before(t) {
		c.start, c.boot0 = t.Round(0).UTC(), boot
	}
}

// Drift is the wall clock's reading minus engine time. Engine time ignores it;
// it is for the operator to know.
func (c *Real) Drift() time.Duration { return c.wall().Round(0).Sub(c.Now()) }

// NewTimer implements [Clock].
func (c *Real) NewTimer(f func()) Timer { return &realTimer{alarm: &c.alarm, f: f} }
