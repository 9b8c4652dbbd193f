//go:build !linux

package clock

func newSleeper(ring func()) sleeper { return runtimeSleeper(ring) }
