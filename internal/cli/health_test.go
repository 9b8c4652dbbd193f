package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const unreachableKey = "node.kubernetes.io/unreachable"

// sampleNodes have node health in each of its states.
func sampleNodes() []*reprievev1.NodeView {
	taint := func(key, effect string) *reprievev1.Taint { return &reprievev1.Taint{Key: key, Effect: effect} }
	return []*reprievev1.NodeView{
		{Name: "ip-10-20-30-40.eu-central-1.compute.internal", Uid: "n-uid", Known: true, Pods: 30, OpenEvictions: 12,
			Taints: []*reprievev1.NodeTaint{{Taint: taint(unreachableKey, "NoExecute"), Start: at(-49 * time.Second)}, {Taint: taint("maintenance.example.com/rack", "NoExecute"), Start: at(-time.Hour)}},
			Health: &reprievev1.NodeHealth{
				Ready: "Unknown", ReadySince: at(-2 * time.Minute), Reason: "no heartbeat for 50s", HeartbeatTime: at(-170 * time.Second), SilentTime: at(-2 * time.Minute), Silent: true, Zone: "eu/a", Removals: 2, LastRemovalTime: at(-time.Minute),
				PodsPending: true, Attempts: 3, LastOutcome: reprievev1.Outcome_OUTCOME_DENIED, LastMessage: "nodes \"x\" is forbidden\x1b", Hold: reprievev1.HoldReason_HOLD_REASON_BACKING_OFF,
				Delivery: &reprievev1.Delivery{ExecutorId: "x1", Deadline: at(29 * time.Second)},
				Taints: []*reprievev1.NodeHealth_HealthTaint{
					{Taint: taint(unreachableKey, "NoSchedule"), Present: true, Since: at(-2 * time.Minute), Reason: "Ready is Unknown"},
					{Taint: taint(unreachableKey, "NoExecute"), Present: true, Since: at(-49 * time.Second), Reason: "Ready is Unknown; granted by zone eu/a"},
				}}},
		{Name: "n2", Known: true, Pods: 3, Health: &reprievev1.NodeHealth{
			Ready: "Unknown", ReadySince: at(-5 * time.Second), Silent: true, SilentTime: at(-5 * time.Second), Zone: "eu/a",
			Taints: []*reprievev1.NodeHealth_HealthTaint{
				{Taint: taint(unreachableKey, "NoSchedule"), Change: reprievev1.NodeHealth_CHANGE_ADD, Reason: "Ready is Unknown", Hold: reprievev1.HoldReason_HOLD_REASON_NO_EXECUTOR},
				{Taint: taint(unreachableKey, "NoExecute"), Change: reprievev1.NodeHealth_CHANGE_ADD, Reason: "waits for zone eu/a", ChangeTime: at(125 * time.Second)},
				{Taint: taint("node.kubernetes.io/not-ready", "NoExecute"), Present: true, Since: at(-time.Minute), Change: reprievev1.NodeHealth_CHANGE_REMOVE},
			}}},
		{Name: "n3", Known: true, Pods: 8, Health: &reprievev1.NodeHealth{Ready: "True", ReadySince: at(-time.Hour), HeartbeatTime: at(-4 * time.Second), SilentTime: at(46 * time.Second), Excluded: true}},
		{Name: "n4", Known: true, Health: &reprievev1.NodeHealth{}},
	}
}

func sampleHealth() *reprievev1.ClusterHealth {
	return &reprievev1.ClusterHealth{
		Mode: reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE, BlindTime: at(-3 * time.Second), StaleTime: at(-4 * time.Second), SilenceHoldTime: at(-time.Minute), SilentNodes: 40,
		DisruptionTime: at(-time.Hour), OtherController: "condition Ready of n9 became Unknown (NodeStatusUnknown) by another hand", OtherControllerTime: at(-90 * time.Second),
		Zones: []*reprievev1.ClusterHealth_Zone{
			{Nodes: 2, State: reprievev1.ZoneState_ZONE_STATE_NORMAL},
			{Name: "eu/a", Nodes: 60, NotReady: 40, Waiting: 39, TaintRate: 0.01, NextTaintTime: at(125 * time.Second), State: reprievev1.ZoneState_ZONE_STATE_PARTIAL_DISRUPTION},
		},
	}
}

