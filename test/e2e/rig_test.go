package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

const (
	// syncWithin bounds the time in which an agent takes over a cluster: 10 s for another one's lease, and a list.
	syncWithin = time.Minute
	// key is the taint of these tests.
	key = "reprieve.dev/outage"
)

// rig is one cluster that a service evicts in. It has no kubelets: a deleted pod stays there, terminating.
type rig struct {
	name      string
	plane     *controlplane.ControlPlane
	svc       *service.Service
	deletions *kube.Recorder
}

// newRig boots a cluster for the service to enforce in; the agent is the test's to start.
func newRig(t *testing.T, svc *service.Service, name string, apiServerFlags ...string) *rig {
	t.Helper()
	svc.Enforce(name)
	plane := controlplane.Start(t, controlplane.Options{APIServerFlags: apiServerFlags})
	return &rig{name: name, plane: plane, svc: svc, deletions: kube.Record(t, plane.Admin)}
}

// waitServed waits until the service is fed and an executor is there.
func (r *rig) waitServed() {
	r.svc.WaitSynced(r.name, syncWithin)
	r.svc.WaitExecutor(r.name, syncWithin)
}

// records are a cluster's evictions by pod UID, open and closed; an open one comes last. One that has closed and is on
// its way to disk may be missing.
func (r *rig) records() map[string][]*reprievev1.Eviction {
	open := r.svc.Open(r.name)
	all := r.svc.History(r.name)
	for uid, ev := range open {
		if !slices.ContainsFunc(all[uid], func(closed *reprievev1.Eviction) bool { return closed.GetId() == ev.GetId() }) {
			all[uid] = append(all[uid], ev)
		}
	}
	return all
}

// waitRecords waits until each of the pods has a record, and returns all records.
func (r *rig) waitRecords(t *testing.T, pods ...*corev1.Pod) map[string][]*reprievev1.Eviction {
	t.Helper()
	var all map[string][]*reprievev1.Eviction
	await.Until(t, syncWithin, "the service to know of the evictions", func(context.Context) error {
		all = r.records()
		missing := 0
		for _, pod := range pods {
			if len(all[string(pod.UID)]) == 0 {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d pods have none", missing, len(pods))
		}
		return nil
	})
	return all
}

// waitClosed waits until the pods' evictions are closed, all of them and on disk, and returns all records.
func (r *rig) waitClosed(t *testing.T, within time.Duration, pods ...*corev1.Pod) map[string][]*reprievev1.Eviction {
	t.Helper()
	var all map[string][]*reprievev1.Eviction
	await.Until(t, within, "evictions to close", func(context.Context) error {
		all = r.records()
		for _, pod := range pods {
			evs := all[string(pod.UID)]
			if len(evs) == 0 {
				return fmt.Errorf("pod %s has none", pod.Name)
			}
			if ev := evs[len(evs)-1]; ev.GetState() != reprievev1.EvictionState_EVICTION_STATE_CLOSED {
				return fmt.Errorf("that of %s is %s, hold %s, last outcome %s %q", pod.Name, ev.GetState(), ev.GetHold(), ev.GetLastOutcome(), ev.GetLastMessage())
			}
		}
		return nil
	})
	return all
}

// onlyLeft fails the test if a pod beside these has been deleted.
func (r *rig) onlyLeft(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	may := map[types.UID]bool{}
	for _, pod := range pods {
		may[pod.UID] = true
	}
	for uid, d := range r.deletions.All() {
		if !may[uid] {
			t.Errorf("pod %s on node %s (uid %s) was deleted at %s and should have stayed", d.Name, d.Node, uid, d.Seen.Format(time.StampMilli))
		}
	}
}

// onceEach fails the test unless each pod left by exactly one eviction, with the built-in controller's reason.
func (r *rig) onceEach(t *testing.T, pods []*corev1.Pod, all map[string][]*reprievev1.Eviction) {
	t.Helper()
	for _, pod := range pods {
		evs := all[string(pod.UID)]
		if len(evs) != 1 {
			t.Errorf("pod %s has %d evictions, want 1: %v", pod.Name, len(evs), evs)
			continue
		}
		ev := evs[0]
		if d, ok := r.deletions.Of(pod.UID); !ok || d.Reason != "DeletionByTaintManager" {
			t.Errorf("pod %s: deleted %t, for %q: %v", pod.Name, ok, d.Reason, ev)
		}
		switch ev.GetCloseReason() {
		case reprievev1.CloseReason_CLOSE_REASON_EVICTED, reprievev1.CloseReason_CLOSE_REASON_GONE, reprievev1.CloseReason_CLOSE_REASON_POD_DELETED:
			// The last two where the answer was lost with the program that was killed.
			if ev.GetFirstSendTime() == nil {
				t.Errorf("pod %s left without an order: %v", pod.Name, ev)
			}
		default:
			t.Errorf("the eviction of pod %s is %s, closed as %s", pod.Name, ev.GetState(), ev.GetCloseReason())
		}
	}
}

// sameDue fails the test if a pod has not one eviction as before, due at the same instant.
func sameDue(t *testing.T, pods []*corev1.Pod, before, after map[string][]*reprievev1.Eviction) {
	t.Helper()
	for _, pod := range pods {
		was, is := before[string(pod.UID)], after[string(pod.UID)]
		if len(was) != 1 || len(is) != 1 {
			t.Fatalf("pod %s had %d evictions and has %d, want 1", pod.Name, len(was), len(is))
		}
		if w, i := was[0].GetDueTime().AsTime(), is[0].GetDueTime().AsTime(); !w.Equal(i) {
			t.Errorf("pod %s was due at %s and then at %s", pod.Name, w, i)
		}
	}
}

// late is how long after its due instant an eviction's last order was sent.
func late(ev *reprievev1.Eviction) time.Duration {
	return ev.GetLastSendTime().AsTime().Sub(ev.GetDueTime().AsTime())
}
