//go:build crash

package crash

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// transit is how long a message may be under way on a busy machine, between what was acknowledged on one stream and
	// what is received on another.
	transit = 2 * time.Second
	// skew is what two readings of one machine's clock may differ by, and what a rounded instant may lose.
	skew = 5 * time.Millisecond
	// burst is how far apart orders are received that may have left in any order: permits are given by due instant, and
	// what has one leaves as soon as its delivery is on disk, on this machine as busy as it is. The engine's own tests
	// check the order exactly, on a virtual clock.
	burst = time.Second
)

// judge sees what the service does and says what it must not have done.
type judge struct {
	t *testing.T
	w *world

	mu         sync.Mutex // guards what follows
	feed       *feeder
	paused     time.Time // a pause was acknowledged then; zero while none stands
	dues       map[string]map[string]time.Time
	live       map[string]*order    // by uid
	gone       map[string]bool      // uids whose eviction was acknowledged
	left       []leaving            // overdue ones of this life, in the order in which they came
	early      map[string]time.Time // by uid, the due instant of what was overdue and fresh before this life's feed
	violations []string
	counts     figures
	// since is when this feed took over from an earlier one of the same life; zero for the first.
	since time.Time
	// thawed is when the service last went on after it stood still.
	thawed time.Time
	// ahead is how far engine time is ahead of this machine's; lag is the most that it was ever behind.
	ahead, lag time.Duration
}

// leaving is when an order came, and when it had fallen due.
type leaving struct{ received, due time.Time }

// figures are what a run did.
type figures struct {
	orders, evicted, open, dues, recovered, audits int
}

func newJudge(t *testing.T, w *world) *judge {
	return &judge{t: t, w: w, dues: map[string]map[string]time.Time{}, live: map[string]*order{}, gone: map[string]bool{}}
}

func (j *judge) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.violations = append(j.violations, text)
}

// found returns the violations so far.
func (j *judge) found() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.violations
}

// forget says that the executor has lost its orders: they may be sent again.
func (j *judge) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live = map[string]*order{}
}

// begin begins a life whose feed is f; nil while it has none yet.
func (j *judge) begin(f *feeder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.feed, j.left, j.since = f, nil, time.Time{}
}

// relist says that another feed takes over in the same life.
func (j *judge) relist(f *feeder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.feed != nil {
		j.since = time.Now()
	}
	j.feed = f
}

// thaw says that the service goes on after it stood still: what it had on its way out was given its time before.
func (j *judge) thaw() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.thawed = time.Now()
}

// offset says how far engine time is ahead of this machine's. It is behind after a start with a wall clock that went
// back: it goes on from the last instant on disk.
func (j *judge) offset(ahead time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ahead, j.lag = ahead, max(j.lag, -ahead)
}

