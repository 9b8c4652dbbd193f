//go:build crash

package crash

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// trial is one program's lives, with what feeds it and executes for it.
type trial struct {
	*findings // of its judge
	t         *testing.T
	seed      uint64
	rng       *rand.Rand
	p         *program
	x         *executor
	fed       *feeder // of this life; nil while it has none
	// met counts the kills by point.
	met map[string]int
}

// check ends the test if anything was found against the service.
func (r *trial) check(when string) {
	r.t.Helper()
	if found := r.found(); len(found) > 0 {
		r.t.Fatalf("%s, with -seed=%d:\n%s", when, r.seed, strings.Join(found[:min(len(found), 20)], "\n"))
	}
}

// points tells how often the service was killed where.
func (r *trial) points() string {
	var points []string
	for _, name := range slices.Sorted(maps.Keys(r.met)) {
		points = append(points, fmt.Sprintf("%s %d", name, r.met[name]))
	}
	return strings.Join(points, ", ")
}

// up waits until the service listens and has it looked at before anyone feeds it; an error means that it died.
func (r *trial) up(ctx context.Context, l *life) error {
	if err := r.p.ready(l); err != nil {
		if err != errDied {
			r.t.Fatal(err)
		}
		return err
	}
	r.x.j.recovered(ctx, l)
	return nil
}

// feed has a feed begin, and synced waits until the service has its list.
func (r *trial) feed(ctx context.Context, l *life, w source) error {
	f, err := startFeed(ctx, w, l, feedHello{feeder: "f"})
	if err != nil {
		return err
	}
	r.fed = f
	r.x.j.relist(f)
	return nil
}

func (r *trial) synced(l *life) error {
	select {
	case <-r.fed.synced:
		return nil
	case <-r.fed.ended:
		return r.fed.err
	case <-l.dead:
		return errDied
	}
}

// unfeed ends the feed, if there is one.
func (r *trial) unfeed() {
	if r.fed != nil {
		r.fed.stop()
		r.fed = nil
	}
}

// end kills the service and waits until nothing of it is heard any more.
func (r *trial) end(l *life) {
	l.kill()
	at := time.Now()
	r.unfeed()
	r.x.end()
	r.x.j.ended(at)
	if s := l.status(); s != "signal: killed" {
		r.violation("the service ended by itself: %s", s)
	}
}

// calm is a life in which everything comes to what is wanted.
type calm struct {
	within time.Duration
	// connect feeds and executes.
	connect func(context.Context, *life) error
	// left is what is not as it should be; late is called if that stays so.
	left func() []string
	late func(context.Context, *life, []string)
}

// rest lets the service live until nothing is left to be done. On a busy machine a connection may fail though the
// service lives: then it is made again.
func (r *trial) rest(c calm) {
	r.p.shift(0)
	r.x.soothe(true)
	defer r.x.soothe(false)
	l := r.p.start("", 0, 0)
	defer l.kill()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	until := time.Now().Add(c.within)
	err := r.up(ctx, l)
	if err == nil {
		err = c.connect(ctx, l)
	}
	for ; err != nil; err = c.connect(ctx, l) {
		r.unfeed()
		if l.wait(50*time.Millisecond) || time.Now().After(until) {
			r.t.Fatalf("no connection to the service: %v", err)
		}
		r.t.Logf("connecting again: %v", err)
	}
	for left := c.left(); len(left) > 0; left = c.left() {
		if time.Now().After(until) {
			c.late(ctx, l, left)
			break
		}
		if l.wait(20 * time.Millisecond) {
			r.t.Fatal("the service died without a cause")
		}
	}
	r.end(l)
}
