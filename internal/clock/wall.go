//go:build !failpoints

package clock

import "time"

func wallTime() time.Time { return time.Now() }
