package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func at(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(epoch.Add(d)) }

func taintCause(key, value string, wait time.Duration, byDefault bool) *reprievev1.Cause {
	c := &reprievev1.TaintCause{
		Taint:      &reprievev1.Taint{Key: key, Value: value, Effect: "NoExecute"},
		TaintStart: at(-time.Minute), Start: at(-time.Minute), DefaultToleration: byDefault, Wait: durationpb.New(wait),
	}
	if wait > 0 && !byDefault {
		c.Toleration = &reprievev1.Toleration{Key: key, Operator: "Exists"}
	}
	return &reprievev1.Cause{Cause: &reprievev1.Cause_Taint{Taint: c}}
}

// sampleEvictions has one of each state, with names as long as Kubernetes allows.
func sampleEvictions() []*reprievev1.Eviction {
	long := strings.Repeat("checkout-frontend-", 5) + "7d9c5b6f4-x2kqp"
	return []*reprievev1.Eviction{
		{Id: "prod/1", Cluster: "prod", Namespace: "web", Pod: "frontend-7d9c5", Uid: "u1", Node: "n1", State: reprievev1.EvictionState_EVICTION_STATE_WAITING,
			DueTime: at(4*time.Minute + 12*time.Second), Cause: taintCause("node.kubernetes.io/not-ready", "", 300*time.Second, true)},
		{Id: "prod/2", Cluster: "production-eu-central-1-a-cluster-with-a-long-name", Namespace: "payments-and-invoices", Pod: long, Uid: "u2", Node: "ip-10-20-30-40.eu-central-1.compute.internal",
			State: reprievev1.EvictionState_EVICTION_STATE_DUE, Hold: reprievev1.HoldReason_HOLD_REASON_CLUSTER_NOT_SYNCED, Stuck: true, Attempts: 11,
			DueTime: at(-3*time.Hour - 4*time.Minute), Cause: taintCause("maintenance.example.com/planned-reboot-of-the-rack", "rack-17-in-hall-4", 2*time.Hour, false)},
		{Id: "prod/3", Cluster: "prod", Namespace: "web", Pod: "api-0", Uid: "u3", Node: "n2", State: reprievev1.EvictionState_EVICTION_STATE_DUE,
			Hold: reprievev1.HoldReason_HOLD_REASON_BACKING_OFF, HoldUntil: at(42 * time.Second), Attempts: 3, DueTime: at(-3 * time.Second), Cause: taintCause("drain", "", 0, false),
			LastOutcome: reprievev1.Outcome_OUTCOME_DENIED, LastMessage: "admission webhook \"guard\" denied\nthe request\x1b[31m", FirstSendTime: at(-2900 * time.Millisecond)},
		{Id: "prod/4", Cluster: "prod", Namespace: "web", Pod: "api-1", Uid: "u4", Node: "n2", State: reprievev1.EvictionState_EVICTION_STATE_DELIVERED,
			DueTime: at(-500 * time.Millisecond), Delivery: &reprievev1.Delivery{ExecutorId: "x1", Deadline: at(29 * time.Second)},
			Requests: []*reprievev1.Request{{RequestId: "move-17", Requester: "karmada", Reason: "rebalance"}},
			Cause:    &reprievev1.Cause{Cause: &reprievev1.Cause_Request{Request: &reprievev1.RequestCause{RequestId: "move-17", Requester: "karmada"}}}},
		{Id: "prod/5", Cluster: "prod", Namespace: "web", Pod: "old", Uid: "u5", Node: "n3", State: reprievev1.EvictionState_EVICTION_STATE_CLOSED,
			CloseReason: reprievev1.CloseReason_CLOSE_REASON_CANCELLED, CancelCause: reprievev1.CancelCause_CANCEL_CAUSE_REQUEST_WITHDRAWN,
			DueTime: at(-time.Hour), CloseTime: at(-50 * time.Minute), Cause: taintCause("drain", "", 0, false)},
		{Id: "prod/6", Cluster: "prod", Namespace: "payments-and-invoices", Pod: long, Uid: "u6", Node: "ip-10-20-30-40.eu-central-1.compute.internal", State: reprievev1.EvictionState_EVICTION_STATE_CLOSED,
			CloseReason: reprievev1.CloseReason_CLOSE_REASON_EVICTED, Attempts: 2, DueTime: at(-26 * time.Hour), FirstSendTime: at(-26*time.Hour + 3*time.Millisecond), CloseTime: at(-25 * time.Hour),
			Cause: taintCause("node.kubernetes.io/unreachable", "", 300*time.Second, true)},
	}
}

