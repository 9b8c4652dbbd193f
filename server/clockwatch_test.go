package server

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// steppedClock is a virtual clock beside a wall clock that is set.
type steppedClock struct {
	*clock.Virtual
	drift atomic.Int64
}

func (c *steppedClock) Drift() time.Duration { return time.Duration(c.drift.Load()) }

// TestClockStepsAreCounted sets the wall clock to and fro: what is more than 2 s
// from where it was last noted is counted, less is only shown.
func TestClockStepsAreCounted(t *testing.T) {
	c := &steppedClock{Virtual: clock.NewVirtual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	f := newFixtureAt(t, Deps{Clock: c, OpenStore: memory()}, nil)
	for i, tc := range []struct {
		drift time.Duration
		steps int
	}{
		{0, 0},
		{time.Second, 0},
		{2 * time.Second, 0},
		{3 * time.Second, 1}, // 3 s from where it was last taken note of
		{4 * time.Second, 1},
		{-time.Hour, 2},
		{-time.Hour, 2},
		{0, 3},
	} {
		c.drift.Store(int64(tc.drift))
		c.Set(c.Now().Add(clockEvery))
		c.Fire()
		_, text := f.get("/metrics")
		for _, want := range []string{
			fmt.Sprintf("reprieve_clock_steps_total %d\n", tc.steps), fmt.Sprintf("reprieve_clock_drift_seconds %g\n", tc.drift.Seconds()),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("look %d at a drift of %s: metrics have no %q", i, tc.drift, want)
			}
		}
	}
}
