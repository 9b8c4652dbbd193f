package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// maxShadowRecords bounds what one report keeps in memory.
	maxShadowRecords = 100_000
	// shadowPage is how many records are read at a time.
	shadowPage = 1000
	// defaultShadowSpan is the time compared if the query names no begin.
	defaultShadowSpan = 24 * time.Hour
)

// ShadowQuery says what a shadow report compares.
type ShadowQuery struct {
	Cluster string
	// Since and Until bound when records were closed: Since <= t < Until. Zero
	// Until means now, zero Since 24 h before Until.
	Since, Until time.Time
	// Tolerance is how far apart two instants that agree may be.
	Tolerance time.Duration
	// MaxDifferences bounds ShadowReport.Differences; it must be positive.
	MaxDifferences int
}

// DifferenceKind says how shadow mode and another controller differ on a pod.
type DifferenceKind uint8

// The kinds of difference.
const (
	DifferenceNone DifferenceKind = iota
	// DifferenceEarlier: the other controller was earlier, DifferenceLater: later.
	DifferenceEarlier
	DifferenceLater
	// DifferenceOnlyHere: only shadow mode would have evicted the pod.
	DifferenceOnlyHere
	// DifferenceOnlyElsewhere: only the other controller deleted it.
	DifferenceOnlyElsewhere
)

// DifferenceReason is what the records prove about a difference.
type DifferenceReason uint8

// The reasons of a difference.
const (
	ReasonUnspecified DifferenceReason = iota
	// ReasonWaitRestarted: the other controller counted from a later instant, as pods with other starts confirm (D8, D9).
	ReasonWaitRestarted
	// ReasonTolerationChanged: the wait changed and the other kept its first due instant (D13).
	ReasonTolerationChanged
	// ReasonDefaultToleration: the wait is the policy's default (D12).
	ReasonDefaultToleration
	// ReasonNotASubject: finished, terminating or a mirror pod (D2).
	ReasonNotASubject
	// ReasonTaintSwap: not-ready and unreachable changed places (D11).
	ReasonTaintSwap
	// ReasonNodeGone: the node object was gone (D15).
	ReasonNodeGone
	// ReasonAdoption: the wait began at the cluster's adoption (D10).
	ReasonAdoption
	// ReasonTolerationOverflow: tolerationSeconds is for ever here and overflows there (D5).
	ReasonTolerationOverflow
	// ReasonPolicy: the policy leaves the pod alone.
	ReasonPolicy
	// ReasonNotDeletedYet: due no longer ago than the tolerance.
	ReasonNotDeletedYet
	// ReasonUnexplained: the records prove none of these.
	ReasonUnexplained
)

// ShadowTotals counts pods, by UID.
type ShadowTotals struct {
	WouldEvict, EvictedElsewhere                    int
	Agreed, Earlier, Later, OnlyHere, OnlyElsewhere int
}

// ShadowDifference is one pod on which the two do not agree.
type ShadowDifference struct {
	Namespace, Pod, UID, Node string
	// Due is when shadow mode would have evicted the pod, DeletedAt when the other
	// controller's deletion was first seen; zero for the side that has none.
	Due, DeletedAt time.Time
	Kind           DifferenceKind
	Reason         DifferenceReason
	// Explanation is the reason in words, with its facts.
	Explanation string
}

// Apart is DeletedAt minus Due, and whether both are there.
func (d *ShadowDifference) Apart() (time.Duration, bool) {
	if d.Due.IsZero() || d.DeletedAt.IsZero() {
		return 0, false
	}
	return d.DeletedAt.Sub(d.Due), true
}

// ShadowReport compares shadow mode with another controller.
type ShadowReport struct {
	Cluster      string
	Since, Until time.Time
	Tolerance    time.Duration
	Totals       ShadowTotals
	// P50, P99 and Max are of the distance between the two instants, over pods that have both.
	P50, P99, Max time.Duration
	// Reasons counts all differences.
	Reasons map[DifferenceReason]int
	// Differences are the greatest first, then those that only one side has.
	Differences          []ShadowDifference
	DifferencesTruncated bool
	// RecordsTruncated: the oldest records are left out; Since says from where.
	RecordsTruncated bool
}

