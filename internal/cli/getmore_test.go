package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// TestSteadyCluster checks that a watch of clusters tells changes and no ages.
func TestSteadyCluster(t *testing.T) {
	same := func(x, y *reprievev1.Cluster) bool {
		steadyCluster(x)
		steadyCluster(y)
		return proto.Equal(x, y)
	}
	late := func(age time.Duration, warning string) *reprievev1.Cluster {
		return &reprievev1.Cluster{Name: "prod", FeedAge: durationpb.New(age), Warnings: []string{warning}}
	}
	if !same(late(time.Second, "the oldest due eviction is 59s late"), late(3*time.Second, "the oldest due eviction is 1m1s late")) {
		t.Error("an age that grew is told as a change")
	}
	if same(late(0, "the oldest due eviction is 59s late"), late(0, "no executor is attached: nothing can be sent")) {
		t.Error("another warning is not told")
	}
}

// TestSteadyNode checks that a watch of nodes does not tell each heartbeat.
func TestSteadyNode(t *testing.T) {
	node := func(beat time.Duration, silent bool) *reprievev1.NodeView {
		n := &reprievev1.NodeView{Name: "n", Health: &reprievev1.NodeHealth{HeartbeatTime: at(beat), SilentTime: at(beat + 50*time.Second), Silent: silent}}
		steadyNode(n)
		return n
	}
	if !proto.Equal(node(0, false), node(10*time.Second, false)) {
		t.Error("a heartbeat is told as a change")
	}
	if proto.Equal(node(0, false), node(0, true)) {
		t.Error("a silence is not told")
	}
	steadyNode(&reprievev1.NodeView{Name: "n"})
}

// TestGetClustersOfOne narrows the list of clusters by the flag, and not by the
// environment, in which the name of one may be mistyped.
func TestGetClustersOfOne(t *testing.T) {
	h := newHarness(t)
	h.fake.clusters = sampleClusters()
	h.env["REPRIEVE_CLUSTER"] = "mistyped"
	other := h.fake.clusters[2].GetName()
	for args, all := range map[string]bool{"get clusters": true, "get clusters --cluster prod": false} {
		code, out, errs := h.run(strings.Fields(args)...)
		if code != exitOK || !strings.Contains(out, "prod") || strings.Contains(out, "\n"+other+" ") != all {
			t.Errorf("%s: exit code %d, %q %s", args, code, out, errs)
		}
	}
	wantRun(t, h, exitUsage, "name two clusters", "get", "clusters", "prod", "--cluster", other)
}
