package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// labName is the cluster's name with the service of a lab.
	labName = "lab"
	// labAgent is the user that a lab's agent is.
	labAgent = "reprieve-agent"
	// soon bounds what should take moments, on a busy machine.
	soon = time.Minute
)

// lab is one cluster that the service enforces in, through one agent with the rights that deploy/ gives it.
type lab struct {
	*controlplane.ControlPlane
	service   *service.Service
	agent     *service.Agent
	deletions *kube.Recorder
	// rules are the agent's rights.
	rules []rbacv1.PolicyRule
}

// startLab boots a lab. It returns when the service has the whole cluster, which has nothing in it yet.
func startLab(t *testing.T, o controlplane.Options) *lab {
	t.Helper()
	l := &lab{ControlPlane: controlplane.Start(t, o), service: service.Start(t, service.Options{Clusters: []string{labName}})}
	l.rules = kube.ClusterRules(t, filepath.Join(process.Root(t), "deploy/kustomize/base/clusterrole/clusterrole.yaml"), labAgent)
	kube.Grant(t, l.Admin, labAgent, l.rules)
	kube.WaitAllowed(t, l.Admin, labAgent, "delete", "", true)
	l.service.Enforce(labName)
	l.agent = l.service.StartAgent(service.AgentOptions{Cluster: labName, Kubeconfig: l.Kubeconfig(labAgent)})
	l.service.WaitSynced(labName, soon)
	l.service.WaitExecutor(labName, soon)
	l.deletions = kube.Record(t, l.Admin)
	return l
}

// closed waits until the pod has a closed eviction, and returns the newest.
func (l *lab) closed(t *testing.T, pod *corev1.Pod) *reprievev1.Eviction {
	t.Helper()
	var last *reprievev1.Eviction
	await.Until(t, soon, "the eviction of "+pod.Name+" to close", func(context.Context) error {
		all := l.service.History(labName)[string(pod.UID)]
		if len(all) == 0 {
			return fmt.Errorf("open is %v", l.service.Open(labName)[string(pod.UID)])
		}
		last = all[0]
		return nil
	})
	return last
}

// open waits until the pod has an open eviction that satisfies holds.
func (l *lab) open(t *testing.T, pod *corev1.Pod, what string, holds func(*reprievev1.Eviction) bool) *reprievev1.Eviction {
	t.Helper()
	var ev *reprievev1.Eviction
	await.Until(t, soon, "the eviction of "+pod.Name+" to be "+what, func(context.Context) error {
		if ev = l.service.Open(labName)[string(pod.UID)]; ev == nil || !holds(ev) {
			return fmt.Errorf("open is %v, closed %v", ev, l.service.History(labName)[string(pod.UID)])
		}
		return nil
	})
	return ev
}

// inSight waits until the service has so many pods.
func (l *lab) inSight(t *testing.T, pods uint64) {
	t.Helper()
	await.Until(t, soon, "the service to see the pods", func(context.Context) error {
		if got := l.service.Cluster(labName).GetPods(); got != pods {
			return fmt.Errorf("it sees %d of %d", got, pods)
		}
		return nil
	})
}

// pod reads a pod as it is now.
func (l *lab) pod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	now, err := l.Admin.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// event waits for an event on the pod whose message has this text.
func (l *lab) event(t *testing.T, pod *corev1.Pod, text string) corev1.Event {
	t.Helper()
	var found corev1.Event
	await.Until(t, soon, fmt.Sprintf("an event %q on %s", text, pod.Name), func(ctx context.Context) error {
		events, err := kube.Events(ctx, l.Admin, pod)
		if err != nil {
			return err
		}
		for _, e := range events {
			if strings.Contains(e.Message, text) {
				found = e
				return nil
			}
		}
		return fmt.Errorf("its events are %v", events)
	})
	return found
}

// alone fails the test if the service believes that another controller evicts too.
func (l *lab) alone(t *testing.T) {
	t.Helper()
	if w := l.service.Cluster(labName).GetWarnings(); len(w) > 0 {
		t.Errorf("the service warns: %q", w)
	}
	if n := l.service.Metrics().Sum("reprieve_foreign_evictions_total", "cluster", labName); n > 0 {
		t.Errorf("%g evictions are counted as another controller's", n)
	}
}

func disruption(pod *corev1.Pod) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
