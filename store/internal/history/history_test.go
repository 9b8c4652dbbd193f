package history

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestNanosKeepOrder draws instants of any year: what does not fit is cut, and nothing changes places.
func TestNanosKeepOrder(t *testing.T) {
	instant := rapid.Custom(func(rt *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(-1<<36, 1<<36).Draw(rt, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(rt, "nanoseconds"))
	})
	rapid.Check(t, func(rt *rapid.T) {
		a, b := instant.Draw(rt, "a"), instant.Draw(rt, "b")
		na, nb := Nanos(a), Nanos(b)
		if a.Before(b) && na > nb || a.After(b) && na < nb {
			rt.Fatalf("%v is %d, %v is %d", a, na, b, nb)
		}
		if na != math.MinInt64 && na != math.MaxInt64 && !time.Unix(0, na).Equal(a) {
			rt.Fatalf("%v came back as %v", a, time.Unix(0, na))
		}
	})
	if Nanos(time.Time{}) != math.MinInt64 || Nanos(time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)) != math.MaxInt64 || Nanos(time.Unix(0, 0)) != 0 {
		t.Error("instants beyond an int64 are not cut to what it holds")
	}
}
