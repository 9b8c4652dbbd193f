package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine/health"
)

// Mode says whether a cluster's due evictions are sent.
type Mode uint8

// The modes.
const (
	ModeUnspecified Mode = iota
	// ModeShadow decides and records everything and sends nothing.
	ModeShadow
	// ModeEnforce sends.
	ModeEnforce
)

// Method says how executors remove a pod.
type Method uint8

// The methods.
const (
	MethodUnspecified Method = iota
	MethodDelete
	MethodEvict
	MethodEvictThenDelete
)

// Policy is what an operator decides for a cluster, with every field in force.
type Policy struct {
	Mode Mode
	// DefaultNotReady and DefaultUnreachable are the waits of D12.
	DefaultNotReady, DefaultUnreachable time.Duration
	DisableDefaults                     bool
	// RatePerSecond and Burst bound the orders sent; UnlimitedRate lifts both.
	RatePerSecond float64
	Burst         int
	UnlimitedRate bool
	Method        Method
	// BudgetWait is how long, from the due instant, EVICT_THEN_DELETE lets a disruption budget refuse.
	BudgetWait          time.Duration
	IgnoredTaintKeys    []string
	ExcludedNamespaces  []string
	ComparisonOperators bool
	BlastRadius         BlastRadius
	DisableBlastRadius  bool
	NodeHealth          NodeHealth
	HealthFigures       health.Figures
}

// NodeHealth says whether the health of a cluster's nodes is watched, and acted on.
type NodeHealth uint8

// The modes of node health.
const (
	NodeHealthUnspecified NodeHealth = iota
	// NodeHealthOff leaves it to another controller.
	NodeHealthOff
	// NodeHealthObserve decides and shows, and changes nothing.
	NodeHealthObserve
	// NodeHealthEnforce acts, in ModeEnforce.
	NodeHealthEnforce
)

// watchesHealth reports whether node health is on.
func (p *Policy) watchesHealth() bool { return p.NodeHealth >= NodeHealthObserve }

// actsOnHealth reports whether orders for nodes are sent.
func (p *Policy) actsOnHealth() bool {
	return p.NodeHealth == NodeHealthEnforce && p.Mode == ModeEnforce
}

// BlastRadius bounds how many nodes may get one taint key within a window
// before what falls due by it is held.
type BlastRadius struct {
	// MaxNodeShare is the share of the cluster's nodes, MinNodes how many it must have to be bounded.
	MaxNodeShare float64
	Window       time.Duration
	MinNodes     int
}

// PolicyField names fields of a [Policy] in a set.
type PolicyField uint16

// The fields of a policy.
const (
	PolicyMode PolicyField = 1 << iota
	PolicyDefaultNotReady
	PolicyDefaultUnreachable
	PolicyDisableDefaults
	// PolicyRate covers RatePerSecond, Burst and UnlimitedRate, which are one choice.
	PolicyRate
	PolicyMethod
	PolicyBudgetWait
	PolicyIgnoredTaintKeys
	PolicyExcludedNamespaces
	PolicyComparisonOperators
	PolicyBlastRadius
	PolicyDisableBlastRadius
	PolicyNodeHealth
	PolicyHealthFigures
	PolicyAllFields PolicyField = 1<<iota - 1
)

// PolicyPatch is a policy of which only the named fields count.
type PolicyPatch struct {
	Policy
	Fields PolicyField
}

// DefaultPolicy returns the policy that holds where nobody set anything.
func DefaultPolicy() Policy {
	return Policy{
		Mode:               ModeShadow,
		DefaultNotReady:    300 * time.Second,
		DefaultUnreachable: 300 * time.Second,
		RatePerSecond:      50,
		Burst:              100,
		Method:             MethodDelete,
		BudgetWait:         5 * time.Minute,
		BlastRadius:        BlastRadius{MaxNodeShare: 0.2, Window: time.Minute, MinNodes: 10},
		NodeHealth:         NodeHealthOff,
		HealthFigures:      health.DefaultFigures(),
	}
}

