package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// evictWithin bounds one round: the built-in controller takes most of a minute for 300 pods at its default limits.
const evictWithin = 5 * time.Minute

// BenchmarkEvictions measures how many pods a second leave nodes that are tainted in one go: the built-in controller
// and the agent with its service in turns, on one API server, with the same pods and the same client limits.
func BenchmarkEvictions(b *testing.B) {
	for _, limits := range []struct {
		name                      string
		qps, burst, workers, pods int
		nodes                     int
	}{
		{name: "limits=20-30", qps: 20, burst: 30, workers: 64, pods: 300, nodes: 10},
		{name: "limits=lifted", qps: 100_000, burst: 100_000, workers: 64, pods: 2000, nodes: 20},
	} {
		b.Run(limits.name, func(b *testing.B) {
			plane := controlplane.Start(b, controlplane.Options{ControllerManager: &controlplane.ControllerManager{
				Controllers: []string{"node-lifecycle-controller", "taint-eviction-controller"}, QPS: limits.qps, Burst: limits.burst,
				// There are no kubelets, so that nothing but evictions keeps the API server busy.
				NodeMonitorGrace: time.Hour, Flags: []string{"--node-startup-grace-period=1h"},
			}})
			plane.ControllerManager.Kill()
			svc := service.Start(b, service.Options{Clusters: []string{labName}})
			svc.Enforce(labName)
			kubeconfig := plane.Kubeconfig("bench-agent", "system:masters")
			r := &race{b: b, plane: plane, pods: limits.pods, nodes: limits.nodes, deletions: kube.Record(b, plane.Admin)}
			var builtIn, agent []float64
			for b.Loop() {
				plane.ControllerManager.Start()
				builtIn = append(builtIn, r.round("builtin"))
				plane.ControllerManager.Kill()

				a := svc.StartAgent(service.AgentOptions{
					Cluster: labName, Kubeconfig: kubeconfig, Workers: limits.workers, QPS: limits.qps, Burst: limits.burst,
				})
				svc.WaitSynced(labName, syncWithin)
				svc.WaitExecutor(labName, syncWithin)
				agent = append(agent, r.round("agent"))
				a.Kill()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(builtIn), "builtin-pods/s")
			b.ReportMetric(median(agent), "agent-pods/s")
			b.ReportMetric(median(agent)/median(builtIn), "ratio")
			b.Logf("%s: built-in %.1f, agent %.1f pods a second", limits.name, builtIn, agent)
		})
	}
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// race is one benchmark's cluster.
type race struct {
	b           *testing.B
	plane       *controlplane.ControlPlane
	deletions   *kube.Recorder
	pods, nodes int
	rounds      int
}

// round has whoever runs evict new pods of new nodes, and returns how many left a second.
func (r *race) round(who string) float64 {
	r.rounds++
	prefix := fmt.Sprintf("%s-%d", who, r.rounds)
	// Whoever evicts the first pod is awake and has seen what is there.
	r.tainted(prefix+"-first", 1, 1)
	nodes := kube.NodeNames(prefix, r.nodes)
	kube.CreateNodes(r.b, r.plane.Admin, nodes...)
	pods := kube.CreatePods(r.b, r.plane.Admin, kube.Bulk(prefix, r.pods, nodes, nil)...)
	r.tainted(prefix+"-second", 1, 1)
	return r.evicted(nodes, pods)
}

func (r *race) tainted(prefix string, nodes, pods int) {
	names := kube.NodeNames(prefix, nodes)
	kube.CreateNodes(r.b, r.plane.Admin, names...)
	r.evicted(names, kube.CreatePods(r.b, r.plane.Admin, kube.Bulk(prefix, pods, names, nil)...))
}

// evicted taints the nodes, waits until their pods are terminating, clears all away, and returns the rate.
func (r *race) evicted(nodes []string, pods []*corev1.Pod) float64 {
	began := await.Now()
	kube.TaintAll(r.b, r.plane.Admin, nodes, kube.NoExecute("bench", "now"))
	r.deletions.Wait(r.b, evictWithin, kube.UIDs(pods)...)
	var last time.Time
	for _, pod := range pods {
		if d, _ := r.deletions.Of(pod.UID); d.Seen.After(last) {
			last = d.Seen
		}
	}
	r.clear(nodes, pods)
	return float64(len(pods)) / last.Sub(began).Seconds()
}

// clear takes away what a round leaves: after a restart the built-in controller deletes terminating pods once more.
func (r *race) clear(nodes []string, pods []*corev1.Pod) {
	ctx := context.WithoutCancel(r.b.Context())
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	for _, pod := range pods {
		_ = r.plane.Admin.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, now)
	}
	for _, node := range nodes {
		if err := r.plane.Admin.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); err != nil {
			r.b.Fatalf("delete node %s: %v", node, err)
		}
	}
}

// BenchmarkAgentMemory measures what the agent keeps of a cluster of 50,000 pods.
func BenchmarkAgentMemory(b *testing.B) {
	const pods, nodeCount = 50_000, 500
	plane := controlplane.Start(b, controlplane.Options{})
	svc := service.Start(b, service.Options{Clusters: []string{labName}})
	kubeconfig := plane.Kubeconfig("bench-agent", "system:masters")
	idle := startMeasured(svc, kubeconfig)
	nodes := kube.NodeNames("n", nodeCount)
	kube.CreateNodes(b, plane.Admin, nodes...)
	kube.CreatePods(b, plane.Admin, kube.Bulk("pod", pods, nodes, func(i int, p *kube.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%200), "pod-template-hash": fmt.Sprintf("%08x", i%200)}
		p.Shape = func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: fmt.Sprintf("app-%d", i%200), UID: "11111111-2222-3333-4444-555555555555", Controller: ptr.To(true),
			}}
		}
	})...)
	for b.Loop() {
		full := startMeasured(svc, kubeconfig)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric((full.heap-idle.heap)/pods, "heap-B/pod")
		b.ReportMetric((full.resident-idle.resident)/pods, "resident-B/pod")
	}
}

type memory struct{ heap, resident float64 }

// startMeasured runs an agent until the service has all of the cluster and tells its memory then.
func startMeasured(svc *service.Service, kubeconfig string) memory {
	a := svc.StartAgent(service.AgentOptions{Cluster: labName, Kubeconfig: kubeconfig})
	defer a.Kill()
	svc.WaitSynced(labName, evictWithin)
	m := a.Metrics()
	return memory{heap: m.Sum("go_memstats_heap_alloc_bytes"), resident: m.Sum("process_resident_memory_bytes")}
}
