//go:build crash

package crash

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// judge sees what the service does and says what it must not have done.
type judge struct {
	referee
	w *world

	// Guarded by the referee's mu.
	paused  time.Time // a pause was acknowledged then; zero while none stands
	fence   uint64    // of that acknowledgement
	dues    map[string]map[string]time.Time
	early   map[string]leaving // by uid, what was overdue and fresh before this life's feed, and has yet to leave
	last    leaving            // the last of those that left
	streams int                // executor streams of this life
	spans   []*span            // when the service was synced, one for each feed
	counts  figures
	// ahead is how far engine time is ahead of this machine's; lag is the most that it was ever behind.
	ahead, lag time.Duration
}

// leaving is an overdue eviction: its place among the others, and the version of its pod.
type leaving struct {
	due     time.Time
	seq     uint64
	version string
}

// before reports whether l leaves first (I8).
func (l *leaving) before(o *leaving) bool {
	if !l.due.Equal(o.due) {
		return l.due.Before(o.due)
	}
	return l.seq < o.seq
}

// sequence is the number in an eviction's id.
func sequence(id string) uint64 {
	n, _ := strconv.ParseUint(id[strings.LastIndexByte(id, '/')+1:], 10, 64)
	return n
}

// figures are what a run did.
type figures struct {
	orders, open, dues, ordered, recovered, audits int
}

func newJudge(w *world) *judge {
	return &judge{referee: newReferee(&w.ledger), w: w, dues: map[string]map[string]time.Time{}}
}

// figures returns what was counted so far.
func (j *judge) figures() figures {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counts
}

// begin begins a life, which has no feed yet.
func (j *judge) begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.start()
	j.early, j.last, j.streams = nil, leaving{}, 0
}

// unordered says that something holds evictions back one by one from here on, so that no order is due any more to what
// was overdue at this life's start.
func (j *judge) unordered() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.early = nil
}

// connected says that the executor has another stream: an order that was refused by the one before comes late.
func (j *judge) connected() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.streams++; j.streams > 1 {
		j.early = nil
	}
}

// relist says that a feed begins, or takes over from another in the same life.
func (j *judge) relist(f *feeder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.takeOver(f) {
		j.early = nil
	}
	j.spans = append(j.spans, &f.span)
}

// thaw says that the service goes on after it stood still: what it had on its way out was given its time before.
func (j *judge) thaw() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.thawed, j.early = time.Now(), nil
}

// offset says how far engine time is ahead of this machine's. It is behind after a start with a wall clock that went
// back: it goes on from the last instant on disk.
func (j *judge) offset(ahead time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ahead, j.lag = ahead, max(j.lag, -ahead)
}

