package engine

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// taintManagerReason is what the taint-eviction-controller built into
	// kube-controller-manager writes into a pod's condition DisruptionTarget
	// before it deletes the pod. Executors of this service write it too.
	taintManagerReason = "DeletionByTaintManager"
	// foreignStanding is how long the warning of two evictors outlives the last sign of the other.
	foreignStanding = time.Hour
	// foreignLogEvery is the least time between two log lines of one cluster's.
	foreignLogEvery = 10 * time.Second
	// lateWindow is how long a mark waits for the taint that explains it: nodes and
	// pods come from two watches, and the pod's may be ahead.
	lateWindow = 10 * time.Second
)

// Standing is what the rules say of a pod at the instant another controller
// deletes it: that it leaves, or why it would stay.
type Standing uint8

// The standings.
const (
	StandingUnspecified Standing = iota
	// StandingLeaves: the pod is due, or has a due instant.
	StandingLeaves
	// StandingNoTaint: its node has no NoExecute taint.
	StandingNoTaint
	// StandingTolerated: it tolerates the taints for ever.
	StandingTolerated
	// StandingOverflow: as StandingTolerated, by tolerationSeconds beyond a duration (D5).
	StandingOverflow
	// StandingIgnored: the policy ignores the taint's key.
	StandingIgnored
	// StandingUnscheduled and those that follow: it is no subject (D2, policy, D15).
	StandingUnscheduled
	StandingTerminating
	StandingFinished
	StandingMirror
	StandingNamespace
	StandingNodeUnknown
)

// Observation is what shadow mode saw of another controller's deletion of a pod.
type Observation struct {
	// DeletedAt is when it was first seen.
	DeletedAt time.Time
	// Reason is that of the pod's condition DisruptionTarget.
	Reason string
	// Standing is what the rules said of the pod at that instant.
	Standing Standing
	// TaintSince is when the taint of the cause itself was first there. Its Start
	// may be earlier: that of its episode (D11).
	TaintSince time.Time
}

// ForeignStatus is what is known of evictions by another controller.
type ForeignStatus struct {
	// Total counts them since the start of the process, or since the store was opened again.
	Total uint64
	// Count counts those of the present spell, which ends an hour after its last
	// one; First and Last are its times, Pod is the last one's namespace/name.
	Count       uint64
	First, Last time.Time
	Pod         string
}

func (f *ForeignStatus) warning() string {
	return fmt.Sprintf("two evictors: another controller evicts pods for taints: %d since %s, the last one %s at %s; "+
		"start kube-controller-manager with --controllers=*,-taint-eviction-controller, or set the cluster's mode to SHADOW",
		f.Count, f.First.UTC().Format(time.RFC3339), f.Pod, f.Last.UTC().Format(time.RFC3339))
}

// foreignTally counts a cluster's foreign evictions.
type foreignTally struct {
	mu     sync.Mutex // guards what follows
	seen   ForeignStatus
	logged time.Time
}

// note counts one and reports whether a log line is due.
func (f *foreignTally) note(pod string, now time.Time) (count uint64, log bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire(now)
	if f.seen.Count == 0 {
		f.seen.First = now
	}
	f.seen.Total++
	f.seen.Count++
	f.seen.Last, f.seen.Pod = now, pod
	if log = f.logged.IsZero() || now.Sub(f.logged) >= foreignLogEvery; log {
		f.logged = now
	}
	return f.seen.Count, log
}

// expire ends the spell an hour after its last one. mu is held.
func (f *foreignTally) expire(now time.Time) {
	if f.seen.Count > 0 && now.Sub(f.seen.Last) >= foreignStanding {
		f.seen = ForeignStatus{Total: f.seen.Total}
	}
}

func (f *foreignTally) status(now time.Time) ForeignStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire(now)
	return f.seen
}

// marked reports whether the pod bears the taint manager's mark.
func (p *Pod) marked() bool { return p.DisruptionReason == taintManagerReason }

// mark looks at a pod event for the taint manager's mark. It is news once a pod,
// if no order of ours may have set it, and only while the cluster is synced:
// what a list shows may be of any time. fresh says that the pod was not known before.
func (s *shard) mark(sc *shardCluster, op *podOp, fresh bool, at time.Time) {
	p := op.pod
	if !op.marked || p.claimed || p.gone || p.node == nil {
		return
	}
	p.claimed = true
	if !sc.conf.live {
		return
	}
	if sc.conf.policy.Mode != ModeEnforce {
		s.observe(sc, p, fresh && op.seen.Finished, at)
		return
	}
	name := p.namespace.Value() + "/" + p.name
	if count, log := sc.foreign.note(name, at); log {
		s.core.opts.Logger.Warn("two evictors: another controller evicts pods for taints in a cluster with mode ENFORCE; "+
			"start kube-controller-manager with --controllers=*,-taint-eviction-controller",
			"cluster", sc.name, "pod", name, "uid", p.uid, "node", p.node.name, "count", count)
	}
}