func sampleClusters() []*reprievev1.Cluster {
	mode := reprievev1.Mode_MODE_ENFORCE
	return []*reprievev1.Cluster{
		{Name: "prod", ClusterUid: "c-uid", Mode: mode, SyncState: reprievev1.Cluster_SYNC_STATE_SYNCED, FeedAge: durationpb.New(2 * time.Second),
			FeederId: "agent-1", FeederEpoch: 3, AdoptTime: at(-72 * time.Hour), Nodes: 5000, Pods: 150000, StuckEvictions: 2, OldestDueTime: at(-90 * time.Second),
			OpenEvictions: []*reprievev1.Cluster_StateCount{{State: reprievev1.EvictionState_EVICTION_STATE_WAITING, Count: 12345}, {State: reprievev1.EvictionState_EVICTION_STATE_DUE, Count: 7}, {State: reprievev1.EvictionState_EVICTION_STATE_DELIVERED, Count: 4}},
			Holds:         []*reprievev1.Cluster_HoldCount{{Hold: reprievev1.HoldReason_HOLD_REASON_PAUSED, Count: 7}},
			Executors:     []*reprievev1.Cluster_Executor{{ExecutorId: "x1", Capacity: 10, Outstanding: 4, ConnectTime: at(-time.Hour)}},
			Pauses:        []*reprievev1.Pause{{Id: "p1", Node: "n7", Reason: "disk", Actor: "ana", CreateTime: at(-time.Minute), EndTime: at(2 * time.Hour)}},
			Ignored:       map[string]uint64{"taint without effect": 3}, Warnings: []string{"2 evictions are stuck"},
			Policy: &reprievev1.ClusterPolicy{Mode: &mode, Rate: &reprievev1.Rate{PerSecond: 50, Burst: 100}, DefaultNotReadyToleration: durationpb.New(300 * time.Second), IgnoredTaintKeys: []string{"a", "b"}}},
		{Name: "staging-cluster-of-the-team-that-likes-long-names", Mode: reprievev1.Mode_MODE_SHADOW, SyncState: reprievev1.Cluster_SYNC_STATE_LOST, FeedAge: durationpb.New(26 * time.Hour), Damaged: true},
		{Name: "new", Mode: reprievev1.Mode_MODE_SHADOW, SyncState: reprievev1.Cluster_SYNC_STATE_NEVER_SYNCED},
	}
}

func TestTables(t *testing.T) {
	h := newHarness(t)
	h.width = tableWidth
	h.fake.evictions = sampleEvictions()
	h.fake.clusters = sampleClusters()
	h.fake.nodes = []*reprievev1.NodeView{
		{Name: "n1", Known: true, Pods: 30, OpenEvictions: 12, Taints: []*reprievev1.NodeTaint{
			{Taint: &reprievev1.Taint{Key: "node.kubernetes.io/not-ready"}, Start: at(-49 * time.Second)},
			{Taint: &reprievev1.Taint{Key: "maintenance.example.com/planned-reboot-of-the-rack", Value: "rack-17-in-hall-4-of-the-old-building"}, Start: at(-3 * time.Hour)}}},
		{Name: "ip-10-20-30-40.eu-central-1.compute.internal", Known: true, Pods: 110},
	}
	h.fake.reprieves = []*reprievev1.Reprieve{
		{Namespace: "web", Pod: "frontend-7d9c5", Uid: "6f1b4c1e-0f2a-4e55-9df2-0d8c0b7a3c11", Reason: "finishing an import that takes all night and must not be cut", Actor: "ana@example.com", CreateTime: at(-time.Minute), EndTime: at(2 * time.Hour)},
	}
	h.fake.explain = sampleExplanation()
	for name, args := range map[string]string{
		"get-evictions.txt":            "get evictions",
		"get-evictions-one.txt":        "get evictions --cluster prod --limit 2",
		"get-eviction.txt":             "get evictions prod/3",
		"get-eviction-closed-wide.txt": "get evictions prod/6",
		"get-clusters.txt":             "get clusters",
		"get-cluster.txt":              "get clusters prod",
		"get-nodes.txt":                "get nodes --cluster prod",
		"get-reprieves.txt":            "get reprieves --cluster prod",
		"get-pauses.txt":               "get pauses --cluster prod",
		"history.txt":                  "history --cluster prod",
		"explain.txt":                  "explain pod web/frontend-7d9c5 --cluster prod",
		"get-evictions-wide.json":      "get evictions --cluster prod --limit 1 -o json",
		"get-nodes-wide.yaml":          "get nodes --cluster prod -o yaml",
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := h.run(strings.Fields(args)...)
			if code != exitOK || errs != "" {
				t.Fatalf("exit %d, stderr %q", code, errs)
			}
			golden(t, name, out)
		})
	}
}

