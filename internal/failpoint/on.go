//go:build failpoints

package failpoint

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Variable is the environment variable that arms a point: NAME:N:DELAY kills the
// process with SIGKILL when it comes to the point for the Nth time, after a delay
// in which nothing passes the point and what others do goes on.
const Variable = "REPRIEVE_FAILPOINT"

type armed struct {
	name  string
	delay time.Duration
	left  atomic.Int64
}

var point = parse(os.Getenv(Variable))

func parse(s string) *armed {
	if s == "" {
		return nil
	}
	name, rest, _ := strings.Cut(s, ":")
	count, after, _ := strings.Cut(rest, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	delay, bad := time.ParseDuration(after)
	if err != nil || bad != nil || n < 1 {
		fmt.Fprintf(os.Stderr, "%s=%s is not NAME:N:DELAY\n", Variable, s)
		os.Exit(2)
	}
	p := &armed{name: name, delay: delay}
	p.left.Store(n)
	return p
}

// Hit kills the process if the point is armed and its turn has come.
func Hit(name string) {
	if point == nil || point.name != name || point.left.Add(-1) != 0 {
		return
	}
	pause, cancel := context.WithTimeout(context.Background(), point.delay)
	<-pause.Done()
	cancel()
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal has arrived: nothing after the point may happen
}

// housekeeping is frequent enough that a short life has some.
const housekeeping = 200 * time.Millisecond

// Often is how often housekeeping is done: so often that a kill can meet it.
func Often(every time.Duration) time.Duration { return min(every, housekeeping) }
