package codec

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/record"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
)

// EncodeNode is the value of a node's record. Errors of all encoders wrap [store.ErrBadChange].
func EncodeNode(r *engine.NodeRecord) ([]byte, error) {
	m := &storev1.NodeRecord{Uid: r.UID, EpisodeStart: stamp(r.EpisodeStart)}
	for i := range r.Taints {
		m.Taints = append(m.Taints, encodeTaint(&r.Taints[i]))
	}
	var n numbers
	for _, g := range r.Guards {
		m.Guards = append(m.Guards, &storev1.GuardRecord{Key: g.Key, Mark: put(&n, guardMarks, g.Mark), Since: stamp(g.Since)})
	}
	if n.err != nil {
		return nil, n.err
	}
	return marshal(KindNode, m)
}

// DecodeNode reads a node's record. Errors of all decoders wrap [store.ErrDamaged].
func DecodeNode(cluster, name string, b []byte) (*engine.NodeRecord, error) {
	m := &storev1.NodeRecord{}
	if err := unmarshal(KindNode, b, m); err != nil {
		return nil, err
	}
	r := &engine.NodeRecord{Cluster: cluster, Name: name, UID: m.GetUid(), EpisodeStart: instant(m.GetEpisodeStart())}
	for _, t := range m.GetTaints() {
		r.Taints = append(r.Taints, decodeTaint(t))
	}
	var n numbers
	for _, g := range m.GetGuards() {
		r.Guards = append(r.Guards, engine.Guard{Key: g.GetKey(), Mark: get(&n, guardMarks, g.GetMark()), Since: instant(g.GetSince())})
	}
	if n.err != nil {
		return nil, n.err
	}
	return r, nil
}

// EncodeReprieve is the value of a reprieve.
func EncodeReprieve(r *engine.ReprieveRecord) ([]byte, error) {
	return marshal(KindReprieve, &storev1.ReprieveRecord{
		Namespace: r.Namespace, Pod: r.Pod, Reason: text(r.Reason), Actor: text(r.Actor),
		CreatedAt: stamp(r.CreatedAt), Until: stamp(r.Until),
	})
}

// DecodeReprieve reads a reprieve.
func DecodeReprieve(cluster, uid string, b []byte) (*engine.ReprieveRecord, error) {
	m := &storev1.ReprieveRecord{}
	if err := unmarshal(KindReprieve, b, m); err != nil {
		return nil, err
	}
	return &engine.ReprieveRecord{
		Cluster: cluster, Namespace: m.GetNamespace(), Pod: m.GetPod(), UID: uid, Reason: m.GetReason(), Actor: m.GetActor(),
		CreatedAt: instant(m.GetCreatedAt()), Until: instant(m.GetUntil()),
	}, nil
}

// EncodeCluster is the value of a cluster's record. Of the policy only the
// fields that count are written.
func EncodeCluster(r *engine.ClusterRecord) ([]byte, error) {
	policy, err := encodePolicy(&record.Cluster(r).Policy)
	if err != nil {
		return nil, err
	}
	m := &storev1.ClusterRecord{
		ClusterUid: r.UID, AdoptedAt: stamp(r.AdoptedAt), LastLiveAt: stamp(r.LastLiveAt),
		Policy: policy, PolicyVersion: r.PolicyVersion,
	}
	for i := range r.Pauses {
		p := &r.Pauses[i]
		m.Pauses = append(m.Pauses, &storev1.PauseRecord{
			Id: p.ID, Node: p.Node, Namespace: p.Namespace, Reason: text(p.Reason), Actor: text(p.Actor),
			CreatedAt: stamp(p.CreatedAt), Until: stamp(p.Until),
		})
	}
	for i := range r.Blasts {
		b := &r.Blasts[i]
		m.Blasts = append(m.Blasts, &storev1.BlastRecord{
			Key: b.Key, TrippedAt: stamp(b.TrippedAt), Limit: uint64(b.Limit), ClusterNodes: uint64(b.ClusterNodes),
			RejectedAt: stamp(b.RejectedAt), Actor: text(b.Actor), Reason: text(b.Reason),
		})
	}
	m.Health = encodeClusterHealth(&r.Health)
	return marshal(KindCluster, m)
}

// DecodeCluster reads a cluster's record.
func DecodeCluster(name string, b []byte) (*engine.ClusterRecord, error) {
	m := &storev1.ClusterRecord{}
	if err := unmarshal(KindCluster, b, m); err != nil {
		return nil, err
	}
	policy, err := decodePolicy(m.GetPolicy())
	if err != nil {
		return nil, err
	}
	r := &engine.ClusterRecord{
		Name: name, UID: m.GetClusterUid(), AdoptedAt: instant(m.GetAdoptedAt()), LastLiveAt: instant(m.GetLastLiveAt()),
		Policy: policy, PolicyVersion: m.GetPolicyVersion(), Health: decodeClusterHealth(m.GetHealth()),
	}
	for _, p := range m.GetPauses() {
		r.Pauses = append(r.Pauses, engine.Pause{
			ID: p.GetId(), Node: p.GetNode(), Namespace: p.GetNamespace(), Reason: p.GetReason(), Actor: p.GetActor(),
			CreatedAt: instant(p.GetCreatedAt()), Until: instant(p.GetUntil()),
		})
	}
	for _, b := range m.GetBlasts() {
		r.Blasts = append(r.Blasts, engine.BlastRecord{
			Key: b.GetKey(), TrippedAt: instant(b.GetTrippedAt()), Limit: int(b.GetLimit()), ClusterNodes: int(b.GetClusterNodes()),
			RejectedAt: instant(b.GetRejectedAt()), Actor: b.GetActor(), Reason: b.GetReason(),
		})
	}
	return r, nil
}

