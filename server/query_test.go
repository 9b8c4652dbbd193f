package server

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// waiting is a service with a cluster in which n pods wait.
func waiting(t *testing.T, n int) (*fixture, *feed) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	events := []*reprievev1.Event{upsertNode("n1", "k"), upsertNode("n2")}
	for i := range n {
		events = append(events, upsertPod("p"+strconv.Itoa(i), "n1", waits("k")))
	}
	x.list(events...)
	return f, x
}

func TestListEvictionsByPages(t *testing.T) {
	f, _ := waiting(t, 5)
	seen := map[string]bool{}
	req := &reprievev1.ListEvictionsRequest{PageSize: 2}
	for pages := 1; ; pages++ {
		got, err := f.query().ListEvictions(f.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got.GetEvictions() {
			seen[e.GetUid()] = true
		}
		if req.PageToken = got.GetNextPageToken(); req.GetPageToken() == "" {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if len(seen) != 5 {
		t.Errorf("listed %v", seen)
	}
	for name, tc := range map[string]struct {
		req  *reprievev1.ListEvictionsRequest
		want int
	}{
		"pod":    {&reprievev1.ListEvictionsRequest{Pod: "p1"}, 1},
		"node":   {&reprievev1.ListEvictionsRequest{Cluster: "east", Node: "n2"}, 0},
		"state":  {&reprievev1.ListEvictionsRequest{States: []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_WAITING}}, 5},
		"hold":   {&reprievev1.ListEvictionsRequest{Holds: []reprievev1.HoldReason{reprievev1.HoldReason_HOLD_REASON_PAUSED}}, 0},
		"before": {&reprievev1.ListEvictionsRequest{DueBefore: timestamppb.New(f.svc.deps.Clock.Now())}, 0},
	} {
		if got, err := f.query().ListEvictions(f.ctx, tc.req); err != nil || len(got.GetEvictions()) != tc.want {
			t.Errorf("by %s: %v, %v", name, got, err)
		}
	}
}

func TestListEvictionsRefusals(t *testing.T) {
	f, _ := waiting(t, 0)
	closed := []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED}
	now := timestamppb.Now()
	for field, req := range map[string]*reprievev1.ListEvictionsRequest{
		"cluster":    {States: closed},
		"states":     {Cluster: "east", States: append(closed, reprievev1.EvictionState_EVICTION_STATE_DUE)},
		"holds":      {Cluster: "east", States: closed, Holds: []reprievev1.HoldReason{reprievev1.HoldReason_HOLD_REASON_PAUSED}},
		"due_before": {Cluster: "east", States: closed, DueBefore: now},
		"page_size":  {PageSize: 1001},
	} {
		_, err := f.query().ListEvictions(f.ctx, req)
		if st := wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); len(fieldsOf(st)) != 1 || fieldsOf(st)[0] != field {
			t.Errorf("fields %v; want %s", fieldsOf(st), field)
		}
	}
	_, err := f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{ClosedAfter: now})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{PageToken: "x"})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = f.query().ListEvictions(f.ctx, &reprievev1.ListEvictionsRequest{Cluster: "west"})
	wantError(t, err, codes.NotFound, "CLUSTER_UNKNOWN")
	_, err = f.query().GetEviction(f.ctx, &reprievev1.GetEvictionRequest{Id: "no id"})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = f.query().GetEviction(f.ctx, &reprievev1.GetEvictionRequest{Id: "east/999"})
	wantError(t, err, codes.NotFound, "EVICTION_UNKNOWN")
}

func TestExplainSimulateAndNodes(t *testing.T) {
	f, _ := waiting(t, 1)
	x, err := f.query().ExplainPod(f.ctx, &reprievev1.ExplainPodRequest{Cluster: "east", Pod: &reprievev1.PodRef{Uid: "uid-p0"}})
	if err != nil || x.GetDecision().GetVerdict() != reprievev1.Decision_VERDICT_LEAVE || len(x.GetDecision().GetSteps()) != 1 || x.GetEviction() == nil {
		t.Errorf("explanation %v, %v", x, err)
	}
	_, err = f.query().ExplainPod(f.ctx, &reprievev1.ExplainPodRequest{Cluster: "east", Pod: &reprievev1.PodRef{Uid: "other"}})
	wantError(t, err, codes.NotFound, "POD_UNKNOWN")
	_, err = f.query().ExplainPod(f.ctx, &reprievev1.ExplainPodRequest{Cluster: "east", Pod: &reprievev1.PodRef{Name: "p0"}})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	taints := []*reprievev1.SimulateRequest_HypotheticalTaint{{Node: "n1", Key: "other"}}
	s, err := f.query().Simulate(f.ctx, &reprievev1.SimulateRequest{Cluster: "east", Taints: taints})
	if err != nil || len(s.GetPods()) != 1 || s.GetPods()[0].GetDueIn().AsDuration() != 0 {
		t.Errorf("simulation %v, %v", s, err)
	}
	taints[0].Node = "nowhere"
	_, err = f.query().Simulate(f.ctx, &reprievev1.SimulateRequest{Cluster: "east", Taints: taints})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	for all, want := range map[bool]int{false: 1, true: 2} {
		if n, err := f.query().ListNodes(f.ctx, &reprievev1.ListNodesRequest{Cluster: "east", All: all}); err != nil || len(n.GetNodes()) != want {
			t.Errorf("nodes %v, %v", n, err)
		}
	}
}

