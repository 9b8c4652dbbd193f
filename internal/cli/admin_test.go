package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// TestCalls checks what each steering command asks of the service and prints.
func TestCalls(t *testing.T) {
	enforce := reprievev1.Mode_MODE_ENFORCE
	method := reprievev1.EvictionMethod_EVICTION_METHOD_EVICT_THEN_DELETE
	for name, tc := range map[string]struct {
		args []string
		out  string
		last proto.Message
	}{
		"pause": {
			[]string{"pause", "prod", "--node", "n7", "--reason", "disk", "--for", "2h"},
			"Paused node n7 in prod (pause p1); ends in 2h00m.\n",
			&reprievev1.PauseEvictionsRequest{Cluster: "prod", Node: "n7", Reason: "disk", EndTime: at(2 * time.Hour)},
		},
		"pause until resumed": {
			[]string{"pause", "--cluster", "prod", "-n", "web", "--reason", "x"},
			"Paused namespace web in prod (pause p1); ends when resumed.\n",
			&reprievev1.PauseEvictionsRequest{Cluster: "prod", Namespace: "web", Reason: "x"},
		},
		"resume": {
			[]string{"resume", "prod", "--yes"},
			"Resumed whole cluster in prod: 3 due evictions released.\n",
			&reprievev1.ResumeEvictionsRequest{Cluster: "prod"},
		},
		"resume dry run": {
			[]string{"resume", "prod", "--dry-run", "--id", "p1"},
			"Would resume pause p1 in prod: 3 due evictions released.\n",
			&reprievev1.ResumeEvictionsRequest{Cluster: "prod", PauseId: "p1", ValidateOnly: true},
		},
		"enforce": {
			[]string{"enforce", "prod", "-y"},
			"Set the policy of prod: mode ENFORCE (due evictions are sent); 3 pods became due.\n",
			&reprievev1.SetPolicyRequest{Cluster: "prod", Policy: &reprievev1.ClusterPolicy{Mode: &enforce}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"mode"}}, Etag: "e7"},
		},
		"policy set": {
			[]string{"policy", "set", "prod", "--yes", "method=evict-then-delete", "rate=2.5/10", "default_not_ready_toleration=1m30s", "ignored_taint_keys=a, b", "unlimitedRate=true", "--unset", "budget_wait"},
			"Set the policy of prod (method, rate, default_not_ready_toleration, ignored_taint_keys, unlimited_rate, budget_wait): mode -; 3 pods became due.\n",
			&reprievev1.SetPolicyRequest{Cluster: "prod", Etag: "e7", Policy: &reprievev1.ClusterPolicy{
				Method: &method, Rate: &reprievev1.Rate{PerSecond: 2.5, Burst: 10}, DefaultNotReadyToleration: durationpb.New(90 * time.Second),
				IgnoredTaintKeys: []string{"a", "b"}, UnlimitedRate: proto.Bool(true),
			}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"method", "rate", "default_not_ready_toleration", "ignored_taint_keys", "unlimited_rate", "budget_wait"}}},
		},
		"grant": {
			[]string{"grant", "api-0", "-n", "web", "--cluster", "prod", "--reason", "r", "--until", "2026-01-01T13:00:00Z"},
			"Granted web/api-0 (uid uid-1) a reprieve; ends in 1h00m.\n",
			&reprievev1.GrantReprieveRequest{Cluster: "prod", Pod: &reprievev1.PodRef{Namespace: "web", Name: "api-0"}, Reason: "r", EndTime: at(time.Hour)},
		},
		"revoke": {
			[]string{"revoke", "--uid", "u1", "--cluster", "prod"},
			"Revoked the reprieve of uid u1.\n",
			&reprievev1.RevokeReprieveRequest{Cluster: "prod", Pod: &reprievev1.PodRef{Uid: "u1"}},
		},
		"request": {
			[]string{"request", "web/api-0", "--cluster", "prod", "--requester", "k", "--request-id", "1"},
			"Requested web/frontend-7d9c5: eviction prod/1 is WAITING, in 4m12s.\n",
			&reprievev1.RequestEvictionRequest{Cluster: "prod", Pod: &reprievev1.PodRef{Namespace: "web", Name: "api-0"}, Requester: "k", RequestId: "1"},
		},
		"withdraw": {
			[]string{"withdraw", "--cluster", "prod", "--requester", "k", "--request-id", "1"},
			"Withdrew a request for web/old: eviction prod/5 is CLOSED CANCELLED REQUEST_WITHDRAWN.\n",
			&reprievev1.WithdrawEvictionRequest{Cluster: "prod", Requester: "k", RequestId: "1"},
		},
		"blast release": {
			[]string{"blast", "release", "prod", "--yes"},
			"Released taint example.com/mistake in prod: 3 due evictions.\n",
			// By its name: another key may have tripped since it was shown.
			&reprievev1.ReleaseBlastRadiusRequest{Cluster: "prod", Key: "example.com/mistake"},
		},
		"blast release dry run": {
			[]string{"blast", "release", "prod", "--key", "example.com/mistake", "--dry-run"},
			"Would release taint example.com/mistake in prod: 3 due evictions.\n",
			&reprievev1.ReleaseBlastRadiusRequest{Cluster: "prod", Key: "example.com/mistake", ValidateOnly: true},
		},
		"blast reject": {
			[]string{"blast", "reject", "--cluster", "prod", "--reason", "a typo"},
			"KEY                  STATE    SINCE      NODES  HELD  REJ  PODS  WHERE\n" +
				"example.com/mistake  TRIPPED  2m00s ago  50     40    0    39    n1,n2\n" +
				"Rejected taint example.com/mistake in prod: 3 pods stay.\n",
			&reprievev1.RejectBlastRadiusRequest{Cluster: "prod", Reason: "a typo"},
		},
		"blast list": {
			[]string{"blast", "list", "prod"},
			"KEY                  STATE     SINCE      NODES  HELD  REJ  PODS  WHERE\n" +
				"example.com/mistake  TRIPPED   2m00s ago  50     40    0    39    n1,n2\n" +
				"example.com/old      REJECTED  1h00m ago  5      0     5    0     n9\n",
			&reprievev1.ListBlastRadiusTripsRequest{Cluster: "prod"},
		},
		"forget": {
			[]string{"forget", "prod", "--yes"},
			"Forgot cluster prod.\n",
			&reprievev1.ForgetClusterRequest{Cluster: "prod", Confirm: "prod"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.fake.impact, h.fake.evictions, h.fake.clusters = 3, sampleEvictions()[:5], sampleClusters()
			h.fake.trips = sampleTrips()
			code, out, errs := h.run(tc.args...)
			if code != exitOK || out != tc.out {
				t.Fatalf("exit %d, stderr %q, output %q, want %q", code, errs, out, tc.out)
			}
			last := h.fake.asked[len(h.fake.asked)-1]
			if diff := cmp.Diff(tc.last, last, protocmp.Transform()); diff != "" {
				t.Errorf("the last call differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConfirm checks that nothing is changed without a yes.
func TestConfirm(t *testing.T) {
	for name, tc := range map[string]struct {
		tty     bool
		in      string
		code    int
		changed bool
		stderr  string
	}{
		"no terminal": {code: exitUsage, stderr: "reprieve: enforce: This change to cluster prod makes 3 pods due at once; not confirmed: give --yes to do it without being asked\n"},
		"yes":         {tty: true, in: "yes\n", changed: true, stderr: "This change to cluster prod makes 3 pods due at once.\nGo on? [y/N] "},
		"no":          {tty: true, in: "n\n", code: exitFailure, stderr: "This change to cluster prod makes 3 pods due at once.\nGo on? [y/N] reprieve: enforce: not confirmed: nothing was changed\n"},
		"end of input": {tty: true, code: exitFailure,
			stderr: "This change to cluster prod makes 3 pods due at once.\nGo on? [y/N] reprieve: enforce: not confirmed: nothing was changed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.fake.impact, h.fake.clusters, h.tty, h.in = 3, sampleClusters(), tc.tty, tc.in
			code, _, errs := h.run("enforce", "prod")
			if code != tc.code || errs != tc.stderr {
				t.Errorf("exit %d, want %d; stderr %q, want %q", code, tc.code, errs, tc.stderr)
			}
			changed := false
			for _, a := range h.fake.asked {
				if r, ok := a.(*reprievev1.SetPolicyRequest); ok && !r.GetValidateOnly() {
					changed = true
				}
			}
			if changed != tc.changed {
				t.Errorf("changed %v, want %v", changed, tc.changed)
			}
		})
	}
}

// TestNewCluster checks that a mistyped cluster is not made known by accident.
func TestNewCluster(t *testing.T) {
	acts := map[string][]string{
		"pause":      {"pause", "prd", "--reason", "x"},
		"enforce":    {"enforce", "prd", "--yes"},
		"dry run":    {"enforce", "prd", "--dry-run"},
		"shadow":     {"shadow", "prd"},
		"policy set": {"policy", "set", "--cluster", "prd", "--yes", "rate=5/10"},
	}
	changes := func(h *harness) (n int) {
		for _, a := range h.fake.asked {
			switch a.(type) {
			case *reprievev1.PauseEvictionsRequest, *reprievev1.SetPolicyRequest:
				n++ // A question for the impact is not recorded for a cluster that is not known.
			}
		}
		return n
	}
	for name, args := range acts {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.fake.clusters = sampleClusters()
			h.fake.clusters[1].Name = "staging"
			code, out, errs := h.run(args...)
			want := ": cluster prd is not known to the service (known: prod, staging, new); add --new-cluster to prepare it before its feed joins\n"
			if code != exitFailure || !strings.HasSuffix(errs, want) || out != "" || changes(h) != 0 {
				t.Errorf("exit %d, stderr %q, output %q, %d changes", code, errs, out, changes(h))
			}
			if code, _, errs := h.run(append(args, "--new-cluster")...); code != exitOK || errs != "" || (changes(h) == 0) != (name == "dry run") {
				t.Errorf("--new-cluster: exit %d, stderr %q, %d changes", code, errs, changes(h))
			}
		})
	}
	// Who may pause but not look is warned; the pause is made.
	h := newHarness(t)
	h.fake.unseen = true
	code, out, errs := h.run("pause", "prd", "--reason", "x")
	if code != exitOK || !strings.HasPrefix(out, "Paused ") || !strings.Contains(errs, "warning: cannot tell whether the service knows cluster prd") {
		t.Errorf("exit %d, stderr %q, output %q", code, errs, out)
	}
}

func TestPolicyFileAndGet(t *testing.T) {
	h := newHarness(t)
	h.fake.clusters = sampleClusters()
	h.in = "mode: shadow\nrate: {per_second: 5, burst: 6}\ndefault_unreachable_toleration: 2m\nexcluded_namespaces: [kube-system]\n"
	if code, _, errs := h.run("policy", "set", "--cluster", "prod", "-f", "-"); code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	shadow := reprievev1.Mode_MODE_SHADOW
	want := &reprievev1.ClusterPolicy{Mode: &shadow, Rate: &reprievev1.Rate{PerSecond: 5, Burst: 6},
		DefaultUnreachableToleration: durationpb.New(2 * time.Minute), ExcludedNamespaces: []string{"kube-system"}}
	got := h.fake.asked[len(h.fake.asked)-1].(*reprievev1.SetPolicyRequest)
	if diff := cmp.Diff(want, got.GetPolicy(), protocmp.Transform()); diff != "" {
		t.Errorf("policy differs (-want +got):\n%s", diff)
	}
	h.fake.policy = want
	code, out, _ := h.run("policy", "get", "prod")
	if code != exitOK || out != "mode=SHADOW\ndefault_unreachable_toleration=120s\nrate=5/6   (set by an operator)\nexcluded_namespaces=kube-system\n# etag e7\n" {
		t.Errorf("exit %d, output %q", code, out)
	}
	h.in = "mood: shadow\n"
	if code, _, errs := h.run("policy", "set", "--cluster", "prod", "-f", "-"); code != exitUsage || !strings.Contains(errs, `no field "mood"`) {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// TestPolicyWarnings shows what the service warns of, once, and goes on.
func TestPolicyWarnings(t *testing.T) {
	h := newHarness(t)
	h.fake.clusters = sampleClusters()
	h.fake.warnings = []string{"budget_wait has no effect"}
	code, _, errs := h.run("policy", "set", "--cluster", "prod", "budget_wait=5m")
	if code != exitOK || errs != "warning: budget_wait has no effect\n" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// TestBlastReleaseTellsWhatWent has the second of three keys fail: what the first
// let go is told before the error.
func TestBlastReleaseTellsWhatWent(t *testing.T) {
	for format, want := range map[string]string{
		"table": "Released taint a in prod: 3 due evictions.\n",
		"json":  `"released": "3"`,
	} {
		h := newHarness(t)
		h.fake.impact, h.fake.stuckKey = 3, "b"
		for _, key := range []string{"a", "b", "c"} {
			h.fake.trips = append(h.fake.trips, &reprievev1.BlastRadiusTrip{Cluster: "prod", Key: key, TripTime: at(-time.Minute)})
		}
		code, out, errs := h.run("blast", "release", "prod", "--yes", "-o", format)
		if code != exitUnavailable || !strings.Contains(out, want) || strings.Contains(out, `"b"`) || !strings.Contains(errs, "starting") {
			t.Errorf("%s: exit %d, stderr %q, output %q", format, code, errs, out)
		}
	}
}

func sampleTrips() []*reprievev1.BlastRadiusTrip {
	return []*reprievev1.BlastRadiusTrip{
		{Cluster: "prod", Key: "example.com/mistake", TripTime: at(-2 * time.Minute), NodeLimit: 10, ClusterNodes: 50, Nodes: 50, HeldNodes: 40, NodeNames: []string{"n1", "n2"}, HeldEvictions: 39},
		{Cluster: "prod", Key: "example.com/old", RejectTime: at(-time.Hour), Nodes: 5, RejectedNodes: 5, NodeNames: []string{"n9"}, Actor: "me"},
	}
}