// Agreement is the share of pods that agreed, of those that count: a pod that
// fell due just now may yet be deleted. ok is false if none counts.
func (r *ShadowReport) Agreement() (share float64, ok bool) {
	t := &r.Totals
	n := t.Agreed + t.Earlier + t.Later + t.OnlyHere + t.OnlyElsewhere - r.Reasons[ReasonNotDeletedYet]
	if n == 0 {
		return 0, false
	}
	return float64(t.Agreed) / float64(n), true
}

// ShadowReport compares what shadow mode would have evicted for taints with what
// another controller deleted, by the records of history. Pods that were due by
// somebody's request when they were deleted are left out, and those that this
// service evicted itself. Errors: ErrClusterUnknown, ErrInvalid,
// ErrUnavailable.
func (g *Engine) ShadowReport(ctx context.Context, q ShadowQuery) (*ShadowReport, error) {
	c, cl, err := g.find(q.Cluster)
	if err != nil {
		return nil, err
	}
	j := newShadowJoin(q, c.clock.Now())
	if !j.report.Since.Before(j.report.Until) {
		return nil, fmt.Errorf("%w: since %s is not before until %s", ErrInvalid, j.report.Since.Format(time.RFC3339), j.report.Until.Format(time.RFC3339))
	}
	if err := j.read(ctx, c.store); err != nil {
		return nil, err
	}
	cl.mu.Lock()
	j.adoptedAt = cl.rec.AdoptedAt
	for uid, p := range j.pods {
		p.known = cl.pods.byUID(uid) != nil
	}
	cl.mu.Unlock()
	return j.finish(q.MaxDifferences), nil
}

// shadowPod is what history has of one pod.
type shadowPod struct {
	// would is what shadow mode said; of several the one that was due first.
	would *EvictionRecord
	// seen is the other controller's deletion; of several records the one that
	// says that the pod leaves, see observeLate.
	seen *EvictionRecord
	// leftOut: a request made it due when it was deleted, of which no other
	// controller knows; or this service evicted it, after the mode was changed.
	leftOut, known bool
}

// shadowJoin joins the records of a time by the pods' UIDs.
type shadowJoin struct {
	query     ShadowQuery
	now       time.Time
	adoptedAt time.Time
	pods      map[string]*shadowPod
	restarts  map[int64]*restartCell
	report    *ShadowReport
}

func newShadowJoin(q ShadowQuery, now time.Time) *shadowJoin {
	r := &ShadowReport{Cluster: q.Cluster, Since: q.Since, Until: q.Until, Tolerance: q.Tolerance, Reasons: map[DifferenceReason]int{}}
	if r.Until.IsZero() {
		r.Until = now
	}
	if r.Since.IsZero() {
		r.Since = r.Until.Add(-defaultShadowSpan)
	}
	return &shadowJoin{query: q, now: now, pods: map[string]*shadowPod{}, restarts: map[int64]*restartCell{}, report: r}
}

// read collects the records, newest first, a page at a time.
func (j *shadowJoin) read(ctx context.Context, store Store) error {
	q := HistoryQuery{
		Cluster: j.query.Cluster, Reasons: []CloseReason{CloseWouldEvict, ClosePodDeleted, CloseEvicted},
		After: j.report.Since, Before: j.query.Until, Limit: shadowPage,
	}
	for n := 0; ; {
		page, err := store.History(ctx, q)
		if err != nil {
			return err
		}
		for _, r := range page.Evictions {
			if j.add(r) {
				n++
			}
			if n == maxShadowRecords {
				j.report.RecordsTruncated, j.report.Since = true, r.ClosedAt
				return nil
			}
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return nil
		}
	}
}

