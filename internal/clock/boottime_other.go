//go:build !linux

package clock

import "time"

var processStart = time.Now()

// bootTime is the runtime's clock, which on some systems stands still while the
// machine is suspended. The service is made for Linux; this is for trying it out.
func bootTime() time.Duration { return time.Since(processStart) }
