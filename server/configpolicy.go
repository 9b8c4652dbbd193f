package server

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// ClusterPolicy is a policy in the configuration, with the fields and bounds of
// the contract's message of that name. Absent fields are set by nobody here.
type ClusterPolicy struct {
	Mode                         *string            `yaml:"mode"`
	DefaultNotReadyToleration    *Duration          `yaml:"default_not_ready_toleration"`
	DefaultUnreachableToleration *Duration          `yaml:"default_unreachable_toleration"`
	DisableDefaultTolerations    *bool              `yaml:"disable_default_tolerations"`
	Rate                         *Rate              `yaml:"rate"`
	UnlimitedRate                *bool              `yaml:"unlimited_rate"`
	Method                       *string            `yaml:"method"`
	BudgetWait                   *Duration          `yaml:"budget_wait"`
	IgnoredTaintKeys             *[]string          `yaml:"ignored_taint_keys"`
	ExcludedNamespaces           *[]string          `yaml:"excluded_namespaces"`
	ComparisonOperators          *bool              `yaml:"comparison_operators"`
	BlastRadius                  *BlastRadius       `yaml:"blast_radius"`
	DisableBlastRadius           *bool              `yaml:"disable_blast_radius"`
	NodeHealth                   *string            `yaml:"node_health"`
	NodeHealthFigures            *NodeHealthFigures `yaml:"node_health_figures"`
}

// NodeHealthFigures are the figures by which node health is judged.
type NodeHealthFigures struct {
	GracePeriod                *Duration `yaml:"grace_period"`
	StartupGracePeriod         *Duration `yaml:"startup_grace_period"`
	TaintRate                  *float64  `yaml:"taint_rate"`
	FullDisruptionTaintRate    *float64  `yaml:"full_disruption_taint_rate"`
	PartialDisruptionTaintRate *float64  `yaml:"partial_disruption_taint_rate"`
	SmallZoneTaintRate         *float64  `yaml:"small_zone_taint_rate"`
	LargeZoneNodes             *uint32   `yaml:"large_zone_nodes"`
	UnhealthyZoneShare         *float64  `yaml:"unhealthy_zone_share"`
	UnhealthyZoneNodes         *uint32   `yaml:"unhealthy_zone_nodes"`
	SilenceShare               *float64  `yaml:"silence_share"`
	SilenceWindow              *Duration `yaml:"silence_window"`
	DisableSilenceHold         *bool     `yaml:"disable_silence_hold"`
}

func (h *NodeHealthFigures) proto() *reprievev1.NodeHealthFigures {
	if h == nil {
		return nil
	}
	return &reprievev1.NodeHealthFigures{
		GracePeriod: h.GracePeriod.proto(), StartupGracePeriod: h.StartupGracePeriod.proto(),
		TaintRate: h.TaintRate, FullDisruptionTaintRate: h.FullDisruptionTaintRate,
		PartialDisruptionTaintRate: h.PartialDisruptionTaintRate, SmallZoneTaintRate: h.SmallZoneTaintRate,
		LargeZoneNodes: h.LargeZoneNodes, UnhealthyZoneShare: h.UnhealthyZoneShare, UnhealthyZoneNodes: h.UnhealthyZoneNodes,
		SilenceShare: h.SilenceShare, SilenceWindow: h.SilenceWindow.proto(), DisableSilenceHold: h.DisableSilenceHold,
	}
}

// BlastRadius bounds how many nodes one taint key may come to within a window.
type BlastRadius struct {
	MaxNodeShare *float64  `yaml:"max_node_share"`
	Window       *Duration `yaml:"window"`
	MinNodes     *uint32   `yaml:"min_nodes"`
}

// Rate bounds how fast a cluster's orders are sent.
type Rate struct {
	PerSecond float64 `yaml:"per_second"`
	Burst     uint32  `yaml:"burst"`
}

// patch translates the policy, or says what is wrong with it.
func (p *ClusterPolicy) patch() (engine.PolicyPatch, error) {
	msg, lists, faults := p.message()
	faults = append(faults, wire.PolicyFaults(msg)...)
	if len(faults) > 0 {
		return engine.PolicyPatch{}, errors.Join(faults...)
	}
	return wire.PolicyPatch(msg, lists), nil
}

