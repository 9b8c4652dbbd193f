package engine

import (
	"fmt"
	"time"
)

// The reasons of a shadow report are derived from records alone. A difference
// that they do not prove stays unexplained: the words then give the facts, and
// people judge.

// explain says why a pod's two sides differ, as far as the records prove it.
func (j *shadowJoin) explain(p *shadowPod, d *ShadowDifference) (DifferenceReason, string) {
	switch d.Kind {
	case DifferenceOnlyHere:
		return j.explainOnlyHere(p)
	case DifferenceOnlyElsewhere:
		return explainOnlyElsewhere(p.seen)
	}
	ours := p.decides()
	// What changed during the wait comes first: it moved the due instant that the rest is measured by.
	if reason, text := j.explainMoved(p, ours); reason != ReasonUnspecified {
		return reason, text
	}
	if d.Kind == DifferenceEarlier {
		return j.explainEarlier(ours)
	}
	return j.explainLater(p, ours)
}

func (j *shadowJoin) explainOnlyHere(p *shadowPod) (DifferenceReason, string) {
	ours := p.would
	over := j.report.Until.Sub(ours.Due)
	// Of a time that ended before now, the deletion may be the next record.
	if over <= j.query.Tolerance && (p.known || j.report.Until.Before(j.now)) {
		return ReasonNotDeletedYet, "it fell due within the tolerance of the report's end"
	}
	if !p.known {
		return ReasonUnexplained, "it is gone, and the other controller's mark was not seen on it while the feed was live"
	}
	if first := ours.FirstDue; first.After(ours.Due) && !first.Add(j.query.Tolerance).Before(j.now) {
		return ReasonTolerationChanged, fmt.Sprintf("its wait was shortened; the first due instant, %s, is yet to come", clockTime(first))
	}
	return ReasonUnexplained, fmt.Sprintf("it is still there, %s after its due instant", roundTime(j.now.Sub(ours.Due)))
}

func explainOnlyElsewhere(seen *EvictionRecord) (DifferenceReason, string) {
	standing := seen.Observed.Standing
	switch standing {
	case StandingFinished, StandingTerminating, StandingMirror:
		return ReasonNotASubject, standing.String()
	case StandingNodeUnknown:
		return ReasonNodeGone, standing.String()
	case StandingNamespace, StandingIgnored:
		return ReasonPolicy, standing.String()
	case StandingOverflow:
		return ReasonTolerationOverflow, standing.String()
	}
	return ReasonUnexplained, standing.String()
}

// explainMoved proves that the other controller kept a due instant that was moved here.
func (j *shadowJoin) explainMoved(p *shadowPod, ours *EvictionRecord) (DifferenceReason, string) {
	first := ours.FirstDue
	if p.would != nil && p.would.Due.Equal(ours.Due) {
		// The record of the deletion came after the eviction's own, which knows of its moves.
		first = p.would.FirstDue
	}
	if first.IsZero() || p.seen.Observed.DeletedAt.Sub(first).Abs() > j.query.Tolerance {
		return ReasonUnspecified, ""
	}
	text := fmt.Sprintf("its due instant was moved from %s, which the other controller kept", clockTime(first))
	if isEpisodeKey(ours.Cause.Taint.Key) && p.seen.Observed.TaintSince.After(ours.Cause.Taint.Start) {
		return ReasonTaintSwap, text + fmt.Sprintf("; %s came at %s, during the episode", ours.Cause.Taint, clockTime(p.seen.Observed.TaintSince))
	}
	return ReasonTolerationChanged, text
}

func (j *shadowJoin) explainEarlier(ours *EvictionRecord) (DifferenceReason, string) {
	c := &ours.Cause
	switch {
	case c.Default:
		return ReasonDefaultToleration, fmt.Sprintf("no toleration of the pod matches %s; the policy's default gave it %s", c.Taint, roundTime(ours.Due.Sub(c.Start)))
	case !j.adoptedAt.IsZero() && c.Start.Equal(j.adoptedAt) && c.Taint.Start.Equal(j.adoptedAt):
		return ReasonAdoption, fmt.Sprintf("its wait began when the cluster was adopted, at %s; %s is older", clockTime(j.adoptedAt), c.Taint)
	}
	return ReasonUnexplained, fmt.Sprintf("it was due %s after %s, which began to count at %s", roundTime(ours.Due.Sub(c.Start)), c.Taint, clockTime(c.Start))
}

func (j *shadowJoin) explainLater(p *shadowPod, ours *EvictionRecord) (DifferenceReason, string) {
	wait := ours.Due.Sub(ours.Cause.Start)
	begun := p.seen.Observed.DeletedAt.Add(-wait)
	if wait <= 0 || begun.After(ours.Due) {
		return ReasonUnexplained, fmt.Sprintf("it was due at %s, a wait of %s", clockTime(ours.Due), roundTime(wait))
	}
	text := fmt.Sprintf("its wait of %s was counted from %s instead of %s", roundTime(wait), clockTime(begun), clockTime(ours.Cause.Start))
	if j.confirmed(p, begun) {
		return ReasonWaitRestarted, text + ", and so were others"
	}
	return ReasonUnexplained, "as if " + text + "; no pod with another start confirms it"
}

// restartCell has the pods whose waits were counted again from about one
// instant: the range of their own starts.
type restartCell struct{ minStart, maxStart time.Time }

// lateBy is the instant from which the other controller counted a pod's wait, if
// that is later than here.
func (j *shadowJoin) lateBy(p *shadowPod) (begun time.Time, late bool) {
	ours := p.decides()
	if ours == nil || p.seen == nil || p.seen.Observed.DeletedAt.Sub(ours.Due) <= j.query.Tolerance {
		return begun, false
	}
	wait := ours.Due.Sub(ours.Cause.Start)
	begun = p.seen.Observed.DeletedAt.Add(-wait)
	return begun, wait > 0 && !begun.After(ours.Due)
}

// cell numbers the span of time, as wide as the tolerance, that an instant is in.
func (j *shadowJoin) cell(t time.Time) int64 {
	return t.UnixNano() / int64(max(j.query.Tolerance, time.Millisecond))
}

// confirm notes a pod whose wait was counted from begun.
func (j *shadowJoin) confirm(p *shadowPod, begun time.Time) {
	start := p.decides().Cause.Start
	c := j.restarts[j.cell(begun)]
	if c == nil {
		j.restarts[j.cell(begun)] = &restartCell{start, start}
		return
	}
	if start.Before(c.minStart) {
		c.minStart = start
	}
	if start.After(c.maxStart) {
		c.maxStart = start
	}
}

// confirmed reports whether another pod proves a restart. A controller that is
// merely slow is late by about the same for all, whatever their waits; one that
// began to count again is on time from one instant for pods whose starts differ,
// by more than the tolerance can blur.
func (j *shadowJoin) confirmed(p *shadowPod, begun time.Time) bool {
	start, apart := p.decides().Cause.Start, 2*max(j.query.Tolerance, time.Millisecond)
	for _, i := range []int64{-1, 0, 1} {
		c := j.restarts[j.cell(begun)+i]
		if c != nil && (c.maxStart.Sub(start) > apart || start.Sub(c.minStart) > apart) {
			return true
		}
	}
	return false
}

func clockTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func roundTime(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