func encodePolicy(p *engine.PolicyPatch) (*storev1.PolicyRecord, error) {
	if p.Burst < 0 || int64(p.Burst) > math.MaxUint32 {
		return nil, fmt.Errorf("%w: burst %d has no stored form", store.ErrBadChange, p.Burst)
	}
	if p.BlastRadius.MinNodes < 0 || int64(p.BlastRadius.MinNodes) > math.MaxUint32 {
		return nil, fmt.Errorf("%w: min_nodes %d has no stored form", store.ErrBadChange, p.BlastRadius.MinNodes)
	}
	var n numbers
	fields, err := encodeFields(p.Fields)
	n.note(err)
	m := &storev1.PolicyRecord{
		Fields: fields, Mode: put(&n, modes, p.Mode), Method: put(&n, methods, p.Method),
		DefaultNotReadyToleration:    durationpb.New(p.DefaultNotReady),
		DefaultUnreachableToleration: durationpb.New(p.DefaultUnreachable),
		DisableDefaultTolerations:    p.DisableDefaults,
		RatePerSecond:                p.RatePerSecond, RateBurst: uint32(p.Burst), UnlimitedRate: p.UnlimitedRate,
		BudgetWait: durationpb.New(p.BudgetWait), IgnoredTaintKeys: p.IgnoredTaintKeys,
		ExcludedNamespaces: p.ExcludedNamespaces, ComparisonOperators: p.ComparisonOperators,
		BlastMaxNodeShare: p.BlastRadius.MaxNodeShare, BlastWindow: durationpb.New(p.BlastRadius.Window),
		BlastMinNodes: uint32(p.BlastRadius.MinNodes), DisableBlastRadius: p.DisableBlastRadius,
		NodeHealth: put(&n, nodeHealths, p.NodeHealth), HealthFigures: encodeFigures(p),
	}
	return m, n.err
}

func decodePolicy(m *storev1.PolicyRecord) (engine.PolicyPatch, error) {
	var n numbers
	fields, err := decodeFields(m.GetFields())
	n.note(err)
	p := engine.PolicyPatch{Fields: fields, Policy: engine.Policy{
		Mode: get(&n, modes, m.GetMode()), Method: get(&n, methods, m.GetMethod()),
		DefaultNotReady:    m.GetDefaultNotReadyToleration().AsDuration(),
		DefaultUnreachable: m.GetDefaultUnreachableToleration().AsDuration(),
		DisableDefaults:    m.GetDisableDefaultTolerations(),
		RatePerSecond:      m.GetRatePerSecond(), Burst: int(m.GetRateBurst()), UnlimitedRate: m.GetUnlimitedRate(),
		BudgetWait: m.GetBudgetWait().AsDuration(), IgnoredTaintKeys: m.GetIgnoredTaintKeys(),
		ExcludedNamespaces: m.GetExcludedNamespaces(), ComparisonOperators: m.GetComparisonOperators(),
		BlastRadius: engine.BlastRadius{
			MaxNodeShare: m.GetBlastMaxNodeShare(), Window: m.GetBlastWindow().AsDuration(), MinNodes: int(m.GetBlastMinNodes()),
		},
		DisableBlastRadius: m.GetDisableBlastRadius(),
		NodeHealth:         get(&n, nodeHealths, m.GetNodeHealth()), HealthFigures: decodeFigures(m.GetHealthFigures()),
	}}
	return p, n.err
}

// numbers collects the first error of a row of enums.
type numbers struct{ err error }

func (n *numbers) note(err error) {
	if n.err == nil {
		n.err = err
	}
}

func put[T ~uint8](n *numbers, e enum[T], v T) uint32 {
	stored, err := e.number(v)
	n.note(err)
	return stored
}

func get[T ~uint8](n *numbers, e enum[T], stored uint32) T {
	v, err := e.value(stored)
	n.note(err)
	return v
}

func encodeTaint(t *engine.Taint) *storev1.TaintRecord {
	return &storev1.TaintRecord{Key: t.Key, Value: t.Value, TimeAdded: stamp(t.TimeAdded), Start: stamp(t.Start)}
}

func decodeTaint(m *storev1.TaintRecord) engine.Taint {
	return engine.Taint{Key: m.GetKey(), Value: m.GetValue(), TimeAdded: instant(m.GetTimeAdded()), Start: instant(m.GetStart())}
}

func decodeToleration(m *storev1.TolerationRecord) *corev1.Toleration {
	if m == nil {
		return nil
	}
	return &corev1.Toleration{
		Key: m.GetKey(), Operator: corev1.TolerationOperator(m.GetOperator()), Value: m.GetValue(),
		Effect: corev1.TaintEffect(m.GetEffect()), TolerationSeconds: m.Seconds,
	}
}

// stamp is the stored form of an instant; the zero time is stored as none.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func instant(m *timestamppb.Timestamp) time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.AsTime()
}

// text makes what people or executors wrote fit for a message, which takes only
// valid UTF-8: one bad byte in a reason must not keep a batch from the disk.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
