package server

import (
	"log/slog"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

const (
	// clockEvery is how often the wall clock is compared with the service's time.
	clockEvery = 10 * time.Second
	// clockStep is a difference that is no mere drift.
	clockStep = 2 * time.Second
)

// drifting is a clock that knows how far the wall clock is off.
type drifting interface{ Drift() time.Duration }

// clockWatch counts and reports steps of the wall clock, which move nothing.
type clockWatch struct {
	clock   clock.Clock
	drift   drifting
	metrics *metrics
	logger  *slog.Logger
	timer   clock.Timer

	mu      sync.Mutex // guards what follows
	seen    time.Duration
	stopped bool
}

// watchClock begins to watch, if the clock knows the wall clock, and returns
// what ends that.
func watchClock(c clock.Clock, m *metrics, logger *slog.Logger) (stop func()) {
	d, ok := c.(drifting)
	if !ok {
		return func() {}
	}
	w := &clockWatch{clock: c, drift: d, metrics: m, logger: logger, seen: d.Drift()}
	m.clockDrift.Set(w.seen.Seconds())
	w.timer = c.NewTimer(w.look)
	w.timer.Reset(c.Now().Add(clockEvery))
	return w.stop
}

func (w *clockWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	drift := w.drift.Drift()
	w.metrics.clockDrift.Set(drift.Seconds())
	if step := drift - w.seen; step.Abs() > clockStep {
		w.seen = drift
		w.metrics.clockSteps.Inc()
		w.logger.Warn("the wall clock was set; waits are not moved by it", "step", step, "drift", drift)
	}
	w.timer.Reset(w.clock.Now().Add(clockEvery))
}

func (w *clockWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}

// wallTime is the wall clock's reading, by which other people's instants count,
// as those of certificates do.
func wallTime(c clock.Clock) time.Time {
	if d, ok := c.(drifting); ok {
		return c.Now().Add(d.Drift())
	}
	return c.Now()
}