// message is the policy as the contract has it, and the lists that are there though empty.
func (p *ClusterPolicy) message() (msg *reprievev1.ClusterPolicy, lists engine.PolicyField, faults []error) {
	msg = &reprievev1.ClusterPolicy{
		DefaultNotReadyToleration: p.DefaultNotReadyToleration.proto(), DefaultUnreachableToleration: p.DefaultUnreachableToleration.proto(),
		DisableDefaultTolerations: p.DisableDefaultTolerations, UnlimitedRate: p.UnlimitedRate,
		BudgetWait: p.BudgetWait.proto(), ComparisonOperators: p.ComparisonOperators,
		DisableBlastRadius: p.DisableBlastRadius, NodeHealthFigures: p.NodeHealthFigures.proto(),
	}
	if b := p.BlastRadius; b != nil {
		msg.BlastRadius = &reprievev1.BlastRadius{MaxNodeShare: b.MaxNodeShare, Window: b.Window.proto(), MinNodes: b.MinNodes}
	}
	if p.Rate != nil {
		msg.Rate = &reprievev1.Rate{PerSecond: p.Rate.PerSecond, Burst: p.Rate.Burst}
	}
	if p.Mode != nil {
		n, err := enumValue("mode", "MODE_", *p.Mode, reprievev1.Mode_value)
		faults, msg.Mode = append(faults, err...), reprievev1.Mode(n).Enum()
	}
	if p.Method != nil {
		n, err := enumValue("method", "EVICTION_METHOD_", *p.Method, reprievev1.EvictionMethod_value)
		faults, msg.Method = append(faults, err...), reprievev1.EvictionMethod(n).Enum()
	}
	if p.NodeHealth != nil {
		n, err := enumValue("node_health", "NODE_HEALTH_MODE_", *p.NodeHealth, reprievev1.NodeHealthMode_value)
		faults, msg.NodeHealth = append(faults, err...), reprievev1.NodeHealthMode(n).Enum()
	}
	if p.IgnoredTaintKeys != nil {
		msg.IgnoredTaintKeys, lists = *p.IgnoredTaintKeys, lists|engine.PolicyIgnoredTaintKeys
	}
	if p.ExcludedNamespaces != nil {
		msg.ExcludedNamespaces, lists = *p.ExcludedNamespaces, lists|engine.PolicyExcludedNamespaces
	}
	return msg, lists, faults
}

func (d *Duration) proto() *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(time.Duration(*d))
}

// enumValue finds a value by its name, with or without the enum's prefix, in any case.
func enumValue(field, prefix, name string, values map[string]int32) (int32, []error) {
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, prefix) {
		full = prefix + full
	}
	if n := values[full]; n != 0 {
		return n, nil
	}
	var known []string
	for v, n := range values {
		if n != 0 {
			known = append(known, strings.TrimPrefix(v, prefix))
		}
	}
	slices.Sort(known)
	// 1 keeps the value's own rule from being reported besides.
	return 1, []error{fmt.Errorf("%s: %q is none of %s", field, name, strings.Join(known, ", "))}
}

// clusterPolicies returns the configured policy of each cluster: what adopt
// says, then the defaults, then the cluster's own fields.
func (c *Config) clusterPolicies() (func(cluster string) engine.PolicyPatch, error) {
	base := engine.PolicyPatch{Fields: engine.PolicyMode}
	base.Mode = engine.ModeShadow
	if c.Adopt == "enforce" {
		base.Mode = engine.ModeEnforce
	}
	defaults, err := c.Defaults.patch()
	if err != nil {
		return nil, fmt.Errorf("defaults: %w", err)
	}
	base = base.Merge(defaults, 0)
	named := make(map[string]engine.PolicyPatch, len(c.Clusters))
	for name, p := range c.Clusters {
		own, err := p.patch()
		if err != nil {
			return nil, fmt.Errorf("clusters.%s: %w", name, err)
		}
		named[name] = base.Merge(own, 0)
	}
	return func(cluster string) engine.PolicyPatch {
		if p, ok := named[cluster]; ok {
			return p
		}
		return base
	}, nil
}

// Warnings say what of a valid configuration has no effect as it stands.
func (c *Config) Warnings() (warnings []string) {
	policies, err := c.clusterPolicies()
	if err != nil {
		return nil
	}
	add := func(where string, own *ClusterPolicy, effective ...string) {
		// A field is idle if it is so in every cluster that it is meant for.
		patch, err := own.patch()
		if err != nil {
			return
		}
		var idle []string
		for i, name := range effective {
			p := engine.DefaultPolicy().With(policies(name))
			here := p.Idle(patch.Fields)
			if i == 0 {
				idle = here
				continue
			}
			idle = slices.DeleteFunc(idle, func(w string) bool { return !slices.Contains(here, w) })
		}
		for _, w := range idle {
			warnings = append(warnings, where+": "+w)
		}
	}
	names := slices.Sorted(maps.Keys(c.Clusters))
	// The empty name is that of a cluster that has no entry of its own.
	add("defaults", &c.Defaults, append([]string{""}, names...)...)
	for _, name := range names {
		own := c.Clusters[name]
		add("clusters."+name, &own, name)
	}
	return warnings
}
