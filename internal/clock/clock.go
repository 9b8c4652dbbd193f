package clock

import "time"

// Clock tells engine time and calls back when it reaches an instant.
type Clock interface {
	// Now is the engine time, in UTC and without a monotonic reading.
	Now() time.Time
	// NewTimer returns a stopped timer that calls f, in a goroutine of the
	// clock's, when the time it was last Reset to has come.
	NewTimer(f func()) Timer
}

// Timer calls its function once for each Reset, unless stopped or reset before.
// A call may still be under way when Stop or Reset returns.
type Timer interface {
	// Reset arms the timer for at; an instant that has passed means at once.
	Reset(at time.Time)
	// Stop disarms the timer.
	Stop()
}
