//go:build !failpoints

package failpoint

import "time"

// Hit does nothing: this build has no points.
func Hit(string) {}

// Often is how often housekeeping is done: as it is set.
func Often(every time.Duration) time.Duration { return every }