// With returns p with the fields of patch laid over it.
func (p Policy) With(patch PolicyPatch) Policy {
	if patch.Fields&PolicyMode != 0 {
		p.Mode = patch.Mode
	}
	if patch.Fields&PolicyDefaultNotReady != 0 {
		p.DefaultNotReady = patch.DefaultNotReady
	}
	if patch.Fields&PolicyDefaultUnreachable != 0 {
		p.DefaultUnreachable = patch.DefaultUnreachable
	}
	if patch.Fields&PolicyDisableDefaults != 0 {
		p.DisableDefaults = patch.DisableDefaults
	}
	if patch.Fields&PolicyRate != 0 {
		p.RatePerSecond, p.Burst, p.UnlimitedRate = patch.RatePerSecond, patch.Burst, patch.UnlimitedRate
	}
	if patch.Fields&PolicyMethod != 0 {
		p.Method = patch.Method
	}
	if patch.Fields&PolicyBudgetWait != 0 {
		p.BudgetWait = patch.BudgetWait
	}
	if patch.Fields&PolicyIgnoredTaintKeys != 0 {
		p.IgnoredTaintKeys = slices.Clone(patch.IgnoredTaintKeys)
	}
	if patch.Fields&PolicyExcludedNamespaces != 0 {
		p.ExcludedNamespaces = slices.Clone(patch.ExcludedNamespaces)
	}
	if patch.Fields&PolicyComparisonOperators != 0 {
		p.ComparisonOperators = patch.ComparisonOperators
	}
	if patch.Fields&PolicyBlastRadius != 0 {
		p.BlastRadius = patch.BlastRadius
	}
	if patch.Fields&PolicyDisableBlastRadius != 0 {
		p.DisableBlastRadius = patch.DisableBlastRadius
	}
	if patch.Fields&PolicyNodeHealth != 0 {
		p.NodeHealth = patch.NodeHealth
	}
	if patch.Fields&PolicyHealthFigures != 0 {
		p.HealthFigures = patch.HealthFigures
	}
	return p
}

// budgetLeft is how much longer a disruption budget may refuse a pod that fell
// due at due: 0 if its time is over, or if the method knows no such wait.
func (p *Policy) budgetLeft(due, now time.Time) time.Duration {
	if p.Method != MethodEvictThenDelete {
		return 0
	}
	return max(due.Add(p.BudgetWait).Sub(now), 0)
}

// Idle says which of the named fields, that somebody set, have no effect in p
// because of its other fields. Such a policy is sound: the fields may be there
// for the day on which the others change.
func (p *Policy) Idle(set PolicyField) (warnings []string) {
	if set&PolicyBudgetWait != 0 && p.Method != MethodEvictThenDelete {
		warnings = append(warnings, fmt.Sprintf("budget_wait has no effect: the method is %s, and only EVICT_THEN_DELETE waits", p.Method))
	}
	if set&PolicyBlastRadius != 0 && p.DisableBlastRadius {
		warnings = append(warnings, "blast_radius has no effect: disable_blast_radius is set")
	}
	if set&PolicyNodeHealth != 0 && p.NodeHealth == NodeHealthEnforce && p.Mode != ModeEnforce {
		warnings = append(warnings, fmt.Sprintf("node_health ENFORCE only observes: the mode is %s", p.Mode))
	}
	if set&PolicyHealthFigures != 0 && !p.watchesHealth() {
		warnings = append(warnings, "node_health_figures has no effect: node_health is OFF")
	}
	for _, w := range []struct {
		field     PolicyField
		name, key string
	}{
		{PolicyDefaultNotReady, "default_not_ready_toleration", taintNotReady},
		{PolicyDefaultUnreachable, "default_unreachable_toleration", taintUnreachable},
	} {
		switch {
		case set&w.field == 0:
		case slices.Contains(p.IgnoredTaintKeys, w.key):
			warnings = append(warnings, fmt.Sprintf("%s has no effect: ignored_taint_keys has %s", w.name, w.key))
		case p.DisableDefaults:
			warnings = append(warnings, fmt.Sprintf("%s has no effect: disable_default_tolerations is set", w.name))
		}
	}
	return warnings
}

// Merge returns the patch with the fields of next laid over it; clear names
// fields to be set by nobody any more.
func (p PolicyPatch) Merge(next PolicyPatch, clear PolicyField) PolicyPatch {
	return PolicyPatch{Policy: p.Policy.With(next), Fields: (p.Fields | next.Fields) &^ clear}
}
