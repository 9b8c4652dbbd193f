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
	k := &kernelTimer{fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}
	go k.run(ring)
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
