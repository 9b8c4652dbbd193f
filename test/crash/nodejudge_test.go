//go:build crash

package crash

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// grace is the policy's grace period.
const grace = 5 * time.Second

// nodeJudge sees what the service orders for nodes and their pods, carries it out in their world, and says what the
// rules of node health forbid.
type nodeJudge struct {
	referee
	w *nodeWorld

	// Guarded by the referee's mu.
	unknown int // orders of this life that make a node Unknown
	counts  nodeFigures
}

// nodeFigures are what a run did.
type nodeFigures struct {
	updates, unknown, taints, swaps, removals, marks, halves, conflicts, settled int
}

func newNodeJudge(w *nodeWorld) *nodeJudge {
	return &nodeJudge{referee: newReferee(&w.ledger), w: w}
}

// recovered begins a life, which has no feed yet.
func (j *nodeJudge) recovered(context.Context, *life) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.start()
	j.unknown = 0
}

// relist says that a feed begins, or takes over from another in the same life.
func (j *nodeJudge) relist(f *feeder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.takeOver(f)
}

// silences is how many nodes this life has ordered to be Unknown.
func (j *nodeJudge) silences() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unknown
}

// ended notes, once a life and its streams are over, which nodes it may have found silent.
func (j *nodeJudge) ended(at time.Time) {
	j.mu.Lock()
	f := j.feed
	j.mu.Unlock()
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	for _, n := range j.w.nodes {
		since, listed := graceSince(f, n, math.MaxUint64)
		n.silent = n.silent && n.clear == 0 || listed && at.Sub(since) >= grace
		n.clear = 0
	}
}

// graceSince is what a node's grace counts from at the earliest, by what the service knew that sends what arrives
// after the fence: its last heartbeat, or the list, before which none could be seen (N8). False before the list.
func graceSince(f *feeder, n *kubeNode, passed uint64) (time.Time, bool) {
	if f == nil || !f.listed.Load() {
		return time.Time{}, false
	}
	since := f.listedAt
	if last, ok := n.heard(passed); ok && last.was.After(since) {
		since = last.was
	}
	return since, true
}

// ordered judges an order as it arrives.
func (j *nodeJudge) ordered(o *order, m *reprievev1.Order) {
	j.mu.Lock()
	f, broken := j.feed, j.arrived(o)
	if o.update != nil {
		j.count(o.update)
	}
	j.mu.Unlock()
	j.w.mu.Lock()
	var wrong string
	if o.update != nil {
		wrong = j.node(o, f)
	} else {
		wrong = j.pod(o, m.GetEvictPod())
	}
	j.w.mu.Unlock()
	if why := cmp.Or(broken, wrong); why != "" {
		j.violation("%s", why)
	}
}

// count counts an order for a node. mu is held.
func (j *nodeJudge) count(u *reprievev1.UpdateNode) {
	c := &j.counts
	add := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	c.updates++
	add(&c.unknown, len(u.GetUnknownConditions()) > 0)
	add(&j.unknown, len(u.GetUnknownConditions()) > 0)
	add(&c.taints, len(u.GetAddTaints()) > 0)
	add(&c.swaps, len(u.GetAddTaints()) > 0 && len(u.GetRemoveTaints()) > 0)
	add(&c.removals, len(u.GetRemoveTaints()) > 0)
	add(&c.marks, u.GetMarkPodsNotReady())
}

// among reports whether one of the taints has the key and effect; an empty effect is any.
func among(taints []*reprievev1.Taint, key, effect string) bool {
	return slices.ContainsFunc(taints, func(t *reprievev1.Taint) bool {
		return t.GetKey() == key && (effect == "" || t.GetEffect() == effect)
	})
}

