package clock

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newSleeper returns a sleeper on a timer of the kernel's, or of the runtime's
// where the kernel has none to give.
func newSleeper(ring func()) sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return runtimeSleeper(ring)
	}
	k := onPoller(fd)
	if k == nil {
		return runtimeSleeper(ring)
	}
	go k.run(ring)
	return k
}

// onPoller returns a kernel's timer that the runtime's poller watches. It is nil,
// and the descriptor closed, if the poller does not take it, as when the kernel has
// no more room for what is polled: a read would not wait then, and nothing be heard.
func onPoller(fd int) *kernelTimer {
	k := &kernelTimer{fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}
	if err := k.file.SetReadDeadline(time.Time{}); err != nil {
		_ = k.file.Close()
		return nil
	}
	return k
}

// kernelTimer is a sleeper that the runtime hears of through its network poller.
// Its own timers are late: with nothing to do it sleeps for whole milliseconds, and
// a worker of the garbage collector on an idle processor asks the poller, but not
// the timers, whether there is something better to do, and goes on for 10 ms.
type kernelTimer struct {
	fd   int
	file *os.File
}

func (k *kernelTimer) sleep(d time.Duration) {
	// Zero would disarm it.
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(d), 1))}
	// The call fails of wrong arguments only.
	_ = unix.TimerfdSettime(k.fd, 0, &spec, nil)
}

func (k *kernelTimer) run(ring func()) {
	var times [8]byte
	for {
		// It fails when it is closed, and of nothing else.
		if _, err := k.file.Read(times[:]); err != nil {
			return
		}
		ring()
	}
}

func (k *kernelTimer) end() { _ = k.file.Close() }
