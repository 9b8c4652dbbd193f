package codec

import (
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store"
	"google.golang.org/protobuf/types/known/durationpb"
)

// EncodeHealth is the value of a node's health.
func EncodeHealth(r *engine.NodeHealthRecord) ([]byte, error) {
	var n numbers
	m := &storev1.NodeHealthRecord{
		Uid: r.UID, SilentAt: stamp(r.SilentAt), Ready: put(&n, statuses, r.Ready), Since: stamp(r.Since),
		QueuedAt: stamp(r.QueuedAt), GrantedAt: stamp(r.GrantedAt), PodsPending: r.PodsPending,
		Heartbeat: stamp(r.Heartbeat), Renew: stamp(r.Renew),
		OrderedUnknown: r.Ordered.Unknown, OrderedPods: r.Ordered.MarkPods,
		OrderedAdd: encodeTaints(&n, r.Ordered.Add), OrderedRemove: encodeTaints(&n, r.Ordered.Remove),
		Removals: r.Removals, RemovedAt: stamp(r.RemovedAt),
		Delivery: encodeDelivery(&n, r.Delivery), Attempts: r.Attempts, NotBefore: stamp(r.NotBefore),
		LastOutcome: put(&n, outcomes, r.LastOutcome), LastMessage: text(r.LastMessage),
	}
	if n.err != nil {
		return nil, n.err
	}
	return marshal(KindHealth, m)
}

// DecodeHealth reads a node's health.
func DecodeHealth(cluster, name string, b []byte) (*engine.NodeHealthRecord, error) {
	m := &storev1.NodeHealthRecord{}
	if err := unmarshal(KindHealth, b, m); err != nil {
		return nil, err
	}
	var n numbers
	r := &engine.NodeHealthRecord{
		Cluster: cluster,
		Record: health.Record{
			Name: name, UID: m.GetUid(), SilentAt: instant(m.GetSilentAt()), Ready: get(&n, statuses, m.GetReady()), Since: instant(m.GetSince()),
			QueuedAt: instant(m.GetQueuedAt()), GrantedAt: instant(m.GetGrantedAt()), PodsPending: m.GetPodsPending(),
			Heartbeat: instant(m.GetHeartbeat()), Renew: instant(m.GetRenew()),
			Ordered: health.Ordered{
				Unknown: m.GetOrderedUnknown(), MarkPods: m.GetOrderedPods(),
				Add: decodeTaints(&n, m.GetOrderedAdd()), Remove: decodeTaints(&n, m.GetOrderedRemove()),
			},
			Removals: m.GetRemovals(), RemovedAt: instant(m.GetRemovedAt()),
		},
		Delivery: decodeDelivery(&n, m.GetDelivery()), Attempts: m.GetAttempts(), NotBefore: instant(m.GetNotBefore()),
		LastOutcome: get(&n, outcomes, m.GetLastOutcome()), LastMessage: m.GetLastMessage(),
	}
	return r, n.err
}

func encodeDelivery(n *numbers, d *engine.Delivery) *storev1.DeliveryRecord {
	if d == nil {
		return nil
	}
	return &storev1.DeliveryRecord{
		Token: d.Token, ExecutorId: d.ExecutorID, SentAt: stamp(d.SentAt), Deadline: stamp(d.Deadline),
		Recall: put(n, recallReasons, d.Recall), RecallCause: put(n, cancelCauses, d.RecallCause),
	}
}

func encodeTaints(n *numbers, set health.TaintSet) (bits uint32) {
	for _, t := range set.List() {
		bits |= 1 << put(n, healthTaints, t)
	}
	return bits
}

func decodeTaints(n *numbers, bits uint32) (set health.TaintSet) {
	if bits>>len(healthTaints.values) != 0 {
		n.note(fmt.Errorf("%w: taints %b are not known", store.ErrDamaged, bits))
	}
	for i, t := range healthTaints.values {
		if bits&(1<<i) != 0 {
			set |= health.Set(t)
		}
	}
	return set
}

func encodeClusterHealth(r *health.ClusterRecord) *storev1.ClusterHealthRecord {
	if len(r.Grants) == 0 && r.Other == "" {
		return nil
	}
	m := &storev1.ClusterHealthRecord{OtherController: text(r.Other), OtherControllerAt: stamp(r.OtherAt)}
	for _, g := range r.Grants {
		m.Grants = append(m.Grants, &storev1.ZoneGrantRecord{Zone: g.Zone, At: stamp(g.At)})
	}
	return m
}

func decodeClusterHealth(m *storev1.ClusterHealthRecord) health.ClusterRecord {
	r := health.ClusterRecord{Other: m.GetOtherController(), OtherAt: instant(m.GetOtherControllerAt())}
	for _, g := range m.GetGrants() {
		r.Grants = append(r.Grants, health.Grant{Zone: g.GetZone(), At: instant(g.GetAt())})
	}
	return r
}

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
