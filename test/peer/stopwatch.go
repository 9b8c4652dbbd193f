package main

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

// stopwatch measures stretches of work: the time they took and the processor time
// that the process used for them, which other programs of the machine move less.
type stopwatch struct {
	began      time.Time
	usedBefore time.Duration

	took, used time.Duration
	items      int
}

// startWatch begins with the garbage of the preparation gone.
func startWatch() *stopwatch {
	runtime.GC()
	w := &stopwatch{}
	w.resume()
	return w
}

// resume begins a stretch.
func (w *stopwatch) resume() { w.began, w.usedBefore = time.Now(), processorTime() }

// pause ends a stretch in which so many items were done.
func (w *stopwatch) pause(items int) {
	w.took += time.Since(w.began)
	w.used += processorTime() - w.usedBefore
	w.items += items
}

// stop ends the only stretch, of n items.
func (w *stopwatch) stop(n int) figures {
	w.pause(n)
	return w.figures()
}

// figures are the rate of the items and the processor time of one, in ns.
func (w *stopwatch) figures() figures {
	return figures{"rate": float64(w.items) / w.took.Seconds(), "cpu": float64(w.used.Nanoseconds()) / float64(w.items)}
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
