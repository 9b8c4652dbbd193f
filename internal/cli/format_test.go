package cli

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// TestFarInstants checks that an instant which no time.Duration reaches is shown as a date.
func TestFarInstants(t *testing.T) {
	far := timestamppb.New(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
	held := &reprievev1.Eviction{State: reprievev1.EvictionState_EVICTION_STATE_DUE, Hold: reprievev1.HoldReason_HOLD_REASON_PAUSED, HoldUntil: far}
	for got, want := range map[string]string{
		ends(far, epoch): "on 9999-12-31",
		ends(at(time.Hour-time.Millisecond), epoch): "in 1h00m",
		countdown(far, epoch):                       "on 9999-12-31",
		dueInstant(far, epoch):                      "9999-12-31T23:59:59Z",
		dueInstant(at(time.Minute), epoch):          "2026-01-01T12:01:00Z (in 1m00s)",
		stateWord(held, epoch):                      "DUE PAUSED until 9999-12-31",
		ends(at(36*time.Hour), epoch):               "in 1d12h",
		countdown(at(3600*24*time.Hour), epoch):     "in 3600d0h",
		shortDuration(9223372036 * time.Second):     "292y",
		countdown(at(-36*time.Hour), epoch):         "due 1d12h ago",
		shortDuration(3649 * 24 * time.Hour):        "3649d0h",
		stateWord(&reprievev1.Eviction{}, epoch):    "-",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
