package wire

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// ShadowReport translates a shadow report.
func ShadowReport(r *engine.ShadowReport) *reprievev1.ShadowReport {
	t := &r.Totals
	out := &reprievev1.ShadowReport{
		Cluster: r.Cluster, Since: Timestamp(r.Since), Until: Timestamp(r.Until), Tolerance: durationpb.New(r.Tolerance),
		Totals: &reprievev1.ShadowReport_Totals{
			WouldEvict: uint64(t.WouldEvict), EvictedElsewhere: uint64(t.EvictedElsewhere), Agreed: uint64(t.Agreed),
			Earlier: uint64(t.Earlier), Later: uint64(t.Later), OnlyHere: uint64(t.OnlyHere), OnlyElsewhere: uint64(t.OnlyElsewhere),
		},
		DifferenceP50: durationpb.New(r.P50), DifferenceP99: durationpb.New(r.P99), DifferenceMax: durationpb.New(r.Max),
		DifferencesTruncated: r.DifferencesTruncated, RecordsTruncated: r.RecordsTruncated,
	}
	if share, ok := r.Agreement(); ok {
		out.Agreement = &share
	}
	for reason, n := range r.Reasons {
		out.Reasons = append(out.Reasons, &reprievev1.ShadowReport_ReasonCount{Reason: reprievev1.ShadowDifference_Reason(reason), Count: uint64(n)})
	}
	slices.SortFunc(out.Reasons, func(a, b *reprievev1.ShadowReport_ReasonCount) int { return cmp.Compare(a.Reason, b.Reason) })
	for i := range r.Differences {
		d := &r.Differences[i]
		w := &reprievev1.ShadowDifference{
			Namespace: d.Namespace, Pod: d.Pod, Uid: d.UID, Node: d.Node, DueTime: Timestamp(d.Due), ObservedDeletionTime: Timestamp(d.DeletedAt),
			Kind: reprievev1.ShadowDifference_Kind(d.Kind), Reason: reprievev1.ShadowDifference_Reason(d.Reason), Explanation: d.Explanation,
		}
		if apart, both := d.Apart(); both {
			w.Difference = durationpb.New(apart)
		}
		out.Differences = append(out.Differences, w)
	}
	return out
}
