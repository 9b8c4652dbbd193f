package await

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// Every is the pause between two questions.
const Every = 50 * time.Millisecond

var wall = clock.NewReal()

// Now is the time of the machine that all processes of a test share.
func Now() time.Time { return wall.Now() }

// Until asks until holds returns nil, and fails the test with its last error if that takes longer than within.
// holds gets a context that ends with the test or the deadline.
func Until(t testing.TB, within time.Duration, what string, holds func(context.Context) error) {
	t.Helper()
	if err := For(t.Context(), within, what, holds); err != nil {
		t.Fatal(err)
	}
}

// For is Until for callers that go on after a failure.
func For(ctx context.Context, within time.Duration, what string, holds func(context.Context) error) error {
	started := Now()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := holds(ctx)
		if err == nil {
			return nil
		}
		if !Pause(ctx, Every) {
			return fmt.Errorf("waited %s for %s: %w", Now().Sub(started).Round(time.Millisecond), what, err)
		}
	}
}

// Pause waits for d and says whether ctx is still alive. Tests use it where the passing of time is itself what is
// tested, such as an outage of a given length or a span in which nothing may happen.
func Pause(ctx context.Context, d time.Duration) bool {
	over := make(chan struct{})
	timer := wall.NewTimer(func() { close(over) })
	timer.Reset(wall.Now().Add(d))
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-ctx.Done():
		return false
	}
}
