package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/tainteviction"

	"github.com/reprieve-dev/reprieve/engine"
)

// heap is what is alive, in bytes.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// armOurs arms waits by a taint and cancels them by its end, over a store that
// keeps nothing: decision, record and timer count, the committer's disk does not.
func armOurs(r *run1) (figures, error) {
	o, err := start(r, openDiscard)
	if err != nil {
		return nil, err
	}
	defer o.stop()
	nodes := r.size / perNode
	if err := o.list(r, nodes, perNode); err != nil {
		return nil, err
	}
	on, off := nodeEvents(nodes, taint(waitKey)), nodeEvents(nodes)
	before := heap()
	w := startWatch()
	if err := o.batch(r, on); err != nil {
		return nil, err
	}
	arming := w.stop(r.size)
	if err := o.expect(r, engine.StateWaiting, r.size); err != nil {
		return nil, err
	}
	bytes := heap() - before
	w = startWatch()
	if err := o.batch(r, off); err != nil {
		return nil, err
	}
	return bothOf(arming, w.stop(r.size), bytes/float64(r.size)), o.expect(r, engine.StateWaiting, 0)
}

func armOriginal(r *run1) (figures, error) {
	q := tainteviction.CreateWorkerQueue(func(context.Context, time.Time, *tainteviction.WorkArgs) error { return nil })
	ctx := klog.NewContext(r, klog.Logger{})
	args := make([]*tainteviction.WorkArgs, r.size)
	for i := range args {
		args[i] = tainteviction.NewWorkArgs(podName(i), "shop")
	}
	before := heap()
	w := startWatch()
	now := time.Now()
	for _, a := range args {
		q.AddWork(ctx, a, now, now.Add(time.Hour))
	}
	arming := w.stop(r.size)
	bytes := heap() - before
	cancelled := 0
	w = startWatch()
	for _, a := range args {
		if q.CancelWork(klog.Logger{}, a.KeyFromWorkArgs()) {
			cancelled++
		}
	}
	cancelling := w.stop(r.size)
	if cancelled != r.size {
		return nil, fmt.Errorf("%d timers were cancelled, want %d", cancelled, r.size)
	}
	return bothOf(arming, cancelling, bytes/float64(r.size)), nil
}

// bothOf is the mean operation of two stretches of equally many.
func bothOf(a, b figures, bytes float64) figures {
	return figures{"cost": (1e9/a["rate"] + 1e9/b["rate"]) / 2, "cpu": (a["cpu"] + b["cpu"]) / 2, "bytes": bytes}
}

// memoryOurs mirrors pods of which none waits.
func memoryOurs(r *run1) (figures, error) {
	o, err := start(r, openMem())
	if err != nil {
		return nil, err
	}
	defer o.stop()
	before := heap()
	if err := o.list(r, r.size/perNode, perNode); err != nil {
		return nil, err
	}
	bytes := heap() - before
	st, err := o.eng.Cluster(r, clusterName)
	if err != nil || st.Pods != r.size {
		return nil, fmt.Errorf("the engine has not %d pods: %+v %w", r.size, st, err)
	}
	return figures{"bytes": bytes / float64(r.size)}, nil
}

// memoryInformer keeps the same pods as an informer does: its indexer, after a
// transform to the fields that ours reads.
func memoryInformer(r *run1) (figures, error) {
	store := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{
		"spec.nodeName": func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil },
	})
	before := heap()
	for i := range r.size {
		full := corePod(i, i/perNode)
		full.Labels = map[string]string{"app": "web", "pod-template-hash": "7d4b9c6f5d"}
		if err := store.Add(transformed(full)); err != nil {
			return nil, err
		}
	}
	bytes := heap() - before
	if n := len(store.ListKeys()); n != r.size {
		return nil, fmt.Errorf("the indexer has %d pods, want %d", n, r.size)
	}
	return figures{"bytes": bytes / float64(r.size)}, nil
}

// transformed keeps what ours reads of a pod.
func transformed(p *corev1.Pod) *corev1.Pod {
	owner := metav1.OwnerReference{UID: p.OwnerReferences[0].UID, Kind: "ReplicaSet"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID), CreationTimestamp: p.CreationTimestamp,
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, Tolerations: p.Spec.Tolerations},
		Status: corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions},
	}
}