// add takes a record and reports whether it is of use: what was due by a request
// alone says nothing of taints.
func (j *shadowJoin) add(r *EvictionRecord) bool {
	requested, evicted := r.Cause.Kind == CauseRequest, r.CloseReason == CloseEvicted
	if r.Observed == nil && !evicted && (r.CloseReason != CloseWouldEvict || requested) {
		return false
	}
	p := j.pods[r.UID]
	if p == nil {
		p = &shadowPod{}
		j.pods[r.UID] = p
	}
	p.leftOut = p.leftOut || requested || evicted
	switch {
	case evicted:
	case r.Observed == nil:
		if p.would == nil || r.Due.Before(p.would.Due) {
			p.would = r
		}
	case p.seen == nil || leaves(r) && (!leaves(p.seen) || r.Due.Before(p.seen.Due)):
		p.seen = r
	}
	return true
}

func leaves(r *EvictionRecord) bool { return r != nil && r.Observed.Standing == StandingLeaves }

// decides is the record whose due instant is shadow mode's: nil if it would not
// have evicted the pod.
func (p *shadowPod) decides() *EvictionRecord {
	if leaves(p.seen) && (p.would == nil || !p.would.Due.Before(p.seen.Due)) {
		return p.seen
	}
	return p.would
}

func (j *shadowJoin) finish(limit int) *ShadowReport {
	r := j.report
	var apart []time.Duration
	for uid, p := range j.pods {
		if p.leftOut {
			delete(j.pods, uid)
			continue
		}
		if d, late := j.lateBy(p); late {
			j.confirm(p, d)
		}
	}
	for uid, p := range j.pods {
		d := j.difference(uid, p)
		if between, both := d.Apart(); both {
			apart = append(apart, between.Abs())
		}
		if r.count(&d); d.Kind != DifferenceNone {
			d.Reason, d.Explanation = j.explain(p, &d)
			r.Reasons[d.Reason]++
			r.Differences = append(r.Differences, d)
		}
	}
	slices.Sort(apart)
	r.P50, r.P99, r.Max = quantile(apart, 50), quantile(apart, 99), quantile(apart, 100)
	slices.SortFunc(r.Differences, compareDifferences)
	if len(r.Differences) > limit {
		r.Differences, r.DifferencesTruncated = r.Differences[:limit], true
	}
	return r
}

// quantile is the nearest rank of a sorted list, 0 for an empty one.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

func compareDifferences(a, b ShadowDifference) int {
	x, bothA := a.Apart()
	y, bothB := b.Apart()
	switch {
	case bothA != bothB && bothA:
		return -1
	case bothA != bothB:
		return 1
	}
	return cmp.Or(cmp.Compare(y.Abs(), x.Abs()), cmp.Compare(a.Kind, b.Kind), a.Due.Compare(b.Due), a.DeletedAt.Compare(b.DeletedAt),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
}

// difference says where a pod's two instants are.
func (j *shadowJoin) difference(uid string, p *shadowPod) ShadowDifference {
	ours := p.decides()
	r := cmp.Or(p.seen, ours)
	d := ShadowDifference{Namespace: r.Namespace, Pod: r.Pod, UID: uid, Node: r.Node}
	if ours != nil {
		d.Due = ours.Due
	}
	if p.seen != nil {
		d.DeletedAt = p.seen.Observed.DeletedAt
	}
	between, both := d.Apart()
	switch {
	case both && between < -j.query.Tolerance:
		d.Kind = DifferenceEarlier
	case both && between > j.query.Tolerance:
		d.Kind = DifferenceLater
	case both:
	case ours != nil:
		d.Kind = DifferenceOnlyHere
	default:
		d.Kind = DifferenceOnlyElsewhere
	}
	return d
}

func (r *ShadowReport) count(d *ShadowDifference) {
	t := &r.Totals
	if !d.Due.IsZero() {
		t.WouldEvict++
	}
	if !d.DeletedAt.IsZero() {
		t.EvictedElsewhere++
	}
	switch d.Kind {
	case DifferenceNone:
		t.Agreed++
	case DifferenceEarlier:
		t.Earlier++
	case DifferenceLater:
		t.Later++
	case DifferenceOnlyHere:
		t.OnlyHere++
	case DifferenceOnlyElsewhere:
		t.OnlyElsewhere++
	}
}
