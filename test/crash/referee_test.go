//go:build crash

package crash

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// transit is how long a message may be under way on a busy machine, where no fence tells.
	transit = 2 * time.Second
	// skew is what two readings of one machine's clock may differ by, and what a rounded instant may lose.
	skew = 5 * time.Millisecond
)

// findings are what a judge has found against the service.
type findings struct {
	mu   sync.Mutex // guards list
	list []string
}

func (f *findings) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, text)
}

// found returns the violations so far.
func (f *findings) found() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}

// referee is what the judges have in common: which orders are out, what was acknowledged, and the rules for every
// order, whatever it is for. Who embeds it keeps all else under the same lock.
type referee struct {
	findings
	cluster *ledger

	mu   sync.Mutex        // guards what follows
	feed *feeder           // of this life; nil while it has none yet
	live map[string]*order // by uid
	gone map[string]bool   // uids whose eviction was acknowledged
	// since is when this feed took over from an earlier one of the same life; zero for the first.
	since time.Time
	// thawed is when the service last went on after it stood still.
	thawed time.Time
}

func newReferee(cluster *ledger) referee {
	return referee{cluster: cluster, live: map[string]*order{}, gone: map[string]bool{}}
}

// fences is how many fences were asked for.
func (r *referee) fences() uint64 { return r.cluster.fences.Load() }

// forget says that the executor has lost its orders: they may be sent again.
func (r *referee) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = map[string]*order{}
}

// connected and ended are for the judge that wants to know.
func (r *referee) connected() {}

func (r *referee) ended(time.Time) {}

// start begins a life, which has no feed yet. mu is held.
func (r *referee) start() { r.feed, r.since = nil, time.Time{} }

// takeOver has a feed begin, and reports whether it comes after another of the same life. mu is held.
func (r *referee) takeOver(f *feeder) (again bool) {
	if again = r.feed != nil; again {
		r.since = time.Now()
	}
	r.feed = f
	return again
}

// arrived notes an order and says what no order may be; empty if nothing is wrong with it. mu is held.
func (r *referee) arrived(o *order) string {
	f, live := r.feed, r.live[o.uid]
	r.live[o.uid] = o
	o.doubtful = !r.thawed.IsZero() && o.received.Sub(r.thawed) < transit
	switch {
	case f == nil || !f.listed.Load() && (r.since.IsZero() || o.received.Sub(r.since) > transit):
		return fmt.Sprintf("I4: an order for %s was sent before the feed had listed", o.uid)
	case live != nil && !live.doubtful && live.answers == 0 && o.received.Before(live.deadline.Add(-transit)):
		return fmt.Sprintf("I5: an order for %s was sent again, %s before the deadline of its live delivery", o.uid, live.deadline.Sub(o.received))
	case r.gone[o.uid]:
		return fmt.Sprintf("I1: %s was sent again after its eviction was acknowledged", o.uid)
	}
	return ""
}

// answered notes what became of an answer.
func (r *referee) answered(o *order, accepted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[o.uid] == o {
		delete(r.live, o.uid)
	}
	switch {
	case accepted && o.answer == reprievev1.Outcome_OUTCOME_EVICTED:
		r.gone[o.uid] = true
	case !accepted && !o.doubtful && o.answers == 1 && time.Now().Before(o.deadline.Add(-transit)):
		r.violation("I1: the answer to %s was not taken although its delivery was live: the order left before it was on disk", o.uid)
	}
}

// evicted is how many evictions were acknowledged.
func (r *referee) evicted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.gone)
}

// evict takes a pod out of its world, just before its answer is sent, or fails. remove is called with the world's mu held.
func (r *referee) evict(o *order, faulty bool, rng *rand.Rand, remove func(uid string)) reprievev1.Outcome {
	if faulty && o.attempt < 3 && rng.IntN(6) == 0 {
		return reprievev1.Outcome_OUTCOME_FAILED
	}
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	remove(o.uid)
	return reprievev1.Outcome_OUTCOME_EVICTED
}
