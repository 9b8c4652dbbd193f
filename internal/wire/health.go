package wire

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// healthFigures translates the figures of node health; absent fields have their defaults.
func healthFigures(m *reprievev1.NodeHealthFigures) health.Figures {
	out := health.DefaultFigures()
	if m == nil {
		return out
	}
	over := func(to *float64, v *float64) {
		if v != nil {
			*to = *v
		}
	}
	over(&out.Rate, m.TaintRate)
	over(&out.FullRate, m.FullDisruptionTaintRate)
	over(&out.PartialRate, m.PartialDisruptionTaintRate)
	over(&out.SmallRate, m.SmallZoneTaintRate)
	over(&out.UnhealthyShare, m.UnhealthyZoneShare)
	over(&out.SilenceShare, m.SilenceShare)
	if m.GracePeriod != nil {
		out.Grace = m.GetGracePeriod().AsDuration()
	}
	if m.StartupGracePeriod != nil {
		out.StartupGrace = m.GetStartupGracePeriod().AsDuration()
	}
	if m.SilenceWindow != nil {
		out.SilenceWindow = m.GetSilenceWindow().AsDuration()
	}
	if m.LargeZoneNodes != nil {
		out.LargeZone = int(m.GetLargeZoneNodes())
	}
	if m.UnhealthyZoneNodes != nil {
		out.UnhealthyNodes = int(m.GetUnhealthyZoneNodes())
	}
	out.DisableSilenceHold = m.GetDisableSilenceHold()
	return out
}

// healthFiguresProto translates the figures back, with every field set.
func healthFiguresProto(f *health.Figures) *reprievev1.NodeHealthFigures {
	large, unhealthy := uint32(f.LargeZone), uint32(f.UnhealthyNodes)
	return &reprievev1.NodeHealthFigures{
		GracePeriod: durationpb.New(f.Grace), StartupGracePeriod: durationpb.New(f.StartupGrace),
		TaintRate: &f.Rate, FullDisruptionTaintRate: &f.FullRate, PartialDisruptionTaintRate: &f.PartialRate, SmallZoneTaintRate: &f.SmallRate,
		LargeZoneNodes: &large, UnhealthyZoneShare: &f.UnhealthyShare, UnhealthyZoneNodes: &unhealthy,
		SilenceShare: &f.SilenceShare, SilenceWindow: durationpb.New(f.SilenceWindow), DisableSilenceHold: &f.DisableSilenceHold,
	}
}

// excludeDisruption is the label of nodes that do not count in their zone.
const excludeDisruption = "node.kubernetes.io/exclude-disruption"

// healthNode translates what node health looks at of a node.
func healthNode(n *reprievev1.Node) *health.Node {
	labels := n.GetLabels()
	out := &health.Node{Name: n.GetName(), UID: n.GetUid(), Zone: zoneOf(labels), Unschedulable: n.GetUnschedulable()}
	_, out.Excluded = labels[excludeDisruption]
	for _, c := range n.GetConditions() {
		kind, ok := health.ConditionOf(c.GetType())
		if !ok {
			continue
		}
		out.Conditions[kind] = health.StatusOf(c.GetStatus())
		if kind == health.CondReady {
			out.ReadyReason = c.GetReason()
			out.Heartbeat, out.Transition = Time(c.GetLastHeartbeatTime()), Time(c.GetLastTransitionTime())
		}
	}
	for _, t := range n.GetTaints() {
		if own, ok := health.TaintOf(t.GetKey(), t.GetEffect()); ok {
			out.Taints |= health.Set(own)
		}
	}
	return out
}

// zoneOf is REGION/ZONE by the topology labels, or the older ones; empty without.
func zoneOf(labels map[string]string) string {
	region, zone := labels[corev1.LabelTopologyRegion], labels[corev1.LabelTopologyZone]
	if region == "" {
		region = labels[corev1.LabelFailureDomainBetaRegion]
	}
	if zone == "" {
		zone = labels[corev1.LabelFailureDomainBetaZone]
	}
	if region == "" && zone == "" {
		return ""
	}
	return region + "/" + zone
}

func leases(m *reprievev1.NodeLeaseRenewals) *engine.LeaseRenewals {
	out := &engine.LeaseRenewals{Nodes: m.GetNodeNames()}
	if times := m.GetRenewTimes(); len(times) > 0 {
		out.Times = make([]time.Time, len(times))
		for i, t := range times {
			out.Times[i] = Time(t)
		}
	}
	return out
}

