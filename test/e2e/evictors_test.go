package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
)

// tellWithin is how long a second evictor may go unnoticed.
const tellWithin = 10 * time.Second

// The built-in controller that still runs in a cluster that the service enforces in is told of: in the cluster's
// warnings, as a metric and in the log. A pause keeps the service's own hands off, so that the pods are the other's.
func TestTwoEvictorsAreToldOf(t *testing.T) {
	l := startLab(t, controlplane.Options{ControllerManager: &controlplane.ControllerManager{
		Controllers: []string{"node-lifecycle-controller", "taint-eviction-controller"}, QPS: 1000, Burst: 1000, NodeMonitorGrace: time.Hour,
		Flags: []string{"--node-startup-grace-period=1h"},
	}})
	l.alone(t)
	l.service.CLI("pause", labName, "--reason", "the built-in controller is to be seen")
	kube.CreateNodes(t, l.Admin, "n")
	pods := kube.CreatePods(t, l.Admin, kube.Bulk("p", 5, []string{"n"}, nil)...)
	l.inSight(t, uint64(len(pods)))
	kube.Taint(t, l.Admin, "n", kube.NoExecute("maintenance", "now"))
	l.deletions.Wait(t, soon, kube.UIDs(pods)...)
	await.Until(t, tellWithin, "word of the second evictor", func(context.Context) error {
		switch warnings := strings.Join(l.service.Cluster(labName).GetWarnings(), "\n"); {
		case !strings.Contains(warnings, "taint-eviction-controller"):
			return errors.New("the cluster's warnings are " + warnings)
		case l.service.Metrics().Sum("reprieve_foreign_evictions_total", "cluster", labName) == 0:
			return errors.New("the metric is 0")
		case !strings.Contains(string(l.service.Log()), "level=WARN msg=\"two evictors"):
			return errors.New("the log does not say so")
		}
		return nil
	})
	if open := l.service.Open(labName); len(open) > 0 {
		t.Errorf("evictions of deleted pods are open: %v", open)
	}
}
