//go:build failpoints

package clock

import (
	"os"
	"strings"
	"time"
)

// shiftFile is the environment variable with the file of a duration by which a
// crash test shifts the wall clock's reading.
const shiftFile = "REPRIEVE_WALL_SHIFT_FILE"

func wallTime() time.Time {
	now := time.Now()
	text, err := os.ReadFile(os.Getenv(shiftFile))
	if err != nil {
		return now
	}
	shift, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return now
	}
	return now.Add(shift)
}
