package cli

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// far is from when on a date says more than a countdown. Beyond 292 years a
// time.Duration cannot hold the difference of two instants.
const far = 10 * 365 * 24 * time.Hour

// until says how far away a coming instant is, or its date if that is far.
func until(at, now time.Time) string {
	if d := at.Sub(now); d < far {
		return "in " + shortDuration(d.Truncate(time.Second))
	}
	return "on " + at.UTC().Format(time.DateOnly)
}

// shortDuration is d in at most two units: 4m12s, 3h04m, 2d5h, 12y. Below ten
// seconds it keeps tenths, if there are any.
func shortDuration(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	if d < 10*time.Second {
		d = d.Round(100 * time.Millisecond)
		if d%time.Second != 0 {
			return fmt.Sprintf("%.1fs", d.Seconds())
		}
	}
	s := int64(d.Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	case d < far:
		return fmt.Sprintf("%dd%dh", s/86400, s%86400/3600)
	default:
		return fmt.Sprintf("%dy", s/86400/365)
	}
}

// countdown says how far away an instant is: "in 4m12s", "due 3s ago".
func countdown(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil {
		return "-"
	}
	// Whole seconds: people read it as a clock, and the true instant is in -o json.
	d := at.AsTime().Sub(now)
	switch {
	case d >= time.Second:
		return until(at.AsTime(), now)
	case d > 0:
		return "in <1s"
	case d > -time.Second:
		return "due now"
	default:
		return "due " + shortDuration(d.Truncate(time.Second)) + " ago"
	}
}

// ago says how long ago an instant was.
func ago(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil {
		return "-"
	}
	d := now.Sub(at.AsTime()).Truncate(time.Second)
	if d < time.Second {
		return "now"
	}
	return shortDuration(d) + " ago"
}

// ends says when something ends by itself.
func ends(at *timestamppb.Timestamp, now time.Time) string {
	switch {
	case at == nil:
		return "when resumed"
	case !at.AsTime().After(now):
		return "over"
	default:
		// Rounded, so that a pause just made for an hour ends in an hour.
		return until(at.AsTime().Add(500*time.Millisecond), now)
	}
}

func instant(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().UTC().Format(time.RFC3339)
}

// dueInstant is an instant with its countdown, unless that is only its date.
func dueInstant(at *timestamppb.Timestamp, now time.Time) string {
	if at == nil || at.AsTime().Sub(now) >= far {
		return instant(at)
	}
	return instant(at) + " (" + countdown(at, now) + ")"
}

func lasting(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return shortDuration(d.AsDuration())
}

// word is an enum value's name without its prefix: EVICTION_STATE_DUE is DUE.
func word[T interface{ String() string }](v T, prefix string) string {
	w := strings.TrimPrefix(v.String(), prefix)
	if w == "UNSPECIFIED" {
		return "-"
	}
	return w
}

// stateWord is where an eviction stands, with what holds it and for how long, if
// that is known.
func stateWord(e *reprievev1.Eviction, now time.Time) string {
	s := word(e.GetState(), "EVICTION_STATE_")
	if e.GetHold() != reprievev1.HoldReason_HOLD_REASON_UNSPECIFIED {
		s += " " + word(e.GetHold(), "HOLD_REASON_")
		if u := e.GetHoldUntil(); u != nil && u.AsTime().After(now) {
			s += " " + strings.NewReplacer("in ", "", "on ", "until ").Replace(until(u.AsTime(), now))
		}
	}
	if e.GetStuck() {
		s += " stuck"
	}
	return s
}

func taintWord(t *reprievev1.Taint) string {
	s := t.GetKey()
	if t.GetValue() != "" {
		s += "=" + t.GetValue()
	}
	return s
}

// causeWord is why a pod leaves, in few words.
func causeWord(c *reprievev1.Cause) string {
	if r := c.GetRequest(); r != nil {
		return "request " + r.GetRequester() + "/" + r.GetRequestId()
	}
	t := c.GetTaint()
	if t == nil {
		return "-"
	}
	// The prefix of Kubernetes' own taints says little and takes much room.
	s := strings.TrimPrefix(taintWord(t.GetTaint()), "node.kubernetes.io/")
	switch {
	case t.GetDefaultToleration():
		s += " (default " + lasting(t.GetWait()) + ")"
	case t.GetToleration() != nil:
		s += " (" + lasting(t.GetWait()) + ")"
	}
	return s
}

func podWord(namespace, name string) string { return namespace + "/" + name }
