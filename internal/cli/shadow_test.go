package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func sampleShadowReport() *reprievev1.ShadowReport {
	agreement := 96.0 / 97
	long := strings.Repeat("checkout-frontend-", 5) + "7d9c5b6f4-x2kqp"
	return &reprievev1.ShadowReport{
		Cluster: "prod", Since: at(-24 * time.Hour), Until: at(0), Tolerance: durationpb.New(2 * time.Second), Agreement: &agreement,
		Totals:        &reprievev1.ShadowReport_Totals{WouldEvict: 98, EvictedElsewhere: 97, Agreed: 96, Earlier: 1, OnlyHere: 1, OnlyElsewhere: 1},
		DifferenceP50: durationpb.New(12 * time.Millisecond), DifferenceP99: durationpb.New(1234567 * time.Microsecond), DifferenceMax: durationpb.New(4*time.Minute + 59*time.Second),
		Reasons: []*reprievev1.ShadowReport_ReasonCount{
			{Reason: reprievev1.ShadowDifference_REASON_DEFAULT_TOLERATION, Count: 1},
			{Reason: reprievev1.ShadowDifference_REASON_NOT_A_SUBJECT, Count: 1},
			{Reason: reprievev1.ShadowDifference_REASON_NOT_DELETED_YET, Count: 1},
		},
		Differences: []*reprievev1.ShadowDifference{
			{Namespace: "web", Pod: long, Uid: "u1", Node: "ip-10-20-30-40.eu-central-1.compute.internal", DueTime: at(-time.Hour), ObservedDeletionTime: at(-time.Hour - 299*time.Second),
				Difference: durationpb.New(-299 * time.Second), Kind: reprievev1.ShadowDifference_KIND_EARLIER, Reason: reprievev1.ShadowDifference_REASON_DEFAULT_TOLERATION,
				Explanation: "no toleration of the pod matches node.kubernetes.io/not-ready:NoExecute; the policy's default gave it 5m0s"},
			{Namespace: "web", Pod: "api-0", Uid: "u2", Node: "n2", DueTime: at(-time.Second), Kind: reprievev1.ShadowDifference_KIND_ONLY_HERE,
				Reason: reprievev1.ShadowDifference_REASON_NOT_DELETED_YET, Explanation: "it fell due within the tolerance of the report's end"},
			{Namespace: "batch", Pod: "job-17-abcde", Uid: "u3", Node: "n2", ObservedDeletionTime: at(-time.Minute), Kind: reprievev1.ShadowDifference_KIND_ONLY_ELSEWHERE,
				Reason: reprievev1.ShadowDifference_REASON_NOT_A_SUBJECT, Explanation: "it had finished"},
		},
	}
}

func TestShadowReport(t *testing.T) {
	h := newHarness(t)
	h.width = tableWidth
	h.fake.shadow = sampleShadowReport()
	for _, tc := range []struct {
		args, golden string
		code         int
		says         string
	}{
		{"--since 1h --tolerance 1s --limit 3", "shadow-report.txt", exitOK, ""},
		{"-o yaml", "shadow-report-wide.yaml", exitOK, ""},
		{"--fail-below 98", "shadow-report.txt", exitOK, ""},
		{"--fail-below 99", "shadow-report.txt", exitFailure, "agreement is 98.96%, below --fail-below 99"},
		{"--fail-below 101", "", exitUsage, "from 0 to 100"},
		{"--since -1h", "", exitUsage, "--since"},
		{"--limit 0", "", exitUsage, "--limit"},
		{"--tolerance 2h", "", exitUsage, "--tolerance"},
	} {
		code, out, errs := h.run(append(strings.Fields("shadow report --cluster prod"), strings.Fields(tc.args)...)...)
		if code != tc.code || tc.says == "" && errs != "" || !strings.Contains(errs, tc.says) {
			t.Errorf("%s: exit %d, stderr %q", tc.args, code, errs)
		}
		if tc.golden != "" {
			golden(t, tc.golden, out)
		}
	}
	req := h.fake.asked[0].(*reprievev1.GetShadowReportRequest)
	if req.GetCluster() != "prod" || !req.GetSince().AsTime().Equal(epoch.Add(-time.Hour)) || req.GetTolerance().AsDuration() != time.Second || req.GetMaxDifferences() != 3 {
		t.Errorf("asked for %v", req)
	}
	h.fake.shadow = &reprievev1.ShadowReport{Cluster: "prod", Since: at(-time.Hour), Until: at(0), Tolerance: durationpb.New(2 * time.Second)}
	code, out, _ := h.run(strings.Fields("shadow report --cluster prod")...)
	if code != exitOK {
		t.Errorf("nothing to compare: exit %d", code)
	}
	golden(t, "shadow-report-empty.txt", out)
	if code, _, errs := h.run(strings.Fields("shadow report --cluster prod --fail-below 99")...); code != exitFailure || !strings.Contains(errs, "no pod to compare") {
		t.Errorf("nothing to compare, with --fail-below: exit %d, %q", code, errs)
	}
}

// TestShadowStillSetsTheMode: the command has a subcommand beside its argument.
func TestShadowStillSetsTheMode(t *testing.T) {
	for _, args := range []string{"shadow prod", "shadow --cluster report --new-cluster"} {
		h := newHarness(t)
		h.fake.clusters = []*reprievev1.Cluster{{Name: "prod"}}
		if code, out, errs := h.run(strings.Fields(args)...); code != exitOK || !strings.Contains(out, "mode SHADOW") {
			t.Errorf("%s: exit %d, %q, %q", args, code, out, errs)
		}
	}
}

func TestObservedEviction(t *testing.T) {
	h := newHarness(t)
	h.fake.evictions = []*reprievev1.Eviction{{
		Id: "prod/7", Cluster: "prod", Namespace: "batch", Pod: "job-17-abcde", Uid: "u3", Node: "n2", State: reprievev1.EvictionState_EVICTION_STATE_CLOSED,
		CloseReason: reprievev1.CloseReason_CLOSE_REASON_POD_DELETED, CloseTime: at(-time.Minute), ObservedDeletionTime: at(-time.Minute),
		ObservedDisruptionReason: "DeletionByTaintManager", ObservedExplanation: "it had finished", FirstDueTime: at(-2 * time.Minute),
	}}
	code, out, errs := h.run("get", "evictions", "prod/7")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d, stderr %q", code, errs)
	}
	golden(t, "get-eviction-observed.txt", out)
}
