package clock

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRealIsMovedByBootTimeOnly steps the wall clock and suspends the machine.
func TestRealIsMovedByBootTimeOnly(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	wall, boot := start, 100*time.Second
	c := newReal(func() time.Time { return wall }, func() time.Duration { return boot }, runtimeSleeper)
	wall = wall.Add(-24 * time.Hour)
	boot += 3 * time.Second
	if got := c.Now(); !got.Equal(start.Add(3 * time.Second)) {
		t.Errorf("after a step of the wall clock: %s", got)
	}
	if got := c.Drift(); got != -24*time.Hour-3*time.Second {
		t.Errorf("drift %s", got)
	}
	c.Floor(start.Add(time.Second))
	if got := c.Now(); !got.Equal(start.Add(3 * time.Second)) {
		t.Errorf("a floor in the past moved the clock to %s", got)
	}
	c.Floor(start.Add(time.Hour))
	boot += time.Second
	if got := c.Now(); !got.Equal(start.Add(time.Hour + time.Second)) {
		t.Errorf("after the floor: %s", got)
	}
}

// TestRealTimer lets a timer sleep in pieces, as through a suspended machine.
func TestRealTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var suspended atomic.Int64
		c := newReal(time.Now, func() time.Duration { return time.Since(begin) + time.Duration(suspended.Load()) }, runtimeSleeper)
		fired := make(chan time.Duration, 10)
		timer := c.NewTimer(func() { fired <- time.Since(begin) })
		timer.Reset(c.Now().Add(100 * time.Second))
		time.Sleep(10 * time.Second)
		suspended.Store(int64(60 * time.Second))
		// Looked at again when the first piece is over, after 30 s awake, 10 s before the end.
		if got := <-fired; got != 40*time.Second {
			t.Errorf("fired after %s awake, want 40 s and 60 s suspended", got)
		}
		timer.Reset(c.Now().Add(time.Second))
		timer.Reset(c.Now().Add(5 * time.Second))
		before := time.Since(begin)
		if got := <-fired; got-before != 5*time.Second {
			t.Errorf("reset to 5 s fired after %s", got-before)
		}
		timer.Reset(c.Now().Add(time.Second))
		timer.Stop()
		time.Sleep(time.Minute)
		if len(fired) != 0 {
			t.Error("a stopped timer fired")
		}
	})
}

// TestBootClock carries a reading on, and sees the machine's sleep soon after it.
func TestBootClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		reads, asleep := 0, time.Duration(0)
		b := bootClock{read: func() time.Duration {
			reads++
			return time.Since(begin) + asleep
		}}
		for range 1000 {
			time.Sleep(time.Millisecond)
			if got, want := b.now(), time.Since(begin); got != want {
				t.Fatalf("%s, want %s", got, want)
			}
		}
		if most := int(time.Second/bootAge) + 1; reads > most {
			t.Errorf("%d system calls in a second, want at most %d", reads, most)
		}
		asleep = time.Hour
		if got := b.now(); got > time.Since(begin)+asleep {
			t.Errorf("%s is ahead of time", got)
		}
		time.Sleep(bootAge)
		if got, want := b.now(), time.Since(begin)+asleep; got != want {
			t.Errorf("%s after an hour's sleep, want %s", got, want)
		}
		asleep -= time.Minute
		time.Sleep(bootAge)
		if got, least := b.now(), time.Since(begin)-bootAge+time.Hour; got < least {
			t.Errorf("went back to %s from %s", got, least)
		}
	})
}

func TestVirtual(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := NewVirtual(start)
	var got []string
	timer := func(name string) Timer { return c.NewTimer(func() { got = append(got, name) }) }
	a, b, late := timer("a"), timer("b"), timer("late")
	b.Reset(start.Add(time.Second))
	a.Reset(start.Add(time.Second))
	late.Reset(start.Add(time.Minute))
	if next, ok := c.Next(); !ok || !next.Equal(start.Add(time.Second)) {
		t.Fatalf("next %s, %t", next, ok)
	}
	c.Set(start.Add(2 * time.Second))
	if n := c.Fire(); n != 2 || got[0] != "b" || got[1] != "a" {
		t.Fatalf("fired %d: %v, want b and a in the order of their arming", n, got)
	}
	// An instant that has passed means now: it must not look earlier than now.
	a.Reset(start)
	if next, _ := c.Next(); !next.Equal(c.Now()) {
		t.Fatalf("next %s, want now", next)
	}
	a.Stop()
	c.Set(start)
	if !c.Now().Equal(start.Add(2*time.Second)) || c.Fire() != 0 {
		t.Fatal("the clock went back, or a stopped timer fired")
	}
}

// TestStartIsReadAtOneInstant has the process stand still between the readings of
// the two clocks, shortly once and for long otherwise: the closest readings count.
func TestStartIsReadAtOneInstant(t *testing.T) {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var boot time.Duration
	read := 0
	wall := func() time.Time {
		now := begin.Add(boot)
		boot += 40 * time.Millisecond
		if read++; read == 7 {
			boot -= 39 * time.Millisecond
		}
		return now
	}
	c := newReal(wall, func() time.Duration { return boot }, runtimeSleeper)
	if late := begin.Add(boot).Sub(c.Now()); late < 0 || late > time.Millisecond {
		t.Errorf("engine time is behind by %s, want the closest reading's millisecond", late)
	}
	if read != readings {
		t.Errorf("read %d times, want %d when none is close", read, readings)
	}
}