// adopted says that the service, whose time is more than a day later than when it stopped, takes the cluster for new:
// every wait is whole again, and what was out has had its time.
func (j *judge) adopted() {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	for n := range j.w.nodes {
		j.w.nodes[n].settled, j.w.nodes[n].fence = time.Time{}, 0
	}
	for _, p := range j.w.pods {
		p.settled, p.fence = time.Time{}, 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dues = map[string]map[string]time.Time{}
	for _, o := range j.live {
		o.deadline = time.Now()
	}
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
	var earliest time.Time
	leaves := true
	if p := j.w.pods[o.uid]; p != nil {
		earliest, leaves = j.w.earliest(p, o.passed)
	}
	j.w.mu.Unlock()
	due := m.GetEvictPod().GetDueTime().AsTime()
	j.mu.Lock()
	ahead, lag := j.ahead, j.lag
	wrong := j.arrived(o)
	paused := !j.paused.IsZero() && j.fence <= o.passed
	j.counts.orders++
	place := leaving{due: due, seq: sequence(o.eviction), version: v.version}
	fresh, last := m.GetAttempt() == 1 && j.early[o.uid] == place, j.last
	delete(j.early, o.uid)
	if fresh {
		j.last = place
		j.counts.ordered++
	}
	j.mu.Unlock()
	if wrong != "" {
		j.violation("%s", wrong)
	}
	switch {
	case o.received.Before(due.Add(-ahead - skew)):
		j.violation("I3: %s was sent %s before its due instant", o.uid, due.Add(-ahead).Sub(o.received))
	case paused:
		j.violation("I7: %s was sent after a pause was acknowledged", o.uid)
	case !leaves:
		j.violation("I7: %s was sent after its cancellation was acknowledged, %s ago", o.uid, o.received.Sub(v.settled))
	case due.Add(-ahead).Before(earliest.Add(-skew - lag)):
		j.violation("I3: %s is due %s earlier than anything of it allows", o.uid, earliest.Sub(due.Add(-ahead)))
	case fresh && place.before(&last):
		j.violation("I8: %s, sequence %d, was sent after one, sequence %d, that fell due %s later", o.uid, place.seq, last.seq, last.due.Sub(due))
	}
	if v.known && v.leaves && v.fence != 0 && v.fence <= o.passed {
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

// carryOut takes a pod out of the world, just before its answer is sent, or fails.
func (j *judge) carryOut(o *order, faulty bool, rng *rand.Rand) reprievev1.Outcome {
	return j.evict(o, faulty, rng, func(uid string) { j.w.remove(uid, false) })
}

// recovered judges what a service says after a start, before anyone has fed it.
func (j *judge) recovered(ctx context.Context, l *life) {
	j.begin()
	open, ok := j.list(ctx, l)
	if !ok {
		return
	}
	now := time.Now()
	j.mu.Lock()
	// What is overdue is so on engine time: what falls due later leaves by the timers of its shard.
	overdue := now.Add(j.ahead - skew)
	j.mu.Unlock()
	early := map[string]leaving{}
	j.w.mu.Lock()
	for uid := range j.w.pods {
		v := j.w.of(uid)
		e := open[uid]
		switch {
		case v.settled.IsZero():
		case v.leaves && e == nil:
			j.violation("I2: the wait of %s (%+v, settled %s ago) is not there after a restart; closed are %v", uid, j.w.pods[uid], now.Sub(v.settled), j.closed(ctx, l, uid))
		case v.leaves && e.GetDelivery() == nil:
			if !j.awaitsList(e) {
				// One that was recalled in a gap waits for the list that tells its due instant anew.
				j.due(uid, v, e.GetDueTime().AsTime())
			}
			if e.GetAttempts() == 0 && e.GetLastOutcome() == 0 && e.GetBackOffUntil() == nil && e.GetDueTime().AsTime().Before(overdue) {
				early[uid] = leaving{due: e.GetDueTime().AsTime(), seq: sequence(e.GetId()), version: v.version}
			}
		case !v.leaves && e != nil && e.GetDelivery() == nil && !j.awaitsList(e) && e.GetState() != reprievev1.EvictionState_EVICTION_STATE_CONFIRMING:
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
			j.violation("I1: the delivery of %s, which was received, is not on disk: %v", uid, e)
		}
	}
}

// awaitsList reports whether an eviction may be one whose order was called back and that ended in a gap, by its answer
// or by none: what wants the pod gone by now, the next list tells. While the service was synced it was decided at once.
func (j *judge) awaitsList(e *reprievev1.Eviction) bool {
	if o := e.GetLastOutcome(); o != reprievev1.Outcome_OUTCOME_RECALLED && o != reprievev1.Outcome_OUTCOME_NO_ANSWER {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	at := e.GetResultTime().AsTime().Add(-j.ahead)
	return !slices.ContainsFunc(j.spans, func(s *span) bool { return s.has(at) })
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

// isOpen reports whether an eviction that was in a list still is open: between two pages one may close and another open,
// or one become due later and be on both.
func (j *judge) isOpen(ctx context.Context, l *life, e *reprievev1.Eviction) bool {
	r, err := reprievev1.NewQueryServiceClient(l.conn).GetEviction(ctx, &reprievev1.GetEvictionRequest{Id: e.GetId()})
	return err == nil && r.GetEviction().GetState() != reprievev1.EvictionState_EVICTION_STATE_CLOSED
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
			if first := open[e.GetUid()]; first != nil && first.GetId() != e.GetId() && j.isOpen(ctx, l, first) && j.isOpen(ctx, l, e) {
				j.violation("I5: %s has two open evictions: %v and %v", e.GetUid(), first, e)
			}
			open[e.GetUid()] = e
		}
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" {
			return open, true
		}
	}
}