func TestPolicyOverTheAPI(t *testing.T) {
	f, _ := waiting(t, 1)
	mode := reprievev1.Mode_MODE_ENFORCE
	set := &reprievev1.SetPolicyRequest{Cluster: "east", Policy: &reprievev1.ClusterPolicy{
		Mode: &mode, BudgetWait: durationpb.New(time.Minute), IgnoredTaintKeys: []string{"k2"},
	}}
	got, err := f.admin().SetPolicy(f.ctx, set)
	if err != nil || got.GetPolicy().GetMode() != mode || got.GetStored().GetBudgetWait().AsDuration() != time.Minute || got.GetStored().GetRate() != nil {
		t.Fatalf("policy %v, %v", got, err)
	}
	set.Etag = "old"
	_, err = f.admin().SetPolicy(f.ctx, set)
	wantError(t, err, codes.Aborted, "ETAG_MISMATCH")
	// Of two fields there the mask takes one, and it takes one back that is not there.
	set = &reprievev1.SetPolicyRequest{Cluster: "east", Etag: got.GetEtag(), UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"budget_wait", "ignored_taint_keys"}},
		Policy: &reprievev1.ClusterPolicy{Mode: reprievev1.Mode_MODE_SHADOW.Enum(), BudgetWait: durationpb.New(time.Hour)}}
	got, err = f.admin().SetPolicy(f.ctx, set)
	if err != nil || got.GetStored().GetMode() != mode || got.GetStored().GetBudgetWait().AsDuration() != time.Hour || len(got.GetStored().GetIgnoredTaintKeys()) != 0 {
		t.Fatalf("policy by mask %v, %v", got, err)
	}
	read, err := f.admin().GetPolicy(f.ctx, &reprievev1.GetPolicyRequest{Cluster: "east"})
	if err != nil || read.GetEtag() != got.GetEtag() || read.GetPolicy().GetRate().GetBurst() != 100 {
		t.Fatalf("policy %v, %v", read, err)
	}
	set.UpdateMask.Paths, set.Etag = []string{"modes"}, ""
	_, err = f.admin().SetPolicy(f.ctx, set)
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	unlimited := true
	_, err = f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{Cluster: "east", Policy: &reprievev1.ClusterPolicy{
		UnlimitedRate: &unlimited, Rate: &reprievev1.Rate{PerSecond: 1, Burst: 1},
	}})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{Cluster: "east", Policy: &reprievev1.ClusterPolicy{
		ExcludedNamespaces: []string{"kube-system", "*"},
	}})
	st := wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	if fields := fieldsOf(st); !slices.Equal(fields, []string{"policy.excluded_namespaces[1]"}) {
		t.Errorf("a pattern for a namespace: fields %q", fields)
	}
}

// TestPolicyWarns sets fields that contradict each other, and says so in a dry
// run and in earnest.
func TestPolicyWarns(t *testing.T) {
	f, _ := waiting(t, 1)
	off, evict := true, reprievev1.EvictionMethod_EVICTION_METHOD_EVICT
	for _, dry := range []bool{true, false} {
		got, err := f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{Cluster: "east", ValidateOnly: dry, Policy: &reprievev1.ClusterPolicy{
			BudgetWait: durationpb.New(time.Minute), Method: &evict, DisableDefaultTolerations: &off,
			DefaultNotReadyToleration: durationpb.New(time.Hour),
		}})
		want := []string{
			"budget_wait has no effect: the method is EVICT, and only EVICT_THEN_DELETE waits",
			"default_not_ready_toleration has no effect: disable_default_tolerations is set",
		}
		if err != nil || !slices.Equal(got.GetWarnings(), want) {
			t.Errorf("dry run %v: warnings %q, %v", dry, got.GetWarnings(), err)
		}
	}
	then := reprievev1.EvictionMethod_EVICTION_METHOD_EVICT_THEN_DELETE
	got, err := f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{Cluster: "east", Policy: &reprievev1.ClusterPolicy{Method: &then},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"method", "default_not_ready_toleration"}}})
	if err != nil || len(got.GetWarnings()) != 0 {
		t.Errorf("warnings %q, %v", got.GetWarnings(), err)
	}
}

