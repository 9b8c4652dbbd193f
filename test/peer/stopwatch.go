package main

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

// stopwatch measures a stretch of work: the time it took and the processor time
// that the process used for it, which other programs of the machine move less.
type stopwatch struct {
	began time.Time
	used  time.Duration
}

// startWatch begins with the garbage of the preparation gone.
func startWatch() stopwatch {
	runtime.GC()
	return stopwatch{time.Now(), processorTime()}
}

// stop returns the rate of n items and the processor time of one, in ns.
func (w stopwatch) stop(n int) figures {
	took, used := time.Since(w.began), processorTime()-w.used
	return figures{"rate": float64(n) / took.Seconds(), "cpu": float64(used.Nanoseconds()) / float64(n)}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// freeMemory gives back what is free, so that what comes is seen to come.
func freeMemory() { debug.FreeOSMemory() }