// updateNode translates an order for a node.
func updateNode(o *engine.NodeOrder) *reprievev1.UpdateNode {
	out := &reprievev1.UpdateNode{
		Cluster: o.Cluster, Name: o.Name, Uid: o.UID,
		Basis: &reprievev1.UpdateNode_Basis{
			ReadyStatus: o.Ready.String(), HeartbeatTime: Timestamp(o.Heartbeat), RenewTime: Timestamp(o.Renew),
		},
		AddTaints: healthTaints(o.Add), RemoveTaints: healthTaints(o.Remove), MarkPodsNotReady: o.MarkPods, Reason: o.Reason,
	}
	if o.Unknown {
		out.UnknownConditions = health.KubeletConditions()
	}
	return out
}

func healthTaints(set health.TaintSet) (out []*reprievev1.Taint) {
	for _, t := range set.List() {
		out = append(out, healthTaint(t))
	}
	return out
}

func healthTaint(t health.Taint) *reprievev1.Taint {
	return &reprievev1.Taint{Key: t.Key(), Effect: t.Effect()}
}

// nodeHealth translates what is known and wanted of a node; nil stays nil.
func nodeHealth(st *engine.NodeHealthStatus) *reprievev1.NodeHealth {
	if st == nil {
		return nil
	}
	out := &reprievev1.NodeHealth{
		Ready: st.Ready.String(), ReadySince: Timestamp(st.Since), Reason: st.Reason, HeartbeatTime: Timestamp(st.HeardAt),
		SilentTime: Timestamp(st.SilentAt), Silent: st.Silent, Zone: st.Zone, Excluded: st.Excluded, PodsPending: st.PodsPending,
		Attempts: st.Attempts, LastOutcome: reprievev1.Outcome(st.LastOutcome), LastMessage: st.LastMessage,
		Hold: reprievev1.HoldReason(st.Hold), Removals: st.Removals, LastRemovalTime: Timestamp(st.RemovedAt),
		ObservedOnly: st.Observed, ReadySinceSeen: st.SinceSeen,
	}
	if d := st.Delivery; d != nil {
		out.Delivery = &reprievev1.Delivery{ExecutorId: d.ExecutorID, SendTime: Timestamp(d.SentAt), Deadline: Timestamp(d.Deadline)}
	}
	for _, t := range st.Taints {
		out.Taints = append(out.Taints, &reprievev1.NodeHealth_HealthTaint{
			Taint: healthTaint(t.Taint), Present: t.Present, Change: reprievev1.NodeHealth_Change(t.Change), Reason: t.Reason,
			Since: Timestamp(t.Since), ChangeTime: Timestamp(t.At), Hold: healthHolds[t.Hold],
		})
	}
	return out
}

// healthHolds are the machine's holds as the API names them.
var healthHolds = map[health.Hold]reprievev1.HoldReason{
	health.HoldNotSynced:  reprievev1.HoldReason_HOLD_REASON_CLUSTER_NOT_SYNCED,
	health.HoldDisruption: reprievev1.HoldReason_HOLD_REASON_DISRUPTION,
	health.HoldRate:       reprievev1.HoldReason_HOLD_REASON_RATE_LIMITED,
}

// ClusterHealth translates what node health knows of a cluster; nil stays nil.
func ClusterHealth(st *engine.ClusterHealth) *reprievev1.ClusterHealth {
	if st == nil {
		return nil
	}
	out := &reprievev1.ClusterHealth{
		Mode: reprievev1.NodeHealthMode(st.Mode), BlindTime: Timestamp(st.BlindSince), SilenceHoldTime: Timestamp(st.HeldSince),
		SilentNodes: uint64(st.Silent), DisruptionTime: Timestamp(st.DisruptedSince), StaleTime: Timestamp(st.StaleSince),
		OtherController: st.Other, OtherControllerTime: Timestamp(st.OtherAt),
	}
	for _, z := range st.Zones {
		out.Zones = append(out.Zones, &reprievev1.ClusterHealth_Zone{
			Name: z.Name, State: reprievev1.ZoneState(z.State), Nodes: uint64(z.Nodes), NotReady: uint64(z.NotReady),
			Waiting: uint64(z.Waiting), TaintRate: z.Rate, NextTaintTime: Timestamp(z.Next),
		})
	}
	return out
}

// NodeExplanation translates all that is known of a node.
func NodeExplanation(x *engine.NodeExplanation) *reprievev1.ExplainNodeResponse {
	return &reprievev1.ExplainNodeResponse{
		Node: NodeView(&x.Node), Now: Timestamp(x.Now), Mode: reprievev1.Mode(x.Mode), SyncState: reprievev1.Cluster_SyncState(x.Sync),
		ClusterHealth: ClusterHealth(x.Cluster), Warnings: x.Warnings, WhatWouldChange: x.Change,
	}
}
