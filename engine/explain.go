package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Explain returns every step of a pod's decision as it stands. Errors:
// ErrPodUnknown (synced cluster), ErrNotSynced, ErrClusterUnknown.
func (g *Engine) Explain(ctx context.Context, name string, ref PodRef) (*PodExplanation, error) {
	var x *PodExplanation
	var state SyncState
	err := g.onPod(ctx, name, ref, func(s *shard, sc *shardCluster, p *pod, done func(error)) {
		x = s.explain(sc, p)
		done(nil)
	})
	if err != nil {
		return nil, err
	}
	err = g.withCluster(ctx, name, func(_ *core, cl *cluster, done func()) error {
		state = cl.sync
		done()
		return nil
	})
	x.Sync = state
	return x, err
}

func (s *shard) explain(sc *shardCluster, p *pod) *PodExplanation {
	d := Decide(DecideInput{Subject: p.subject(), NodeKnown: p.node.known, Taints: p.node.force, Guards: p.node.guards, Policy: &sc.conf.policy, Detail: true})
	x := &PodExplanation{
		Cluster: sc.name, Namespace: p.namespace.Value(), Pod: p.name, UID: p.uid, Node: p.node.name,
		NodeStatus: p.node.status(), Tolerations: p.tols.tolerations(), BoundAt: p.boundAt.time(),
		Decision: d, Now: s.now, Mode: sc.conf.policy.Mode,
	}
	if r := sc.conf.reprieves[p.uid]; r != nil && !r.over(s.now) {
		x.Reprieve = r
	}
	if p.ev != nil {
		v := s.view(sc, p.ev)
		x.Eviction = v.Record()
	}
	x.Holds = s.allHolds(sc, p)
	x.Warnings = append(x.warnings(sc.conf), sc.loopWarning(p, s.now)...)
	x.Change = x.whatWouldChange()
	return x
}

// allHolds are all gates that would keep the pod back now, not only the first.
func (s *shard) allHolds(sc *shardCluster, p *pod) (holds []Hold) {
	conf := sc.conf
	if !conf.live || !conf.released {
		holds = append(holds, HoldClusterNotSynced)
	}
	if conf.damaged {
		holds = append(holds, HoldRecordDamaged)
	}
	if conf.pauseFor(p, s.now) != nil {
		holds = append(holds, HoldPaused)
	}
	if r := conf.reprieves[p.uid]; r != nil && !r.over(s.now) {
		holds = append(holds, HoldReprieved)
	}
	if p.ev == nil {
		return holds
	}
	if p.ev.notBefore().After(s.now) {
		holds = append(holds, HoldBackingOff)
	}
	if held, _ := conf.blastHold(p.ev, s.now); held {
		holds = append(holds, HoldBlastRadius)
	}
	if h := s.holdNow(sc, p.ev); h > HoldBlastRadius {
		holds = append(holds, h)
	}
	return holds
}

func (x *PodExplanation) warnings(conf *clusterConf) (w []string) {
	for i := range x.Decision.Steps {
		st := &x.Decision.Steps[i]
		for _, h := range st.Hidden {
			if !sameWait(&x.Tolerations[st.Toleration], &x.Tolerations[h]) {
				w = append(w, fmt.Sprintf("toleration %d (%s) hides toleration %d (%s) for taint %s: the first that matches counts",
					st.Toleration, describeToleration(&x.Tolerations[st.Toleration]), h, describeToleration(&x.Tolerations[h]), st.Taint))
			}
		}
	}
	for i := range x.Tolerations {
		t := &x.Tolerations[i]
		if (t.Operator == corev1.TolerationOpGt || t.Operator == corev1.TolerationOpLt) && !conf.policy.ComparisonOperators {
			w = append(w, fmt.Sprintf("toleration %d (%s) matches nothing: the policy has comparison_operators off", i, describeToleration(t)))
		}
	}
	return w
}

func sameWait(a, b *corev1.Toleration) bool {
	wa, fa := TolerationWait(a)
	wb, fb := TolerationWait(b)
	return fa == fb && wa == wb
}

func describeToleration(t *corev1.Toleration) string {
	key, op, seconds := t.Key, "Exists", "for ever"
	if key == "" {
		key = "any key"
	}
	if t.Operator != corev1.TolerationOpExists {
		op = cmp.Or(string(t.Operator), "Equal") + " " + fmt.Sprintf("%q", t.Value)
	}
	if wait, forever := TolerationWait(t); !forever {
		seconds = "for " + wait.String()
	}
	return key + " " + op + " " + seconds
}

// String writes the taint as kubectl does.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":NoExecute"
	}
	return t.Key + "=" + t.Value + ":NoExecute"
}