// Where nobody looks, as in a pipe, and with -o wide, names are whole: they are
// searched for, and copied.
func TestTablesAreNotCutInAPipe(t *testing.T) {
	for width, args := range map[int]string{0: "get evictions", tableWidth: "get evictions -o wide"} {
		h := newHarness(t)
		h.fake.evictions, h.width = sampleEvictions(), width
		code, out, errs := h.run(strings.Fields(args)...)
		if code != exitOK || errs != "" {
			t.Fatalf("exit %d, stderr %q", code, errs)
		}
		golden(t, "get-evictions-wide.txt", out)
	}
}

// Of nodes' names that do not fit the domain goes first, if there is one that all have:
// two nodes never come to look the same by that.
func TestTableDropsTheDomainOfNodes(t *testing.T) {
	for _, tc := range []struct{ names, shown []string }{
		{[]string{"ip-10-20-30-40.eu-central-1.compute.internal", "ip-10-20-30-41.eu-central-1.compute.internal"}, []string{"ip-10-20-30-40…", "ip-10-20-30-41…"}},
		{[]string{"a.rack-1.example.com", "a.rack-2.example.com", "bare"}, []string{"a.rack-1…", "a.rack-2…", "bare"}},
		{[]string{"a.example.com", "example.com"}, []string{"a.example…", "example…"}},
		{[]string{"n1.example.com"}, []string{"n1…"}},
		{[]string{"10.20.30.40", "10.20.30.41"}, nil},
		{[]string{"10.20.30.40", "10.21.30.40"}, nil},
		{[]string{"cn-hangzhou.192.168.0.15", "cn-hangzhou.192.168.0.16"}, nil},
		{[]string{"cn-hangzhou.192.168.0.15"}, nil},
		{[]string{"a.one.example", "b.two.other"}, nil},
		{[]string{".example.com", "a.", "."}, nil},
		{nil, nil},
	} {
		tab := &table{columns: []column{{title: "NODE", nodes: true}, {title: "WHY", min: 4}}}
		for _, name := range tc.names {
			tab.add(name, strings.Repeat("w", tableWidth))
		}
		out := tab.render(tableWidth)
		want := tc.shown
		if want == nil {
			want = tc.names
		}
		for _, name := range want {
			if !strings.Contains(out, "\n"+name+" ") {
				t.Errorf("%q is not shown as %q:\n%s", tc.names, name, out)
			}
		}
	}
}

func sampleExplanation() *reprievev1.ExplainPodResponse {
	zero, one := uint32(0), uint32(1)
	seconds := int64(300)
	return &reprievev1.ExplainPodResponse{
		Cluster: "prod", Namespace: "web", Pod: "frontend-7d9c5", Uid: "u1", Node: &reprievev1.NodeView{Name: "n1", Known: true}, BoundTime: at(-time.Hour), Now: at(0),
		Mode: reprievev1.Mode_MODE_ENFORCE, SyncState: reprievev1.Cluster_SYNC_STATE_SYNCED,
		Tolerations: []*reprievev1.Toleration{{Key: "drain", Operator: "Equal", Value: "yes", Effect: "NoExecute"}, {Operator: "Exists", TolerationSeconds: &seconds}},
		Decision: &reprievev1.Decision{Verdict: reprievev1.Decision_VERDICT_LEAVE, DueTime: at(4 * time.Minute), DecidingStep: &one, Steps: []*reprievev1.DecisionStep{
			{Taint: &reprievev1.NodeTaint{Taint: &reprievev1.Taint{Key: "drain", Value: "yes"}, Start: at(-time.Minute)}, TolerationIndex: &zero, Forever: true, HiddenTolerationIndexes: []uint32{1}},
			{Taint: &reprievev1.NodeTaint{Taint: &reprievev1.Taint{Key: "node.kubernetes.io/unreachable"}, Start: at(-time.Minute)}, TolerationIndex: &one, Start: at(-time.Minute), Wait: durationpb.New(300 * time.Second), DueTime: at(4 * time.Minute)},
			{Taint: &reprievev1.NodeTaint{Taint: &reprievev1.Taint{Key: "quiet"}, Start: at(-time.Minute)}, Ignored: true},
		}},
		Holds:           []reprievev1.HoldReason{reprievev1.HoldReason_HOLD_REASON_PAUSED, reprievev1.HoldReason_HOLD_REASON_NO_EXECUTOR},
		Eviction:        &reprievev1.Eviction{Id: "prod/1", State: reprievev1.EvictionState_EVICTION_STATE_WAITING},
		Reprieve:        &reprievev1.Reprieve{Reason: "import", Actor: "ana", EndTime: at(time.Hour)},
		Warnings:        []string{"toleration 0 hides toleration 1"},
		WhatWouldChange: []string{"removing taint node.kubernetes.io/unreachable:NoExecute would cancel it"},
	}
}
