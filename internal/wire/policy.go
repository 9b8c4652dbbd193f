package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// policyFields names the fields of a ClusterPolicy, as a field mask does, with
// the engine's bit of each.
var policyFields = map[string]engine.PolicyField{
	"mode":                                     engine.PolicyMode,
	"default_not_ready_toleration":             engine.PolicyDefaultNotReady,
	"default_unreachable_toleration":           engine.PolicyDefaultUnreachable,
	"disable_default_tolerations":              engine.PolicyDisableDefaults,
	"rate":                                     engine.PolicyRate,
	"rate.per_second":                          engine.PolicyRate,
	"rate.burst":                               engine.PolicyRate,
	"unlimited_rate":                           engine.PolicyRate,
	"method":                                   engine.PolicyMethod,
	"budget_wait":                              engine.PolicyBudgetWait,
	"ignored_taint_keys":                       engine.PolicyIgnoredTaintKeys,
	"excluded_namespaces":                      engine.PolicyExcludedNamespaces,
	"comparison_operators":                     engine.PolicyComparisonOperators,
	"blast_radius":                             engine.PolicyBlastRadius,
	"blast_radius.max_node_share":              engine.PolicyBlastRadius,
	"blast_radius.window":                      engine.PolicyBlastRadius,
	"blast_radius.min_nodes":                   engine.PolicyBlastRadius,
	"disable_blast_radius":                     engine.PolicyDisableBlastRadius,
	"node_health":                              engine.PolicyNodeHealth,
	"node_health_figures":                      engine.PolicyHealthFigures,
	"node_health_figures.grace_period":         engine.PolicyHealthFigures,
	"node_health_figures.startup_grace_period": engine.PolicyHealthFigures,
	"node_health_figures.taint_rate":           engine.PolicyHealthFigures,
	"node_health_figures.full_disruption_taint_rate":    engine.PolicyHealthFigures,
	"node_health_figures.partial_disruption_taint_rate": engine.PolicyHealthFigures,
	"node_health_figures.small_zone_taint_rate":         engine.PolicyHealthFigures,
	"node_health_figures.large_zone_nodes":              engine.PolicyHealthFigures,
	"node_health_figures.unhealthy_zone_share":          engine.PolicyHealthFigures,
	"node_health_figures.unhealthy_zone_nodes":          engine.PolicyHealthFigures,
	"node_health_figures.silence_share":                 engine.PolicyHealthFigures,
	"node_health_figures.silence_window":                engine.PolicyHealthFigures,
	"node_health_figures.disable_silence_hold":          engine.PolicyHealthFigures,
}

// PolicyFields translates a field mask's paths. "*" is all of them.
func PolicyFields(paths []string) (engine.PolicyField, error) {
	var out engine.PolicyField
	for _, p := range paths {
		if p == "*" {
			return engine.PolicyAllFields, nil
		}
		f, ok := policyFields[p]
		if !ok {
			return 0, fmt.Errorf("%w: policy has no field %q; it has %s", engine.ErrInvalid, p, strings.Join(policyFieldNames(), ", "))
		}
		out |= f
	}
	return out, nil
}