// node says what is wrong with an order for a node. The world's mu is held.
func (j *nodeJudge) node(o *order, f *feeder) string {
	u := o.update
	n := j.named(u.GetName())
	if n == nil || o.uid != "uid-"+n.name {
		return fmt.Sprintf("D14: an order for node %s, UID %s, which there is not", u.GetName(), o.uid)
	}
	n.readies = drop(n.readies, o.passed)
	may := func(status string) bool {
		return n.ready == status || slices.ContainsFunc(n.readies, func(p past[string]) bool { return p.was == status })
	}
	since, listed := graceSince(f, n, o.passed)
	silent := n.silent && (n.clear == 0 || n.clear > o.passed) || listed && o.received.Sub(since) >= grace-skew
	bad := may(statusFalse) || may(statusUnknown) || silent
	switch {
	case len(u.GetUnknownConditions()) > 0 && !silent:
		return fmt.Sprintf("N2, N8: node %s is to be Unknown %s after its last heartbeat, or the list after a start", n.name, o.received.Sub(since))
	case foreign(u):
		return fmt.Sprintf("N9: an order for node %s concerns taints of others: %v", n.name, u)
	case among(u.GetAddTaints(), notReadyKey, "") && !may(statusFalse):
		return fmt.Sprintf("N3: node %s is to be tainted not-ready and is %s", n.name, n.ready)
	case among(u.GetAddTaints(), unreachableKey, "") && !may(statusUnknown) && !silent:
		return fmt.Sprintf("N3: node %s is to be tainted unreachable and is %s", n.name, n.ready)
	case u.GetMarkPodsNotReady() && !bad:
		return fmt.Sprintf("N6: the pods of node %s are to be not ready and it is %s", n.name, n.ready)
	}
	for _, effect := range []string{noSchedule, noExecute} {
		if strips(n, u, effect) && !may(statusTrue) {
			return fmt.Sprintf("N7: node %s, which is %s, is to lose its taint of effect %s: %v", n.name, n.ready, effect, u)
		}
	}
	return ""
}

func (j *nodeJudge) named(name string) *kubeNode {
	for _, n := range j.w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// foreign reports whether an order concerns taints that do not follow from a node's health.
func foreign(u *reprievev1.UpdateNode) bool {
	return slices.ContainsFunc(slices.Concat(u.GetAddTaints(), u.GetRemoveTaints()), func(t *reprievev1.Taint) bool {
		return t.GetKey() != notReadyKey && t.GetKey() != unreachableKey
	})
}

// strips reports whether an order leaves a node without the taint of that effect that it has for its health.
func strips(n *kubeNode, u *reprievev1.UpdateNode, effect string) bool {
	removes := false
	for _, key := range []string{notReadyKey, unreachableKey} {
		removed := among(u.GetRemoveTaints(), key, effect)
		if among(u.GetAddTaints(), key, effect) || n.has(key, effect) && !removed {
			return false
		}
		removes = removes || removed
	}
	return removes
}

// pod says what is wrong with an order for a pod. The world's mu is held.
func (j *nodeJudge) pod(o *order, m *reprievev1.EvictPod) string {
	p := j.w.pods[o.uid]
	if p == nil {
		return ""
	}
	n := j.w.nodes[p.node]
	n.starts = drop(n.starts, o.passed)
	var start time.Time
	for _, s := range append([]past[time.Time]{{was: n.start}}, n.starts...) {
		if !s.was.IsZero() && (start.IsZero() || s.was.Before(start)) {
			start = s.was
		}
	}
	due, wait := m.GetDueTime().AsTime(), time.Duration(p.wait)*time.Second
	switch {
	case start.IsZero() || p.wait == never:
		return fmt.Sprintf("D6: %s was sent though no taint of node %s makes it leave", o.uid, n.name)
	case due.Before(start.Add(wait - skew)):
		return fmt.Sprintf("I3: %s is due %s before its wait of %s is over", o.uid, start.Add(wait).Sub(due), wait)
	case o.received.Before(due.Add(-skew)):
		return fmt.Sprintf("I3: %s was sent %s before its due instant", o.uid, due.Sub(o.received))
	}
	return ""
}

// carryOut does what an order says, as far as chance lets it.
func (j *nodeJudge) carryOut(o *order, faulty bool, rng *rand.Rand) reprievev1.Outcome {
	if o.update == nil {
		return j.evict(o, faulty, rng, j.w.evict)
	}
	faulty = faulty && o.attempt < 3
	parts := []func(int, *reprievev1.UpdateNode, *rand.Rand) bool{j.conditions, j.taints, j.pods}
	last := len(parts)
	if faulty && rng.IntN(3) == 0 {
		last = rng.IntN(len(parts))
	}
	i := slices.Index(j.w.nodes[:], j.named(o.update.GetName()))
	for at, part := range parts {
		switch {
		case at == last:
			j.half()
			return reprievev1.Outcome_OUTCOME_FAILED
		case part(i, o.update, rng):
		case at == 0:
			return reprievev1.Outcome_OUTCOME_STALE
		default:
			return reprievev1.Outcome_OUTCOME_FAILED
		}
	}
	if faulty && rng.IntN(8) == 0 {
		return reprievev1.Outcome_OUTCOME_UNSPECIFIED
	}
	return reprievev1.Outcome_OUTCOME_APPLIED
}

func (j *nodeJudge) half() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.halves++
}

