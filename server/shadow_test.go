package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

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
