package health

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Taint is one of the taints that follow from a node's health.
type Taint uint8

// The taints. Other taints are nobody's business here.
const (
	NotReadyNoSchedule Taint = iota
	NotReadyNoExecute
	UnreachableNoSchedule
	UnreachableNoExecute
	MemoryPressure
	DiskPressure
	PIDPressure
	NetworkUnavailable
	Unschedulable
	taints
)

var taintForms = [taints]corev1.Taint{
	NotReadyNoSchedule:    {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
	NotReadyNoExecute:     {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
	UnreachableNoSchedule: {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
	UnreachableNoExecute:  {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
	MemoryPressure:        {Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule},
	DiskPressure:          {Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
	PIDPressure:           {Key: corev1.TaintNodePIDPressure, Effect: corev1.TaintEffectNoSchedule},
	NetworkUnavailable:    {Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
	Unschedulable:         {Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
}

// Key and Effect are the taint's, as Kubernetes spells them.
func (t Taint) Key() string { return taintForms[t].Key }

// Effect is the taint's effect.
func (t Taint) Effect() string { return string(taintForms[t].Effect) }

// String is the taint as kubectl writes it.
func (t Taint) String() string { return t.Key() + ":" + t.Effect() }

// TaintSet is a set of taints.
type TaintSet uint16

const noExecute = TaintSet(1<<NotReadyNoExecute | 1<<UnreachableNoExecute)

// Set returns the set of the given taints.
func Set(list ...Taint) (s TaintSet) {
	for _, t := range list {
		s |= 1 << t
	}
	return s
}

// Has reports whether the taint is in the set.
func (s TaintSet) Has(t Taint) bool { return s&(1<<t) != 0 }

// List are the taints of the set.
func (s TaintSet) List() (list []Taint) {
	for t := range taints {
		if s.Has(t) {
			list = append(list, t)
		}
	}
	return list
}

// String lists the taints.
func (s TaintSet) String() string {
	var names []string
	for _, t := range s.List() {
		names = append(names, t.String())
	}
	return strings.Join(names, ",")
}

// TaintOf finds a taint by its key and effect; false for one that does not
// follow from health.
func TaintOf(key, effect string) (Taint, bool) {
	if !strings.HasPrefix(key, "node.kubernetes.io/") {
		return 0, false
	}
	for t := range taints {
		if taintForms[t].Key == key && string(taintForms[t].Effect) == effect {
			return t, true
		}
	}
	return 0, false
}

// Condition is one of the node conditions that count.
type Condition uint8

// The conditions. Those before CondNetworkUnavailable are the kubelet's, and
// become Unknown when it is silent.
const (
	CondReady Condition = iota
	CondMemoryPressure
	CondDiskPressure
	CondPIDPressure
	CondNetworkUnavailable
	conditions
)

var conditionNames = [conditions]string{
	string(corev1.NodeReady), string(corev1.NodeMemoryPressure), string(corev1.NodeDiskPressure),
	string(corev1.NodePIDPressure), string(corev1.NodeNetworkUnavailable),
}

// String is the condition's type.
func (c Condition) String() string { return conditionNames[c] }

// ConditionOf finds a condition by its type; false for one that does not count.
func ConditionOf(name string) (Condition, bool) {
	for c := range conditions {
		if conditionNames[c] == name {
			return c, true
		}
	}
	return 0, false
}

// KubeletConditions are the types of the conditions that become Unknown when a node is silent.
func KubeletConditions() []string { return conditionNames[:CondNetworkUnavailable] }

// pressures are the conditions that give a taint while they are True.
var pressures = map[Condition]Taint{
	CondMemoryPressure: MemoryPressure, CondDiskPressure: DiskPressure, CondPIDPressure: PIDPressure,
	CondNetworkUnavailable: NetworkUnavailable,
}

// Status is a condition's status.
type Status uint8

// The statuses. StatusNone is that of a condition that the node does not have.
const (
	StatusNone Status = iota
	StatusTrue
	StatusFalse
	StatusUnknown
)

// String is the status as Kubernetes spells it; empty for none.
func (s Status) String() string { return [...]string{"", "True", "False", "Unknown"}[s] }

// StatusOf reads a status. What is neither True nor False is Unknown.
func StatusOf(s string) Status {
	switch s {
	case "True":
		return StatusTrue
	case "False":
		return StatusFalse
	}
	return StatusUnknown
}