// stands reports whether a node is as the order's basis says.
func stands(n *kubeNode, u *reprievev1.UpdateNode) bool {
	silences, b := len(u.GetUnknownConditions()) > 0, u.GetBasis()
	switch {
	case silences && n.ready == statusUnknown:
		return true
	case n.ready != b.GetReadyStatus():
		return false
	case !silences:
		return true
	}
	return b.GetHeartbeatTime().AsTime().Equal(n.heartbeat) && (b.GetRenewTime() == nil || b.GetRenewTime().AsTime().Equal(n.renew))
}

// patch changes a node at the version that was read. Another hand may have been there first: then it is read again.
func (j *nodeJudge) patch(i int, u *reprievev1.UpdateNode, rng *rand.Rand, do func()) bool {
	n := j.w.nodes[i]
	for {
		j.w.mu.Lock()
		version, same := n.version, stands(n, u)
		if same && rng.IntN(6) == 0 {
			j.w.mark(i)
			j.mu.Lock()
			j.counts.conflicts++
			j.mu.Unlock()
		}
		same, done := stands(n, u), n.version == version
		if same && done {
			do()
		}
		j.w.mu.Unlock()
		if !same || done {
			return same
		}
	}
}

// conditions carries out the first part of an order.
func (j *nodeJudge) conditions(i int, u *reprievev1.UpdateNode, rng *rand.Rand) bool {
	if len(u.GetUnknownConditions()) == 0 {
		return j.patch(i, u, rng, func() {})
	}
	return j.patch(i, u, rng, func() { j.w.turn(i, statusUnknown) })
}

func (j *nodeJudge) taints(i int, u *reprievev1.UpdateNode, rng *rand.Rand) bool {
	if len(u.GetAddTaints())+len(u.GetRemoveTaints()) == 0 {
		return true
	}
	return j.patch(i, u, rng, func() { j.w.taint(i, u.GetAddTaints(), u.GetRemoveTaints()) })
}

func (j *nodeJudge) pods(i int, u *reprievev1.UpdateNode, rng *rand.Rand) bool {
	if !u.GetMarkPodsNotReady() {
		return true
	}
	return j.patch(i, u, rng, func() {
		j.w.setPods(i, false)
		j.w.nodes[i].owed = false
	})
}

// left is what is not as it should be in the end, on a cluster in which nothing changes any more.
func (j *nodeJudge) left() (list []string) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	for i, n := range j.w.nodes {
		want := n.ready
		if !n.alive {
			want = statusUnknown
		}
		for key, status := range map[string]string{notReadyKey: statusFalse, unreachableKey: statusUnknown} {
			for _, effect := range []string{noSchedule, noExecute} {
				if n.has(key, effect) != (want == status) {
					list = append(list, fmt.Sprintf("taint %s:%s of node %s, which is %s", key, effect, n.name, want))
				}
			}
		}
		if n.ready != want || n.alive && n.ready == statusUnknown {
			list = append(list, fmt.Sprintf("condition Ready of node %s: %s, alive is %t", n.name, n.ready, n.alive))
		}
		for _, p := range j.w.pods {
			switch {
			case p.node != i:
			case want != statusTrue && p.wait != never:
				list = append(list, fmt.Sprintf("pod %s on node %s, which is %s", p.uid, n.name, want))
			case p.ready && n.owed:
				list = append(list, fmt.Sprintf("pod %s on node %s is ready", p.uid, n.name))
			}
		}
	}
	return list
}

func (j *nodeJudge) report() string {
	c := &j.counts
	return strings.Join([]string{
		fmt.Sprintf("%d orders for nodes: %d silences, %d that taint, %d of them swaps, %d that take taints off, %d that mark pods", c.updates, c.unknown, c.taints, c.swaps, c.removals, c.marks),
		fmt.Sprintf("%d were left half done, %d met another hand's change; %d evictions acknowledged, the cluster was settled %d times, no violation", c.halves, c.conflicts, j.evicted(), c.settled),
	}, "\n")
}
