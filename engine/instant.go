package engine

import "time"

// instant is engine time in a third of a [time.Time]'s room and without a
// pointer: seconds since 1970 above 30 bits of nanoseconds, so that instants
// sort as numbers. It ends in 2514; what lies beyond is its end. Zero is no time.
type instant uint64

const (
	nanoBits   = 30
	maxInstant = instant(1<<64 - 1<<nanoBits + 999_999_999)
)

func instantOf(t time.Time) instant {
	switch sec := t.Unix(); {
	case t.IsZero():
		return 0
	case sec < 0:
		return 1
	case sec >= 1<<(64-nanoBits):
		return maxInstant
	default:
		return max(instant(sec)<<nanoBits|instant(t.Nanosecond()), 1)
	}
}

func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(int64(i>>nanoBits), int64(i&(1<<nanoBits-1))).UTC()
}
