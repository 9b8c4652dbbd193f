package codec

import (
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// encodeFigures is the stored form of a policy's figures of node health; nil if it sets none.
func encodeFigures(p *engine.PolicyPatch) *storev1.HealthFiguresRecord {
	if p.Fields&engine.PolicyHealthFigures == 0 {
		return nil
	}
	f := &p.HealthFigures
	return &storev1.HealthFiguresRecord{
		Grace: durationpb.New(f.Grace), StartupGrace: durationpb.New(f.StartupGrace),
		Rate: f.Rate, FullRate: f.FullRate, PartialRate: f.PartialRate, SmallRate: f.SmallRate, LargeZone: uint32(f.LargeZone),
		UnhealthyShare: f.UnhealthyShare, UnhealthyNodes: uint32(f.UnhealthyNodes),
		SilenceShare: f.SilenceShare, SilenceWindow: durationpb.New(f.SilenceWindow), DisableSilenceHold: f.DisableSilenceHold,
	}
}

func decodeFigures(m *storev1.HealthFiguresRecord) health.Figures {
	return health.Figures{
		Grace: m.GetGrace().AsDuration(), StartupGrace: m.GetStartupGrace().AsDuration(),
		Rate: m.GetRate(), FullRate: m.GetFullRate(), PartialRate: m.GetPartialRate(), SmallRate: m.GetSmallRate(), LargeZone: int(m.GetLargeZone()),
		UnhealthyShare: m.GetUnhealthyShare(), UnhealthyNodes: int(m.GetUnhealthyNodes()),
		SilenceShare: m.GetSilenceShare(), SilenceWindow: m.GetSilenceWindow().AsDuration(), DisableSilenceHold: m.GetDisableSilenceHold(),
	}
}
