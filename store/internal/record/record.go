package record

import (
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	corev1 "k8s.io/api/core/v1"
)

// Eviction copies r as it is stored: without the hold, which follows from the
// gates, and with WAITING for DUE, which follows from the time.
func Eviction(r *engine.EvictionRecord) *engine.EvictionRecord {
	c := *r
	c.State = State(r.State)
	c.Hold, c.HoldUntil = engine.HoldNone, time.Time{}
	c.Cause.Toleration = Toleration(r.Cause.Toleration)
	c.Requests = list(r.Requests)
	if r.Delivery != nil {
		d := *r.Delivery
		c.Delivery = &d
	}
	if r.Observed != nil {
		o := *r.Observed
		c.Observed = &o
	}
	return &c
}

// State is the state as it is stored.
func State(s engine.State) engine.State {
	if s == engine.StateDue {
		return engine.StateWaiting
	}
	return s
}

// Toleration copies t, which may be nil.
func Toleration(t *corev1.Toleration) *corev1.Toleration {
	if t == nil {
		return nil
	}
	return t.DeepCopy()
}

// Node copies r.
func Node(r *engine.NodeRecord) *engine.NodeRecord {
	c := *r
	c.Taints, c.Guards = list(r.Taints), list(r.Guards)
	return &c
}

// Health copies r.
func Health(r *engine.NodeHealthRecord) *engine.NodeHealthRecord {
	c := *r
	if r.Delivery != nil {
		d := *r.Delivery
		c.Delivery = &d
	}
	return &c
}

// Reprieve copies r.
func Reprieve(r *engine.ReprieveRecord) *engine.ReprieveRecord {
	c := *r
	return &c
}

// Cluster copies r; of its policy only the fields that count are kept.
func Cluster(r *engine.ClusterRecord) *engine.ClusterRecord {
	c := *r
	c.Policy = engine.PolicyPatch{}.Merge(r.Policy, 0)
	c.Policy.IgnoredTaintKeys = list(c.Policy.IgnoredTaintKeys)
	c.Policy.ExcludedNamespaces = list(c.Policy.ExcludedNamespaces)
	c.Pauses, c.Blasts = list(r.Pauses), list(r.Blasts)
	c.Health.Grants = list(r.Health.Grants)
	return &c
}

// list copies s; an empty one becomes nil, since the two are stored alike.
func list[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}
