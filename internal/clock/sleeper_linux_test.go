package clock

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOnPollerRefusesWhatIsNotPolled: of a plain file the poller tells nothing, as of
// a timer that it had no room for.
func TestOnPollerRefusesWhatIsNotPolled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if k := onPoller(fd); k != nil {
		k.end()
		t.Error("a sleeper that would never wake was taken")
	}
}

// TestKernelTimer arms timers of the real clock in no order: each is called once, none
// early, none that was stopped; and with the last the clock lets its sleeper go.
func TestKernelTimer(t *testing.T) {
	c := NewReal()
	k, ok := newSleeper(func() {}).(*kernelTimer)
	if !ok {
		t.Fatal("the kernel gives no timer")
	}
	k.end()
	type call struct {
		ms  int
		now time.Time
	}
	calls := make(chan call)
	begin := c.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	timer := func(ms int) Timer { return c.NewTimer(func() { calls <- call{ms, c.Now()} }) }
	// So far off that the machine may stand still before the stop; were it still armed
	// after that, the clock would sleep on.
	stopped, moved := timer(3_600_000), timer(60)
	stopped.Reset(at(3_600_000))
	moved.Reset(at(3_600_000))
	for _, ms := range []int{30, 10, 50, -1000, 20, 40} {
		timer(ms).Reset(at(ms))
	}
	stopped.Stop()
	moved.Reset(at(60))
	want := []int{-1000, 10, 20, 30, 40, 50, 60}
	var got []int
	for range want {
		x := <-calls
		got = append(got, x.ms)
		if early := at(x.ms).Sub(x.now); early > 0 {
			t.Errorf("the timer of %d ms was called %s early", x.ms, early)
		}
	}
	slices.Sort(got) // Where the machine stands still several come at once, in any order.
	if !slices.Equal(got, want) {
		t.Errorf("called for %v ms, want %v", got, want)
	}
	c.alarm.mu.Lock()
	defer c.alarm.mu.Unlock()
	if c.alarm.sleeper != nil || len(c.alarm.armed) != 0 {
		t.Error("the clock still sleeps with nothing armed")
	}
}