// whatWouldChange says what would move or end the decision.
func (x *PodExplanation) whatWouldChange() (out []string) {
	d := &x.Decision
	if d.Verdict == VerdictNotSubject {
		return []string{"nothing while " + d.Exempt.String()}
	}
	for i := range d.Steps {
		st := &d.Steps[i]
		switch {
		case st.Rejected:
			out = append(out, fmt.Sprintf("releasing taint key %q, which an operator rejected, would make taint %s count from %s", st.Taint.Key, st.Taint, st.Start.Format(time.RFC3339)))
		case st.Ignored:
			out = append(out, fmt.Sprintf("taking %q off the policy's ignored_taint_keys would make taint %s count from %s", st.Taint.Key, st.Taint, st.Start.Format(time.RFC3339)))
		case st.Forever:
			out = append(out, fmt.Sprintf("tolerationSeconds on toleration %d would make the pod leave for taint %s", st.Toleration, st.Taint))
		case i == d.Step:
			out = append(out, fmt.Sprintf("removing taint %s from node %s%s", st.Taint, x.Node, d.without(i)))
		}
	}
	if d.Request >= 0 {
		out = append(out, "withdrawing the request")
	}
	return out
}

// without says what the decision would be without one of its steps.
func (d *Decision) without(step int) string {
	next := -1
	for i := range d.Steps {
		st := &d.Steps[i]
		if i != step && !st.Ignored && !st.Forever && (next < 0 || st.Due.Before(d.Steps[next].Due)) {
			next = i
		}
	}
	if next < 0 {
		return " would cancel the eviction"
	}
	return fmt.Sprintf(" would move it to %s (taint %s)", d.Steps[next].Due.Format(time.RFC3339), d.Steps[next].Taint)
}

// Simulate takes the decision of a cluster's pods over hypothetical taints that
// start now, beside the taints that are there. It changes nothing. Only pods on
// the nodes named are looked at, in namespace if it is set.
func (g *Engine) Simulate(ctx context.Context, name string, taints []HypotheticalTaint, namespace string) ([]SimulatedPod, time.Time, error) {
	c, _, err := g.find(name)
	if err != nil {
		return nil, time.Time{}, err
	}
	byNode := map[string][]HypotheticalTaint{}
	for _, t := range taints {
		byNode[t.Node] = append(byNode[t.Node], t)
	}
	now := c.clock.Now()
	var out []SimulatedPod
	for node, list := range byNode {
		known := false
		err := c.ask(ctx, c.shardOf(name, node), func(s *shard) {
			if sc := s.clusters[name]; sc != nil && sc.nodes[node] != nil && sc.nodes[node].known {
				known = true
				taints := HypotheticalTaints(sc.nodes[node].force, list, now)
				out = append(out, simulateNode(sc, sc.nodes[node], taints, namespace)...)
			}
		})
		if err != nil {
			return nil, now, err
		}
		if !known {
			return nil, now, fmt.Errorf("%w: cluster %q has no node %q", ErrInvalid, name, node)
		}
	}
	slices.SortFunc(out, func(a, b SimulatedPod) int {
		return cmp.Or(cmp.Compare(b.Decision.Verdict, a.Decision.Verdict), a.Decision.Due.Compare(b.Decision.Due),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return out, now, nil
}

// simulateNode takes the decision of a node's pods as if it had taints.
func simulateNode(sc *shardCluster, n *node, taints []Taint, namespace string) []SimulatedPod {
	var out []SimulatedPod
	for _, p := range n.pods {
		if namespace != "" && p.namespace.Value() != namespace {
			continue
		}
		d := Decide(DecideInput{Subject: p.subject(), NodeKnown: true, Taints: taints, Guards: n.guards, Policy: &sc.conf.policy, Detail: true})
		out = append(out, SimulatedPod{Cluster: sc.name, Namespace: p.namespace.Value(), Pod: p.name, UID: p.uid, Node: n.name, Decision: d})
	}
	return out
}

// HypotheticalTaints returns taints with those of list that are not among them
// added, starting now. One of an episode that runs already has its start.
func HypotheticalTaints(taints []Taint, list []HypotheticalTaint, now time.Time) []Taint {
	out := slices.Clone(taints)
	var episode time.Time
	for _, t := range out {
		if isEpisodeKey(t.Key) {
			episode = t.Start
		}
	}
	for _, h := range list {
		if slices.ContainsFunc(out, func(t Taint) bool { return t.Key == h.Key && t.Value == h.Value }) {
			continue
		}
		start := now
		if isEpisodeKey(h.Key) && !episode.IsZero() {
			start = episode
		}
		out = append(out, Taint{Key: h.Key, Value: h.Value, Start: start})
	}
	return out
}