func policyFieldNames() []string {
	var names []string
	for n := range policyFields {
		if !strings.Contains(n, ".") {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// PolicyPatch translates a policy of which only the fields it has count. Lists
// have no presence on the wire: they count if they have entries, or if lists
// names them.
func PolicyPatch(p *reprievev1.ClusterPolicy, lists engine.PolicyField) engine.PolicyPatch {
	var out engine.PolicyPatch
	set := func(f engine.PolicyField, present bool) {
		if present {
			out.Fields |= f
		}
	}
	set(engine.PolicyMode, p.Mode != nil)
	out.Mode = engine.Mode(p.GetMode())
	set(engine.PolicyDefaultNotReady, p.DefaultNotReadyToleration != nil)
	out.DefaultNotReady = p.GetDefaultNotReadyToleration().AsDuration()
	set(engine.PolicyDefaultUnreachable, p.DefaultUnreachableToleration != nil)
	out.DefaultUnreachable = p.GetDefaultUnreachableToleration().AsDuration()
	set(engine.PolicyDisableDefaults, p.DisableDefaultTolerations != nil)
	out.DisableDefaults = p.GetDisableDefaultTolerations()
	set(engine.PolicyRate, p.Rate != nil || p.UnlimitedRate != nil)
	out.UnlimitedRate = p.GetUnlimitedRate() && p.Rate == nil
	out.RatePerSecond, out.Burst = engine.DefaultPolicy().RatePerSecond, engine.DefaultPolicy().Burst
	if p.Rate != nil {
		out.RatePerSecond, out.Burst = p.GetRate().GetPerSecond(), int(p.GetRate().GetBurst())
	}
	set(engine.PolicyMethod, p.Method != nil)
	out.Method = engine.Method(p.GetMethod())
	set(engine.PolicyBudgetWait, p.BudgetWait != nil)
	out.BudgetWait = p.GetBudgetWait().AsDuration()
	set(engine.PolicyIgnoredTaintKeys, len(p.GetIgnoredTaintKeys()) > 0 || lists&engine.PolicyIgnoredTaintKeys != 0)
	out.IgnoredTaintKeys = p.GetIgnoredTaintKeys()
	set(engine.PolicyExcludedNamespaces, len(p.GetExcludedNamespaces()) > 0 || lists&engine.PolicyExcludedNamespaces != 0)
	out.ExcludedNamespaces = p.GetExcludedNamespaces()
	set(engine.PolicyComparisonOperators, p.ComparisonOperators != nil)
	out.ComparisonOperators = p.GetComparisonOperators()
	set(engine.PolicyBlastRadius, p.BlastRadius != nil)
	out.BlastRadius = blastRadius(p.GetBlastRadius())
	set(engine.PolicyDisableBlastRadius, p.DisableBlastRadius != nil)
	out.DisableBlastRadius = p.GetDisableBlastRadius()
	set(engine.PolicyNodeHealth, p.NodeHealth != nil)
	out.NodeHealth = engine.NodeHealth(p.GetNodeHealth())
	set(engine.PolicyHealthFigures, p.NodeHealthFigures != nil)
	out.HealthFigures = healthFigures(p.GetNodeHealthFigures())
	return out
}

// blastRadius translates a blast radius; absent fields have their defaults.
func blastRadius(b *reprievev1.BlastRadius) engine.BlastRadius {
	out := engine.DefaultPolicy().BlastRadius
	if b.GetMaxNodeShare() != 0 {
		out.MaxNodeShare = b.GetMaxNodeShare()
	}
	if b.GetWindow() != nil {
		out.Window = b.GetWindow().AsDuration()
	}
	if b.GetMinNodes() != 0 {
		out.MinNodes = int(b.GetMinNodes())
	}
	return out
}

// CheckPolicy says what contradicts itself in a policy.
func CheckPolicy(p *reprievev1.ClusterPolicy) error {
	if p.Rate != nil && p.GetUnlimitedRate() {
		return fmt.Errorf("%w: policy: rate and unlimited_rate exclude each other", engine.ErrInvalid)
	}
	return nil
}

// PolicyFaults are all that is wrong with a policy: what the contract's rules
// refuse, and what contradicts itself. None means that a service takes it.
func PolicyFaults(p *reprievev1.ClusterPolicy) (faults []error) {
	var invalid *protovalidate.ValidationError
	switch err := protovalidate.Validate(p); {
	case errors.As(err, &invalid):
		for _, v := range invalid.Violations {
			faults = append(faults, fmt.Errorf("%s: %s", protovalidate.FieldPathString(v.Proto.GetField()), v.Proto.GetMessage()))
		}
	case err != nil:
		faults = append(faults, err)
	}
	if err := CheckPolicy(p); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// Policy translates the fields of a policy back; others stay absent.
func Policy(p engine.Policy, fields engine.PolicyField) *reprievev1.ClusterPolicy {
	out := &reprievev1.ClusterPolicy{}
	has := func(f engine.PolicyField) bool { return fields&f != 0 }
	if has(engine.PolicyMode) {
		out.Mode = reprievev1.Mode(p.Mode).Enum()
	}
	if has(engine.PolicyDefaultNotReady) {
		out.DefaultNotReadyToleration = durationpb.New(p.DefaultNotReady)
	}
	if has(engine.PolicyDefaultUnreachable) {
		out.DefaultUnreachableToleration = durationpb.New(p.DefaultUnreachable)
	}
	if has(engine.PolicyDisableDefaults) {
		out.DisableDefaultTolerations = &p.DisableDefaults
	}
	if has(engine.PolicyRate) {
		out.UnlimitedRate = &p.UnlimitedRate
		if !p.UnlimitedRate {
			out.Rate = &reprievev1.Rate{PerSecond: p.RatePerSecond, Burst: uint32(p.Burst)}
		}
	}
	if has(engine.PolicyMethod) {
		out.Method = reprievev1.EvictionMethod(p.Method).Enum()
	}
	if has(engine.PolicyBudgetWait) {
		out.BudgetWait = durationpb.New(p.BudgetWait)
	}
	if has(engine.PolicyIgnoredTaintKeys) {
		out.IgnoredTaintKeys = p.IgnoredTaintKeys
	}
	if has(engine.PolicyExcludedNamespaces) {
		out.ExcludedNamespaces = p.ExcludedNamespaces
	}
	if has(engine.PolicyComparisonOperators) {
		out.ComparisonOperators = &p.ComparisonOperators
	}
	if has(engine.PolicyBlastRadius) {
		nodes := uint32(p.BlastRadius.MinNodes)
		out.BlastRadius = &reprievev1.BlastRadius{
			MaxNodeShare: &p.BlastRadius.MaxNodeShare, Window: durationpb.New(p.BlastRadius.Window), MinNodes: &nodes,
		}
	}
	if has(engine.PolicyDisableBlastRadius) {
		out.DisableBlastRadius = &p.DisableBlastRadius
	}
	if has(engine.PolicyNodeHealth) {
		out.NodeHealth = reprievev1.NodeHealthMode(p.NodeHealth).Enum()
	}
	if has(engine.PolicyHealthFigures) {
		out.NodeHealthFigures = healthFiguresProto(&p.HealthFigures)
	}
	return out
}