// adopted says that the service takes the cluster for new: every wait is whole again.
func (j *judge) adopted() {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	for n := range j.w.nodes {
		j.w.nodes[n].settled = time.Time{}
	}
	for _, p := range j.w.pods {
		p.settled = time.Time{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dues = map[string]map[string]time.Time{}
}

// left reports whether a pod's eviction was acknowledged.
func (j *judge) hasLeft(uid string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.gone[uid]
}

// ordered judges an order as it arrives.
func (j *judge) ordered(o *order, m *reprievev1.Order) {
	j.w.mu.Lock()
	v := j.w.of(o.uid)
	j.w.mu.Unlock()
	due := m.GetEvictPod().GetDueTime().AsTime()
	j.mu.Lock()
	ahead := j.ahead
	f, paused, live, gone := j.feed, j.paused, j.live[o.uid], j.gone[o.uid]
	since := j.since
	o.doubtful = !j.thawed.IsZero() && o.received.Sub(j.thawed) < transit
	j.live[o.uid] = o
	j.counts.orders++
	fresh := m.GetAttempt() == 1 && j.early[o.uid].Equal(due)
	var last time.Time
	if fresh {
		for _, l := range j.left {
			if l.due.After(last) && o.received.Sub(l.received) > burst {
				last = l.due
			}
		}
		j.left = append(j.left, leaving{o.received, due})
	}
	j.mu.Unlock()
	switch {
	case o.received.Before(due.Add(-ahead - skew)):
		j.violation("I3: %s was sent %s before its due instant", o.uid, due.Add(-ahead).Sub(o.received))
	case f == nil || !f.listed.Load() && (since.IsZero() || o.received.Sub(since) > transit):
		j.violation("I4: %s was sent before the feed had listed", o.uid)
	case live != nil && !live.doubtful && live.answers == 0 && o.received.Before(live.deadline.Add(-transit)):
		j.violation("I5: %s was sent again, %s before the deadline of its live delivery", o.uid, live.deadline.Sub(o.received))
	case gone:
		j.violation("I1: %s was sent again after its eviction was acknowledged", o.uid)
	case !paused.IsZero() && o.received.Sub(paused) > transit:
		j.violation("I7: %s was sent %s after a pause was acknowledged", o.uid, o.received.Sub(paused))
	case v.known && !v.leaves && !v.settled.IsZero() && o.received.Sub(v.settled) > transit:
		j.violation("I7: %s was sent %s after its cancellation was acknowledged", o.uid, o.received.Sub(v.settled))
	case fresh && due.Before(last):
		j.violation("I8: %s was sent more than %s after one that fell due %s later", o.uid, burst, last.Sub(due))
	}
	if v.known && v.leaves && !v.settled.IsZero() && o.received.Sub(v.settled) > transit {
		j.due(o.uid, v, due)
	}
}

// due compares a due instant with what it was, or may be.
func (j *judge) due(uid string, v verdict, due time.Time) {
	j.mu.Lock()
	was, seen := j.dues[uid][v.version]
	if !seen {
		if j.dues[uid] == nil {
			j.dues[uid] = map[string]time.Time{}
		}
		j.dues[uid][v.version] = due
	}
	j.counts.dues++
	// A wait that began on a clock that was behind keeps its start.
	told, lag := due.Add(-j.ahead), j.lag
	j.mu.Unlock()
	switch {
	case seen && !was.Equal(due):
		j.violation("the due instant of %s moved by %s", uid, due.Sub(was))
	case told.Before(v.added.Add(v.wait - skew - lag)):
		j.violation("I3: %s is due %s before its wait of %s is over", uid, v.added.Add(v.wait).Sub(told), v.wait)
	case told.After(v.settled.Add(v.wait + skew + lag)):
		j.violation("%s is due %s later than its wait of %s, counted from when the service knew", uid, told.Sub(v.settled.Add(v.wait)), v.wait)
	}
}

// evicting takes a pod out of the world, just before its answer is sent.
func (j *judge) evicting(o *order) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	j.w.remove(o.uid, false)
}

// answered notes what became of an answer.
func (j *judge) answered(o *order, accepted bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.live[o.uid] == o {
		delete(j.live, o.uid)
	}
	switch {
	case accepted && o.answer == reprievev1.Outcome_OUTCOME_EVICTED:
		j.gone[o.uid] = true
		j.counts.evicted++
	case !accepted && !o.doubtful && o.answers == 1 && time.Now().Before(o.deadline.Add(-transit)):
		j.violations = append(j.violations, fmt.Sprintf("I1: the answer to %s was not taken although its delivery was live: the order left before it was on disk", o.uid))
	}
}

// recovered judges what a service says after a start, before anyone has fed it.
func (j *judge) recovered(ctx context.Context, l *life) {
	j.begin(nil)
	open, ok := j.list(ctx, l)
	if !ok {
		return
	}
	now := time.Now()
	early := map[string]time.Time{}
	j.w.mu.Lock()
	for uid := range j.w.pods {
		v := j.w.of(uid)
		e := open[uid]
		switch {
		case v.settled.IsZero():
		case v.leaves && e == nil:
			j.violation("I2: the wait of %s (%+v, settled %s ago) is not there after a restart; closed are %v", uid, j.w.pods[uid], now.Sub(v.settled), j.closed(ctx, l, uid))
		case v.leaves && e.GetDelivery() == nil:
			if !awaitsList(e) {
				// One that was recalled in a gap waits for the list that tells its due instant anew.
				j.due(uid, v, e.GetDueTime().AsTime())
			}
			if e.GetAttempts() == 0 && e.GetLastOutcome() == 0 && e.GetBackOffUntil() == nil && e.GetDueTime().AsTime().Before(now) {
				early[uid] = e.GetDueTime().AsTime()
			}
		case !v.leaves && e != nil && e.GetDelivery() == nil && !awaitsList(e) && e.GetState() != reprievev1.EvictionState_EVICTION_STATE_CONFIRMING:
			j.violation("I2: an eviction of %s is open after a restart, which was cancelled before it: %v", uid, e)
		}
	}
	j.w.mu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.open += len(open)
	j.counts.recovered++
	j.early = early
	for uid, o := range j.live {
		if e := open[uid]; o.answers == 0 && (e == nil || e.GetId() != o.eviction || e.GetDelivery() == nil) && now.Before(o.deadline) {
			j.violations = append(j.violations, fmt.Sprintf("I1: the delivery of %s, which was received, is not on disk: %v", uid, e))
		}
	}
}

// awaitsList reports whether an eviction may be one whose order was called back and that ended in a gap, by its answer
// or by none: what wants the pod gone by now, the next list tells.
func awaitsList(e *reprievev1.Eviction) bool {
	return e.GetLastOutcome() == reprievev1.Outcome_OUTCOME_RECALLED || e.GetLastOutcome() == reprievev1.Outcome_OUTCOME_NO_ANSWER
}

// closed are a pod's closed evictions.
func (j *judge) closed(ctx context.Context, l *life, uid string) []*reprievev1.Eviction {
	r, err := reprievev1.NewQueryServiceClient(l.conn).ListEvictions(ctx, &reprievev1.ListEvictionsRequest{
		Cluster: clusterName, Uid: uid, States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED},
	})
	if err != nil {
		return nil
	}
	return r.GetEvictions()
}

