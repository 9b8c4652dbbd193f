package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// takenPod is a pod with the mark of the built-in taint manager.
func takenPod(name, node string, tolerations ...*reprievev1.Toleration) *reprievev1.Event {
	e := upsertPod(name, node, tolerations...)
	e.GetPod().DisruptionReason = "DeletionByTaintManager"
	return e
}

func TestTwoEvictors(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")))
	total := func(want string) {
		t.Helper()
		err := testutil.GatherAndCompare(f.reg, strings.NewReader(`
# HELP reprieve_foreign_evictions_total Pods that another controller evicted for taints while the cluster's mode was ENFORCE.
# TYPE reprieve_foreign_evictions_total counter
reprieve_foreign_evictions_total{cluster="east"} `+want+"\n"), "reprieve_foreign_evictions_total")
		if err != nil {
			t.Error(err)
		}
	}
	total("0")
	x.acked(x.batch(takenPod("p1", "n1", waits("k"))), false)
	total("1")
	c, err := f.query().GetCluster(f.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
	if err != nil || !slices.ContainsFunc(c.GetCluster().GetWarnings(), func(w string) bool {
		return strings.HasPrefix(w, "two evictors: another controller evicts pods for taints: 1 since") && strings.Contains(w, "default/p1")
	}) {
		t.Fatalf("warnings %q, %v", c.GetCluster().GetWarnings(), err)
	}
}

func TestShadowReport(t *testing.T) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	done := upsertPod("done", "n1")
	done.GetPod().Phase = "Succeeded"
	pods := []*reprievev1.Event{upsertPod("p1", "n1"), upsertPod("p2", "n1", waits("k")), upsertPod("p3", "n1"), done}
	x.list(append(pods, upsertNode("n1"))...)
	watch, err := f.query().WatchEvictions(f.ctx, &reprievev1.WatchEvictionsRequest{Cluster: "east", InitialList: true})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetInitialListEnd() == nil {
		t.Fatalf("initial list %v, %v", m, err)
	}
	x.acked(x.batch(upsertNode("n1", "k")), false)
	doneTaken := takenPod("done", "n1")
	doneTaken.GetPod().Phase = "Succeeded"
	x.acked(x.batch(takenPod("p1", "n1"), takenPod("p2", "n1", waits("k")), doneTaken), false)

	// p3 is recorded when its timer has fired, which nothing acknowledges.
	for recorded := false; !recorded; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		e := m.GetChange().GetEviction()
		recorded = e.GetPod() == "p3" && e.GetState() == reprievev1.EvictionState_EVICTION_STATE_CLOSED
	}
	r, err := f.query().GetShadowReport(f.ctx, &reprievev1.GetShadowReportRequest{Cluster: "east", Tolerance: durationpb.New(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	report := r.GetReport()
	want := &reprievev1.ShadowReport_Totals{WouldEvict: 3, EvictedElsewhere: 3, Agreed: 1, Earlier: 1, OnlyHere: 1, OnlyElsewhere: 1}
	if !proto.Equal(report.GetTotals(), want) || report.Agreement == nil || report.GetAgreement() != 1.0/3 {
		t.Fatalf("report %v", report)
	}
	reasons := map[string]reprievev1.ShadowDifference_Reason{}
	for _, d := range report.GetDifferences() {
		reasons[d.GetPod()] = d.GetReason()
	}
	if len(reasons) != 3 || reasons["done"] != reprievev1.ShadowDifference_REASON_NOT_A_SUBJECT ||
		reasons["p2"] != reprievev1.ShadowDifference_REASON_UNEXPLAINED || reasons["p3"] != reprievev1.ShadowDifference_REASON_NOT_DELETED_YET {
		t.Fatalf("differences %v", report.GetDifferences())
	}
	if d := report.GetDifferences()[0]; d.GetPod() != "p2" || d.GetDifference().AsDuration() > -59*time.Minute || d.GetDueTime() == nil || d.GetObservedDeletionTime() == nil {
		t.Fatalf("the greatest difference is %v", d)
	}
	list, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{
		Cluster: "east", Pod: "done", States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED},
	})
	if err != nil || len(list.GetEvictions()) != 1 || list.GetEvictions()[0].GetObservedExplanation() != "it had finished" ||
		list.GetEvictions()[0].GetObservedDisruptionReason() != "DeletionByTaintManager" {
		t.Fatalf("history %v, %v", list, err)
	}
	_, err = f.query().GetShadowReport(f.ctx, &reprievev1.GetShadowReportRequest{Cluster: "east", Since: timestamppb.New(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = f.query().GetShadowReport(f.ctx, &reprievev1.GetShadowReportRequest{Cluster: "west"})
	wantError(t, err, codes.NotFound, "CLUSTER_UNKNOWN")
}
