package kube

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// Deletion is what a watch showed of one pod's end.
type Deletion struct {
	Namespace, Name, Node string
	UID                   types.UID
	// Seen is when the watch first showed the pod terminating, or gone. After an outage of the API server it may be
	// later than the deletion.
	Seen time.Time
	// Asked is when the API server took the delete, in whole seconds; zero if the pod was gone before it was seen.
	Asked time.Time
	// Reason is that of the condition DisruptionTarget, if the pod has it.
	Reason string
}

// Recorder follows all pods of a cluster, through outages of its API server.
type Recorder struct {
	// mu guards deleted.
	mu      sync.Mutex
	deleted map[types.UID]Deletion
}

// Record starts to follow the pods of a cluster until the test ends. It returns when it has the list of those there.
func Record(t testing.TB, cs kubernetes.Interface) *Recorder {
	t.Helper()
	r := &Recorder{deleted: map[types.UID]Deletion{}}
	follow(t, cs, "pods", &corev1.Pod{}, func(was, is *corev1.Pod) {
		if is == nil {
			r.see(was, true)
		} else {
			r.see(is, false)
		}
	})
	return r
}

func (r *Recorder) see(pod *corev1.Pod, gone bool) {
	if pod.DeletionTimestamp == nil && !gone {
		return
	}
	now := await.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.deleted[pod.UID]; known {
		return
	}
	d := Deletion{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, UID: pod.UID, Seen: now}
	if pod.DeletionTimestamp != nil {
		d.Asked = pod.DeletionTimestamp.Time
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			d.Asked = d.Asked.Add(-time.Duration(*grace) * time.Second)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			d.Reason = c.Reason
		}
	}
	r.deleted[pod.UID] = d
}

// All returns the deletions so far, by UID.
func (r *Recorder) All() map[types.UID]Deletion {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.deleted)
}

// Of returns the deletion of one pod, if there was one.
func (r *Recorder) Of(uid types.UID) (Deletion, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.deleted[uid]
	return d, ok
}

// Wait waits until all of these pods are deleted.
func (r *Recorder) Wait(t testing.TB, within time.Duration, uids ...types.UID) {
	t.Helper()
	await.Until(t, within, "pods to be deleted", func(context.Context) error {
		all := r.All()
		missing := 0
		for _, uid := range uids {
			if _, ok := all[uid]; !ok {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d are not", missing, len(uids))
		}
		return nil
	})
}

// NoneOf fails the test if one of these pods has been deleted.
func (r *Recorder) NoneOf(t testing.TB, uids ...types.UID) {
	t.Helper()
	for _, uid := range uids {
		if d, ok := r.Of(uid); ok {
			t.Errorf("pod %s/%s (uid %s) was deleted at %s (reason %q) and should have stayed", d.Namespace, d.Name, uid, d.Seen.Format(time.StampMilli), d.Reason)
		}
	}
}
