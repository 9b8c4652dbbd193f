package wire

import (
	"google.golang.org/protobuf/types/known/durationpb"

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
