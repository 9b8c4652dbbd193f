package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// heartNodes renew their Leases every heartEvery, as kubelets do.
	heartNodes = 5000
	heartEvery = 10 * time.Second
	// measured is the span over which CPU time is taken.
	measured = time.Minute
	// fallen is how many nodes fall silent in each round.
	fallen = 20
)

// BenchmarkNodeHealth measures what the heartbeats of 5,000 nodes cost the service and its agent, and the built-in
// controller beside them in the same run, and how late each finds nodes that fall silent. The service observes, so that
// it does not share the built-in controller's work.
func BenchmarkNodeHealth(b *testing.B) {
	plane := controlplane.Start(b, controlplane.Options{ControllerManager: &controlplane.ControllerManager{
		Controllers: []string{"node-lifecycle-controller"}, QPS: 100_000, Burst: 100_000, Flags: []string{"--node-monitor-period=5s"},
	}})
	svc := service.Start(b, service.Options{Clusters: []string{labName}})
	observe := reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE
	svc.SetPolicy(labName, &reprievev1.ClusterPolicy{NodeHealth: &observe})
	agent := svc.StartAgent(service.AgentOptions{Cluster: labName, Kubeconfig: plane.Kubeconfig("bench-agent", "system:masters")})
	svc.WaitSynced(labName, syncWithin)
	nodes := kube.NodeNames("n", heartNodes)
	kube.CreateReadyNodes(b, plane.Admin, nodes...)
	hearts, changes := kube.NewHearts(b, plane.Admin, heartEvery), kube.RecordNodes(b, plane.Admin)
	hearts.Start(nodes...)
	await.Pause(b.Context(), grace)

	programs := map[string]*process.Process{"service": svc.Process, "agent": agent.Process, "builtin": plane.ControllerManager}
	round := 0
	for b.Loop() {
		before, renewals := usages(b, programs), hearts.Renewals()
		await.Pause(b.Context(), measured)
		b.ReportMetric(float64(hearts.Renewals()-renewals)/measured.Seconds(), "renewals/s")
		for name, now := range usages(b, programs) {
			b.ReportMetric(100*(now.CPU-before[name].CPU).Seconds()/measured.Seconds(), name+"-cpu-%")
			b.ReportMetric(float64(now.Resident)/(1<<20), name+"-MiB")
		}
		lost := nodes[round*fallen : (round+1)*fallen]
		round++
		hearts.Stop(lost...)
		b.ReportMetric(foundByService(b, svc, hearts, lost).Seconds(), "service-found-s")
		var worst time.Duration
		for _, node := range lost {
			worst = max(worst, changes.Wait(b, grace+soon, node, "Ready=Unknown", hearts.Last(node)).Sub(hearts.Last(node)))
		}
		b.ReportMetric(worst.Seconds(), "builtin-found-s")
	}
	b.ReportMetric(0, "ns/op")
}

func usages(b *testing.B, programs map[string]*process.Process) map[string]process.Usage {
	b.Helper()
	all := map[string]process.Usage{}
	for name, p := range programs {
		u, err := p.Usage()
		if err != nil {
			b.Fatal(err)
		}
		all[name] = u
	}
	return all
}

// foundByService waits until the service takes the nodes for silent, and returns the longest time from a last renewal
// to that.
func foundByService(b *testing.B, svc *service.Service, hearts *kube.Hearts, nodes []string) time.Duration {
	b.Helper()
	found := map[string]time.Time{}
	await.Until(b, grace+soon, "the service to find the silent nodes", func(context.Context) error {
		views := map[string]*reprievev1.NodeView{}
		for _, v := range svc.Nodes(labName) {
			views[v.GetName()] = v
		}
		for _, node := range nodes {
			if views[node].GetHealth().GetSilent() && found[node].IsZero() {
				found[node] = await.Now()
			}
		}
		if len(found) < len(nodes) {
			return fmt.Errorf("%d of %d; the cluster's health is %v", len(found), len(nodes), svc.Cluster(labName).GetNodeHealth())
		}
		return nil
	})
	var worst time.Duration
	for _, node := range nodes {
		worst = max(worst, found[node].Sub(hearts.Last(node)))
	}
	return worst
}
