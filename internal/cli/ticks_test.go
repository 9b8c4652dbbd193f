package cli

import (
	"context"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// endingClock cancels a context during a timer's second Reset, lets what the context
// calls at its end stop the timer first, and then arms it.
type endingClock struct {
	*clock.Virtual
	end     context.CancelFunc
	resets  int
	stopped chan struct{} // one for each stop
}

func (c *endingClock) NewTimer(f func()) clock.Timer {
	return &endingTimer{Timer: c.Virtual.NewTimer(f), clock: c}
}

type endingTimer struct {
	clock.Timer
	clock *endingClock
}

func (t *endingTimer) Reset(at time.Time) {
	if t.clock.resets++; t.clock.resets == 2 {
		t.clock.end()
		<-t.clock.stopped
	}
	t.Timer.Reset(at)
}

func (t *endingTimer) Stop() {
	t.Timer.Stop()
	t.clock.stopped <- struct{}{}
}

// Ticks whose context ends while one is told of leave no timer armed.
func TestTicksEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := &endingClock{Virtual: clock.NewVirtual(epoch), end: cancel, stopped: make(chan struct{}, 2)}
	ticks(ctx, c, time.Second)
	c.Set(epoch.Add(time.Second))
	c.Fire()
	if at, armed := c.Next(); armed {
		t.Errorf("a timer is armed for %s", at)
	}
}