// audit looks, while everything goes on, that what has to leave is open.
func (j *judge) audit(ctx context.Context, l *life) {
	began := time.Now()
	open, ok := j.list(ctx, l)
	if !ok {
		return
	}
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	for uid := range j.w.pods {
		// What is there after the list was taken had not been answered before.
		if v := j.w.of(uid); v.leaves && !v.settled.IsZero() && v.settled.Before(began) && open[uid] == nil {
			j.violation("I2: the wait of %s is lost", uid)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.audits++
}

// list asks for the open evictions, by pod UID; false if the service died.
func (j *judge) list(ctx context.Context, l *life) (map[string]*reprievev1.Eviction, bool) {
	open := map[string]*reprievev1.Eviction{}
	req := &reprievev1.ListEvictionsRequest{Cluster: clusterName, PageSize: 1000, States: []reprievev1.EvictionState{
		reprievev1.EvictionState_EVICTION_STATE_WAITING, reprievev1.EvictionState_EVICTION_STATE_DUE, reprievev1.EvictionState_EVICTION_STATE_DELIVERED,
		reprievev1.EvictionState_EVICTION_STATE_RECALLING, reprievev1.EvictionState_EVICTION_STATE_CONFIRMING,
	}}
	for {
		r, err := reprievev1.NewQueryServiceClient(l.conn).ListEvictions(ctx, req)
		if status.Code(err) == codes.NotFound {
			return open, true
		}
		if err != nil {
			return nil, false
		}
		for _, e := range r.GetEvictions() {
			if open[e.GetUid()] != nil {
				j.violation("I5: %s has two open evictions", e.GetUid())
			}
			open[e.GetUid()] = e
		}
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" {
			return open, true
		}
	}
}
