package server

import (
	"testing"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// series are the names of the metrics that tell of a cluster.
func (f *fixture) series(cluster string) (names []string) {
	f.t.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "cluster" && l.GetValue() == cluster {
					names = append(names, family.GetName())
				}
			}
		}
	}
	return names
}

// TestForgottenClusterLeavesNoSeries: names of clusters come and go, and their
// series would add up.
func TestForgottenClusterLeavesNoSeries(t *testing.T) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list(upsertNode("n1"), upsertPod("p1", "n1"))
	x.acked(x.batch(upsertNode("n1", "k")), false)
	f.svc.metrics.Result("east", 1, 0)
	f.svc.metrics.Sent("east", 0, 0)
	if len(f.series("east")) < 10 {
		t.Fatalf("series before: %v", f.series("east"))
	}
	if _, err := f.admin().ForgetCluster(f.ctx, &reprievev1.ForgetClusterRequest{Cluster: "east", Confirm: "east"}); err != nil {
		t.Fatal(err)
	}
	if left := f.series("east"); len(left) > 0 {
		t.Errorf("series of a forgotten cluster: %v", left)
	}
}
