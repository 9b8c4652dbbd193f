package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/link"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// onTime bounds the p99 of what a cluster's orders are late while another one is cut off, on a busy machine.
	onTime = time.Second
	// takeOver bounds the time from a leader's death to the other agent's whole list and executor.
	takeOver = 20 * time.Second
)

// Two clusters whose nodes and pods have the same names, one of them cut off while pods of both fall due: each pod is
// deleted by its own cluster's agent, and the other cluster's pods leave on time.
func TestTwoClusters(t *testing.T) {
	svc := service.Start(t, service.Options{Clusters: []string{"east", "west"}})
	home := link.Start(t, svc.Addr)
	east, west := newAudited(t, svc, "east"), newAudited(t, svc, "west")
	eastAgent := svc.StartAgent(service.AgentOptions{Cluster: "east", Kubeconfig: east.agentConfig(), Server: home.Addr, LeaderElect: true})
	westAgent := svc.StartAgent(service.AgentOptions{Cluster: "west", Kubeconfig: west.agentConfig(), LeaderElect: true})
	var pods [2][]*corev1.Pod
	for i, c := range []*audited{east, west} {
		c.waitServed()
		kube.CreateNodes(t, c.plane.Admin, "n1", "n2")
		pods[i] = kube.CreatePods(t, c.plane.Admin, kube.Bulk("p", 200, []string{"n1", "n2"}, func(i int, p *kube.Pod) {
			p.Tolerations = []corev1.Toleration{kube.Tolerate(key, int64(3+i%12))}
		})...)
	}
	for i, c := range []*audited{east, west} {
		kube.TaintAll(t, c.plane.Admin, []string{"n1", "n2"}, kube.NoExecute(key, ""))
		c.waitRecords(t, pods[i]...)
	}
	home.Cut()
	eastBefore := len(east.deletions.All())

	west.deletions.Wait(t, time.Minute, kube.UIDs(pods[1])...)
	westAfter := west.waitClosed(t, time.Minute, pods[1]...)
	if n := len(east.deletions.All()); n > eastBefore {
		t.Errorf("%d pods of the cluster that is cut off left meanwhile", n-eastBefore)
	}
	home.Mend()
	east.deletions.Wait(t, 2*time.Minute, kube.UIDs(pods[0])...)
	eastAfter := east.waitClosed(t, time.Minute, pods[0]...)

	east.judge(t, pods[0], eastAfter, eastAgent)
	west.judge(t, pods[1], westAfter, westAgent)
	p99, worst := lateness(pods[1], westAfter)
	t.Logf("with the other cluster cut off, %d orders were sent after their due instant by: p99 %s, worst %s", len(pods[1]), p99, worst)
	if p99 > onTime {
		t.Errorf("the p99 of what orders were late is %s, want at most %s", p99, onTime)
	}
	otherClusterRefused(t, svc, east)
}

// otherClusterRefused lets another cluster join under the name of one that is there.
func otherClusterRefused(t *testing.T, svc *service.Service, first *audited) {
	t.Helper()
	other := controlplane.Start(t, controlplane.Options{})
	deletions := kube.Record(t, other.Admin)
	kube.CreateNodes(t, other.Admin, "n1")
	kube.Taint(t, other.Admin, "n1", kube.NoExecute(key, ""))
	pods := kube.CreatePods(t, other.Admin, kube.Bulk("p", 5, []string{"n1"}, nil)...)
	agent := svc.StartAgent(service.AgentOptions{
		Cluster: first.name, Kubeconfig: other.AdminKubeconfig(), LeaderElect: true, Name: "agent-of-another-cluster",
	})
	await.Until(t, time.Minute, "the agent of another cluster to end", func(context.Context) error {
		err, ended := agent.Ended()
		var exit *exec.ExitError
		switch {
		case !ended:
			return errors.New("it runs")
		case !errors.As(err, &exit) || exit.ExitCode() < 1:
			t.Fatalf("the agent of another cluster ended with %v, want an exit code", err)
		}
		return nil
	})
	for _, want := range []string{first.name, first.plane.UID, other.UID} {
		if log := string(agent.Log()); !strings.Contains(log, want) {
			t.Errorf("the refused agent's log does not name %s:\n%s", want, log)
		}
	}
	deletions.NoneOf(t, kube.UIDs(pods)...)
	if c := svc.Cluster(first.name); c.GetClusterUid() != first.plane.UID || c.GetSyncState() != reprievev1.Cluster_SYNC_STATE_SYNCED {
		t.Errorf("the first cluster, uid %s, is now uid %s and %s", first.plane.UID, c.GetClusterUid(), c.GetSyncState())
	}
}