func TestHealthTables(t *testing.T) {
	h := newHarness(t)
	h.width = tableWidth
	h.fake.nodes = sampleNodes()
	cluster := sampleClusters()[0]
	cluster.NodeHealth = sampleHealth()
	cluster.Policy.NodeHealth = reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE.Enum()
	h.fake.clusters = []*reprievev1.Cluster{cluster}
	h.fake.explainNode = &reprievev1.ExplainNodeResponse{
		Node: sampleNodes()[0], Now: at(0), Mode: reprievev1.Mode_MODE_ENFORCE, SyncState: reprievev1.Cluster_SYNC_STATE_SYNCED, ClusterHealth: sampleHealth(),
		Warnings: []string{"another controller is at work"}, WhatWouldChange: []string{"a heartbeat would take both taints off"},
	}
	show := func(name, args string) {
		t.Helper()
		code, out, errs := h.run(strings.Fields(args)...)
		if code != exitOK || errs != "" {
			t.Fatalf("%s: exit %d, stderr %q", args, code, errs)
		}
		golden(t, name, out)
	}
	show("get-nodes-health.txt", "get nodes --cluster prod")
	show("get-cluster-health.txt", "get clusters prod")
	show("explain-node.txt", "explain node ip-10-20-30-40.eu-central-1.compute.internal --cluster prod")
	h.fake.explainNode = &reprievev1.ExplainNodeResponse{Node: sampleNodes()[2], Now: at(0), ClusterHealth: &reprievev1.ClusterHealth{Mode: reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE}}
	h.fake.nodes = h.fake.nodes[:2]
	for _, n := range h.fake.nodes {
		n.GetHealth().ObservedOnly = true
	}
	h.fake.nodes[1].Health.Taints[0].Hold = reprievev1.HoldReason_HOLD_REASON_RATE_LIMITED
	show("get-nodes-observed.txt", "get nodes --cluster prod")
	h.fake.explainNode.Node = h.fake.nodes[1]
	h.fake.explainNode.Node.Health.PodsPending = true
	show("explain-node-observed.txt", "explain node n2 --cluster prod")
	h.fake.explainNode.Node = sampleNodes()[2]
	show("explain-node-ready.txt", "explain node n3 --cluster prod")
	h.fake.explainNode.Node.Health.ReadySinceSeen = true
	show("explain-node-seen.txt", "explain node n3 --cluster prod")
	h.fake.explainNode = &reprievev1.ExplainNodeResponse{Node: &reprievev1.NodeView{Name: "n9"}}
	show("explain-node-off.txt", "explain node n9 --cluster prod")
	if code, _, errs := h.run("explain", "node", "--cluster", "prod"); code != exitUsage {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// A policy's long values are folded to the width of a terminal.
func TestFoldedPolicy(t *testing.T) {
	long := "node_health_figures=" + strings.Repeat("grace_period=40s,", 20) + "taint_rate=1"
	names := "excluded_namespaces=" + strings.Repeat("n", 200)
	got := folded([]string{"mode=ENFORCE", long, names})
	if len(got) < 5 || got[0] != "mode=ENFORCE" || got[len(got)-1] != names {
		t.Fatalf("%q", got)
	}
	for _, line := range got[:len(got)-1] {
		if len(line) > 96 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if whole := strings.Join(got[1:len(got)-1], ""); strings.ReplaceAll(whole, "    ", "") != long {
		t.Errorf("%q", whole)
	}
}

// What `policy get` writes of the figures `policy set` takes.
func TestHealthFigures(t *testing.T) {
	zero, share, nodes, off := 0.0, 0.75, uint32(4), true
	want := &reprievev1.ClusterPolicy{NodeHealthFigures: &reprievev1.NodeHealthFigures{
		GracePeriod: durationpb.New(40 * time.Second), SilenceWindow: durationpb.New(90 * time.Second), TaintRate: &share, SmallZoneTaintRate: &zero, UnhealthyZoneNodes: &nodes, DisableSilenceHold: &off,
	}}
	lines := policyLines(want, nil)
	name, value, _ := strings.Cut(lines[0], "=")
	got := &reprievev1.ClusterPolicy{}
	fd, err := policyField(name)
	if err != nil || len(lines) != 1 {
		t.Fatalf("%v, %q", err, lines)
	}
	if err := assign(got, fd, value); err != nil || !proto.Equal(want, got) {
		t.Errorf("%s: %v\ngot  %v\nwant %v", lines[0], err, got, want)
	}
	for value, text := range map[string]string{
		"":                          "is none of grace_period",
		"grace=40s":                 "is none of grace_period",
		"grace_period=40":           "write a duration",
		"taint_rate=fast":           "write a number",
		"large_zone_nodes=-1":       "write a whole number",
		"disable_silence_hold=x":    "write true or false",
		"taint_rate=1,taint_rate=2": "there twice",
	} {
		if err := assign(got, fd, value); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, want %q", value, err, text)
		}
	}
}

func TestPolicySetForce(t *testing.T) {
	h := newHarness(t)
	h.fake.clusters = sampleClusters()
	for args, want := range map[string]bool{"": false, " --force": true} {
		h.fake.asked = nil
		if code, _, errs := h.run(strings.Fields("policy set prod node_health=enforce --yes" + args)...); code != exitOK {
			t.Fatalf("exit %d, stderr %q", code, errs)
		}
		sets := 0
		for _, m := range h.fake.asked {
			if r, ok := m.(*reprievev1.SetPolicyRequest); ok {
				sets++
				if r.GetForce() != want || r.GetPolicy().GetNodeHealth() != reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE {
					t.Errorf("%q asks for %v", args, r)
				}
			}
		}
		if sets != 2 {
			t.Errorf("%d calls of SetPolicy", sets)
		}
	}
}

func TestReplayHealth(t *testing.T) {
	h := newHarness(t)
	dir := "../../client/timeline/testdata/health/"
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errs := h.run(args...)
		if code != want || errs != "" {
			t.Fatalf("%v: exit %d, stderr %q, output %s", args, code, errs, out)
		}
		return out
	}
	golden(t, "replay-health.txt", run(exitOK, "replay", dir+"n2-silence-becomes-unknown.jsonl"))
	golden(t, "replay-health-wide.json", run(exitOK, "replay", dir+"n3-ready-again-loses-both-at-once.jsonl", "-n", "other", "-o", "json"))
	run(exitOK, "replay", dir+"n9-foreign-taints-stay.jsonl", "--expect", dir+"n9-foreign-taints-stay.expect.json")
	out := run(exitFailure, "replay", dir+"n2-silence-becomes-unknown.jsonl", "--expect", dir+"n3-a-swap-is-one-episode.expect.json")
	if !strings.Contains(out, "+ at 2m31s: default n1 pods-not-ready\n- at 1m0s: default n1 not-ready was expected, within 1s\n") {
		t.Errorf("the differences are %s", out)
	}
	if code, _, errs := h.run("replay", dir+"n2-silence-becomes-unknown.jsonl", "--node-health", "on"); code != exitUsage || !strings.Contains(errs, "use one of off, observe, enforce") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// A file with leases and no policy is observed: the same is decided, nobody leaves.
func TestReplayObservesLeases(t *testing.T) {
	h := newHarness(t)
	lease := `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n1","namespace":"kube-node-lease"},"spec":{"renewTime":"2026-01-01T00:00:00Z"}}`
	node := `{"kind":"Node","metadata":{"name":"%","uid":"%"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	h.in = `{"kind":"List","items":[` + lease + `,` + strings.ReplaceAll(node, "%", "n1") + `,` + strings.ReplaceAll(node, "%", "n2") + `,` + strings.ReplaceAll(node, "%", "n3") +
		`,{"kind":"Pod","metadata":{"name":"p","namespace":"d","uid":"p"},"spec":{"nodeName":"n1"}}]}
{"control":"synced"}
{"control":"renew","nodes":["n2","n3"],"until":"10m"}`
	code, out, errs := h.run("replay", "-")
	want := `        0s  blind-over   default
       51s  unknown      default  node n1 no heartbeat for 50s
       51s  tainted      default  node n1 unreachable:NoSchedule no heartbeat for 50s
       51s  tainted      default  node n1 unreachable:NoExecute no heartbeat for 50s
      606s  blind        default  nothing is known of heartbeats
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("exit %d, stderr %q, got\n%swant\n%s", code, errs, out, want)
	}
	if code, out, errs = h.run("replay", "-", "--node-health", "off"); code != exitOK || out != "" || errs != "" {
		t.Errorf("off: exit %d, stderr %q, output %s", code, errs, out)
	}
}

func TestSimulateSilence(t *testing.T) {
	h := newHarness(t)
	var items []string
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		items = append(items, `{"kind":"Node","metadata":{"name":"`+n+`","uid":"`+n+`"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	}
	for _, p := range []string{"a n1", "b n2", "c n3"} {
		name, node, _ := strings.Cut(p, " ")
		items = append(items, `{"kind":"Pod","metadata":{"name":"`+name+`","namespace":"shop","uid":"`+name+`"},"spec":{"nodeName":"`+node+`"}}`)
	}
	h.in = `{"kind":"List","items":[` + strings.Join(items, ",") + `]}`
	code, out, errs := h.run("simulate", "-f", "-", "--silent", "n1", "--silent", "n2")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d, stderr %q", code, errs)
	}
	golden(t, "simulate-silence.txt", out)
	if code, out, errs = h.run("simulate", "-f", "-", "--silent", "n1", "-o", "json"); code != exitOK || errs != "" || !strings.Contains(out, `"event": "tainted"`) || !strings.Contains(out, `"in": "351s"`) {
		t.Errorf("exit %d, stderr %q, output %s", code, errs, out)
	}
	// What keeps a NoExecute taint back is told: a zone's rate, and a silence of nearly all.
	_, out, _ = h.run("simulate", "-f", "-", "--silent", "n1", "--silent", "n2", "--silent", "n3")
	golden(t, "simulate-silence-zone.txt", out)
	_, out, _ = h.run("simulate", "-f", "-", "--silent", "n1", "--silent", "n2", "--silent", "n3", "--silent", "n4")
	golden(t, "simulate-silence-held.txt", out)
	if code, _, errs = h.run("simulate", "-f", "-", "--silent", "n9"); code != exitFailure || !strings.Contains(errs, `no node "n9" in the dump`) {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}