func TestReprievesAndForget(t *testing.T) {
	f, _ := waiting(t, 1)
	pod := &reprievev1.PodRef{Namespace: "default", Name: "p0"}
	end := timestamppb.New(f.svc.deps.Clock.Now().Add(time.Hour))
	g, err := f.admin().GrantReprieve(f.ctx, &reprievev1.GrantReprieveRequest{Cluster: "east", Pod: pod, Reason: "backup runs", EndTime: end})
	if err != nil || g.GetReprieve().GetUid() != "uid-p0" || g.GetReprieve().GetActor() != "anonymous" {
		t.Fatalf("reprieve %v, %v", g, err)
	}
	if l, err := f.query().ListReprieves(f.ctx, &reprievev1.ListReprievesRequest{Cluster: "east"}); err != nil || len(l.GetReprieves()) != 1 {
		t.Errorf("reprieves %v, %v", l, err)
	}
	if _, err := f.admin().RevokeReprieve(f.ctx, &reprievev1.RevokeReprieveRequest{Cluster: "east", Pod: pod}); err != nil {
		t.Error(err)
	}
	_, err = f.admin().RevokeReprieve(f.ctx, &reprievev1.RevokeReprieveRequest{Cluster: "east", Pod: pod})
	wantError(t, err, codes.NotFound, "REPRIEVE_UNKNOWN")
	_, err = f.admin().ForgetCluster(f.ctx, &reprievev1.ForgetClusterRequest{Cluster: "east", Confirm: "west"})
	wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	if _, err := f.admin().ForgetCluster(f.ctx, &reprievev1.ForgetClusterRequest{Cluster: "east", Confirm: "east"}); err != nil {
		t.Error(err)
	}
	_, err = f.query().GetCluster(f.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
	wantError(t, err, codes.NotFound, "CLUSTER_UNKNOWN")
}

func TestWatchEvictions(t *testing.T) {
	f, x := waiting(t, 3)
	w, err := f.query().WatchEvictions(f.ctx, &reprievev1.WatchEvictionsRequest{Cluster: "east", InitialList: true})
	if err != nil {
		t.Fatal(err)
	}
	listed, from := 0, ""
	for from == "" {
		m, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetChange() != nil {
			listed++
		}
		from = m.GetInitialListEnd().GetRevision()
	}
	if listed != 3 {
		t.Errorf("the initial list has %d evictions", listed)
	}
	x.batch(deletePod("p1"))
	wantClosed := func(w reprievev1.QueryService_WatchEvictionsClient) string {
		m, err := w.Recv()
		if err != nil || m.GetChange().GetEviction().GetUid() != "uid-p1" || m.GetChange().GetEviction().GetState() != reprievev1.EvictionState_EVICTION_STATE_CLOSED {
			t.Fatalf("change %v, %v", m, err)
		}
		return m.GetChange().GetRevision()
	}
	after := wantClosed(w)
	// Resumed from before the change another watcher has it too; from after it, the next only.
	again, err := f.query().WatchEvictions(f.ctx, &reprievev1.WatchEvictionsRequest{ResumeRevision: from})
	if err != nil {
		t.Fatal(err)
	}
	wantClosed(again)
	later, err := f.query().WatchEvictions(f.ctx, &reprievev1.WatchEvictionsRequest{ResumeRevision: after})
	if err != nil {
		t.Fatal(err)
	}
	x.batch(deletePod("p2"))
	if m, err := later.Recv(); err != nil || m.GetChange().GetEviction().GetUid() != "uid-p2" {
		t.Errorf("change %v, %v", m, err)
	}
	for revision, want := range map[string]struct {
		code   codes.Code
		reason string
	}{"999999": {codes.OutOfRange, "REVISION_TOO_OLD"}, "new": {codes.InvalidArgument, "INVALID_ARGUMENT"}} {
		ctx, cancel := context.WithCancel(f.ctx)
		w, err := f.query().WatchEvictions(ctx, &reprievev1.WatchEvictionsRequest{ResumeRevision: revision})
		if err == nil {
			_, err = w.Recv()
		}
		wantError(t, err, want.code, want.reason)
		cancel()
	}
}