// Of two agents of a cluster the one that leads is killed: the other takes over, and what is due leaves.
func TestLeaderKilled(t *testing.T) {
	svc := service.Start(t, service.Options{Clusters: []string{"east"}})
	r := newRig(t, svc, "east")
	agents := map[string]*service.Agent{}
	for _, id := range []string{"agent-a", "agent-b"} {
		agents[id] = svc.StartAgent(service.AgentOptions{
			Cluster: r.name, Kubeconfig: r.plane.AdminKubeconfig(), LeaderElect: true, Name: id, Flags: []string{"--id", id},
		})
	}
	r.waitServed()
	kube.CreateNodes(t, r.plane.Admin, "n1", "quiet")
	pods := kube.CreatePods(t, r.plane.Admin, kube.Bulk("p", 100, []string{"n1"}, func(i int, p *kube.Pod) {
		p.Tolerations = []corev1.Toleration{kube.Tolerate(key, int64(1+i%25))}
	})...)
	kube.CreatePods(t, r.plane.Admin, kube.Bulk("quiet", 10, []string{"quiet"}, nil)...)
	kube.Taint(t, r.plane.Admin, "n1", kube.NoExecute(key, ""))
	before := r.waitRecords(t, pods...)
	waitDeletions(t, r, 1)

	was := svc.Cluster(r.name)
	leader := was.GetFeederId()
	agents[leader].Kill()
	killed := await.Now()
	await.Until(t, time.Minute, "the other agent to take over", func(context.Context) error {
		c := svc.Cluster(r.name)
		if c.GetFeederId() == leader || c.GetSyncState() != reprievev1.Cluster_SYNC_STATE_SYNCED || len(c.GetExecutors()) != 1 {
			return fmt.Errorf("feeder %s, %s, executors %v", c.GetFeederId(), c.GetSyncState(), c.GetExecutors())
		}
		if c.GetFeederEpoch() <= was.GetFeederEpoch() {
			return fmt.Errorf("the feeder's epoch was %d and is %d", was.GetFeederEpoch(), c.GetFeederEpoch())
		}
		return nil
	})
	took := await.Now().Sub(killed)

	r.deletions.Wait(t, time.Minute, kube.UIDs(pods)...)
	after := r.waitClosed(t, time.Minute, pods...)
	r.onlyLeft(t, pods)
	r.onceEach(t, pods, after)
	sameDue(t, pods, before, after)
	_, worst := lateness(pods, after)
	t.Logf("the other agent took over after %s; orders were sent at most %s after due", took.Round(time.Millisecond), worst)
	if took > takeOver || worst > takeOver+onTime {
		t.Errorf("taking over took %s (want at most %s), and an order was %s late", took, takeOver, worst)
	}
}

// lateness is how long after their due instants the pods' last orders were sent.
func lateness(pods []*corev1.Pod, all map[string][]*reprievev1.Eviction) (p99, worst time.Duration) {
	var lates []time.Duration
	for _, pod := range pods {
		lates = append(lates, late(all[string(pod.UID)][0]))
	}
	slices.Sort(lates)
	return lates[len(lates)*99/100].Round(time.Millisecond), lates[len(lates)-1].Round(time.Millisecond)
}

// audited is a rig whose API server notes who deletes pods.
type audited struct {
	*rig
	log string
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  verbs: [delete, deletecollection]
  resources: [{group: "", resources: [pods]}]
- level: Request
  verbs: [create]
  resources: [{group: "", resources: [pods/eviction]}]
- level: None
`

func newAudited(t *testing.T, svc *service.Service, name string) *audited {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, svc, name, "--audit-policy-file", policy, "--audit-log-path", log)
	return &audited{rig: r, log: log}
}

// user is the cluster's user that its agent is.
func (a *audited) user() string { return "agent-of-" + a.name }

func (a *audited) agentConfig() string { return a.plane.Kubeconfig(a.user(), "system:masters") }

// deletes are the deletes that the API server has carried out, by pod UID.
func (a *audited) deletes(t *testing.T) map[types.UID][]string {
	t.Helper()
	raw, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	users := map[types.UID][]string{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var e struct {
			User           struct{ Username string }
			ResponseStatus struct{ Code int }
			RequestObject  struct{ Preconditions struct{ UID types.UID } }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("audit log: %v: %s", err, lines.Bytes())
		}
		if e.ResponseStatus.Code < http.StatusMultipleChoices {
			uid := e.RequestObject.Preconditions.UID
			users[uid] = append(users[uid], e.User.Username)
		}
	}
	return users
}

// judge fails the test unless exactly these pods left, each by one delete of its own agent, which had no order but
// for them.
func (a *audited) judge(t *testing.T, pods []*corev1.Pod, all map[string][]*reprievev1.Eviction, agent *service.Agent) {
	t.Helper()
	a.onlyLeft(t, pods)
	a.onceEach(t, pods, all)
	if len(all) != len(pods) {
		t.Errorf("cluster %s has evictions of %d pods, want %d", a.name, len(all), len(pods))
	}
	deletes := a.deletes(t)
	for _, pod := range pods {
		if by := deletes[pod.UID]; len(by) != 1 || by[0] != a.user() {
			t.Errorf("pod %s of cluster %s was deleted by %v, want %s alone", pod.Name, a.name, by, a.user())
		}
	}
	if len(deletes) != len(pods) {
		t.Errorf("the API server of %s deleted %d pods, want %d", a.name, len(deletes), len(pods))
	}
	metrics := agent.Metrics()
	for _, outcome := range []string{"gone", "superseded"} {
		if n := metrics.Sum("reprieve_agent_orders_total", "outcome", outcome); n > 0 {
			t.Errorf("the agent of %s answered %s to %v orders: another cluster's?", a.name, outcome, n)
		}
	}
	if n := metrics.Sum("reprieve_agent_orders_total", "outcome", "evicted"); n != float64(len(pods)) {
		t.Errorf("the agent of %s evicted %v pods, want %d", a.name, n, len(pods))
	}
}