// lateMark is a pod as it was when its mark came.
type lateMark struct {
	node    *node
	subject Subject
	seen    Observation
	due     time.Time // zero if it would have stayed
}

// observe leaves a record of another controller's deletion: it closes the pod's
// eviction, or is written to history as it is. For a while the pod has no new
// one: it is about to go.
func (s *shard) observe(sc *shardCluster, p *pod, finished bool, at time.Time) {
	m := lateMark{node: p.node, subject: p.subject(), seen: Observation{DeletedAt: at, Reason: taintManagerReason}}
	m.subject.Requests = nil
	m.subject.Finished = m.subject.Finished || finished
	cause := s.judge(sc, &m)
	if e := p.ev; e != nil {
		m.due = e.due()
		seen := m.seen
		e.edit(func(u *uncommon) { u.observed = &seen })
		s.closeAhead(sc, e, ClosePodDeleted)
	} else {
		s.writeObserved(sc, p, &m, cause)
		s.hush(sc, p)
	}
	if m.due.IsZero() || m.due.After(at) {
		if sc.late == nil {
			sc.late = map[*pod]lateMark{}
		}
		sc.late[p] = m
	}
}

// judge decides over a mark as things stand, and returns the cause of its due instant.
func (s *shard) judge(sc *shardCluster, m *lateMark) Cause {
	d := Decide(DecideInput{NodeKnown: m.node.known, Taints: m.node.force, Guards: m.node.guards, Policy: &sc.conf.policy, Steps: s.steps, Subject: m.subject})
	s.steps = d.Steps
	m.seen.Standing = standing(&d, m.subject.Tolerations)
	m.due, m.seen.TaintSince = d.Due, time.Time{}
	if d.Verdict != VerdictLeave {
		return Cause{}
	}
	step := &d.Steps[d.Step]
	if t := m.node.taint(step.Taint.Key, step.Taint.Value); t != nil {
		m.seen.TaintSince = t.Start
	}
	cause := Cause{Kind: CauseTaint, Taint: step.Taint, Start: step.Start, Default: step.Default}
	if step.Toleration >= 0 {
		cause.Toleration = &m.subject.Tolerations[step.Toleration]
	}
	return cause
}

// standing says what a decision without requests means.
func standing(d *Decision, tolerations []corev1.Toleration) Standing {
	switch d.Verdict {
	case VerdictLeave:
		return StandingLeaves
	case VerdictNotSubject:
		return exemptStanding[d.Exempt]
	}
	out := StandingNoTaint
	for i := range d.Steps {
		switch st := &d.Steps[i]; {
		case st.Ignored:
			return StandingIgnored
		case st.Forever && tolerations[st.Toleration].TolerationSeconds != nil:
			out = StandingOverflow
		case out == StandingNoTaint:
			out = StandingTolerated
		}
	}
	return out
}

var exemptStanding = map[Exemption]Standing{
	ExemptUnscheduled: StandingUnscheduled, ExemptTerminating: StandingTerminating, ExemptFinished: StandingFinished,
	ExemptMirror: StandingMirror, ExemptNamespace: StandingNamespace, ExemptNodeUnknown: StandingNodeUnknown,
}

// writeObserved writes a closed record of a deletion for which no eviction is open.
func (s *shard) writeObserved(sc *shardCluster, p *pod, m *lateMark, cause Cause) {
	seen := m.seen
	e := &eviction{
		pod: p, grounds: p.node.share(m.due, &cause), openedAt: instantOf(s.now), state: StateClosed, pending: 1,
		rest: &evictionWork{evictionRest: evictionRest{uncommon: &uncommon{observed: &seen}}},
	}
	v := s.version(e)
	v.closedAt, v.closeReason = instantOf(s.now), ClosePodDeleted
	s.out = append(s.out, pending{kind: ChangeCloseEviction, cluster: sc.name, version: v, tell: true, shard: int32(s.id)})
	s.core.observer.Closed(sc.name, ClosePodDeleted)
}

// observeLate writes a second record for marks that came before the taint which
// explains them: nodes and pods are watched apart, and the built-in controller
// acts within milliseconds.
func (s *shard) observeLate(sc *shardCluster, touched []*node) {
	if len(sc.late) == 0 || !sc.conf.live || sc.conf.policy.Mode == ModeEnforce {
		return
	}
	for _, n := range touched {
		for p, m := range sc.late {
			if m.node != n || s.now.Sub(m.seen.DeletedAt) > lateWindow {
				continue
			}
			before := m.due
			cause := s.judge(sc, &m)
			if m.due.IsZero() || !before.IsZero() && !m.due.Before(before) {
				continue
			}
			s.writeObserved(sc, p, &m, cause)
			if sc.late[p] = m; !m.due.After(m.seen.DeletedAt.Add(lateWindow)) {
				delete(sc.late, p)
			}
		}
	}
}

// forgetLate drops marks that no taint explains any more.
func (sc *shardCluster) forgetLate(now time.Time) {
	for p, m := range sc.late {
		if now.Sub(m.seen.DeletedAt) > lateWindow {
			delete(sc.late, p)
		}
	}
}
