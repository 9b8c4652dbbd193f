package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// parallel is how many requests forEach has under way.
const parallel = 16

// Pod is a pod bound to a node at creation, of one container that kwok says runs.
type Pod struct {
	// Namespace is default if empty.
	Namespace, Name, Node string
	// Tolerations are added to those that the API server's admission gives every pod.
	Tolerations []corev1.Toleration
	Labels      map[string]string
	// Shape changes the object before it is created; may be nil.
	Shape func(*corev1.Pod)
}

// Tolerate is a toleration of every value of a NoExecute taint's key: for so many seconds, or for ever if negative.
func Tolerate(key string, seconds int64) corev1.Toleration {
	tol := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if seconds >= 0 {
		tol.TolerationSeconds = &seconds
	}
	return tol
}

// Object is the pod as it is sent to the API server.
func (p Pod) Object() *corev1.Pod {
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{
			NodeName: p.Node, Tolerations: p.Tolerations,
			Containers: []corev1.Container{{Name: "main", Image: "registry.invalid/main"}},
		},
	}
	if p.Shape != nil {
		p.Shape(pod)
	}
	return pod
}

// Bulk returns n pods prefix-0 and on, spread over the nodes, each shaped by shape if that is not nil.
func Bulk(prefix string, n int, nodes []string, shape func(i int, p *Pod)) []Pod {
	pods := make([]Pod, n)
	for i := range pods {
		pods[i] = Pod{Name: fmt.Sprintf("%s-%d", prefix, i), Node: nodes[i%len(nodes)]}
		if shape != nil {
			shape(i, &pods[i])
		}
	}
	return pods
}

// CreatePods makes pods, several at a time, and returns them as created, in their order.
func CreatePods(t testing.TB, cs kubernetes.Interface, pods ...Pod) []*corev1.Pod {
	t.Helper()
	made := make([]*corev1.Pod, len(pods))
	index := make([]int, len(pods))
	for i := range index {
		index[i] = i
	}
	forEach(t, index, func(ctx context.Context, i int) error {
		obj := pods[i].Object()
		pod, err := cs.CoreV1().Pods(obj.Namespace).Create(ctx, obj, metav1.CreateOptions{})
		made[i] = pod
		return err
	})
	return made
}

// WaitRunning waits until pods are running, which needs kwok and a node that it plays.
func WaitRunning(t testing.TB, cs kubernetes.Interface, pods []*corev1.Pod) {
	t.Helper()
	await.Until(t, settleWithin, "pods to run", func(ctx context.Context) error {
		running := map[types.UID]bool{}
		list, err := cs.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			running[list.Items[i].UID] = true
		}
		missing := 0
		for _, pod := range pods {
			if !running[pod.UID] {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d do not", missing, len(pods))
		}
		return nil
	})
}

// Alive returns the pods, by UID, that exist and are not terminating.
func Alive(ctx context.Context, cs kubernetes.Interface) (map[types.UID]*corev1.Pod, error) {
	list, err := cs.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	alive := map[types.UID]*corev1.Pod{}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil {
			alive[pod.UID] = pod
		}
	}
	return alive, nil
}

// Events returns the events about a pod, by its UID.
func Events(ctx context.Context, cs kubernetes.Interface, pod *corev1.Pod) ([]corev1.Event, error) {
	list, err := cs.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)).String(),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// UIDs returns the pods' UIDs.
func UIDs(pods []*corev1.Pod) []types.UID {
	uids := make([]types.UID, len(pods))
	for i := range pods {
		uids[i] = pods[i].UID
	}
	return uids
}

// forEach calls do for all items, several at a time, and fails the test with all errors.
func forEach[T any](t testing.TB, items []T, do func(context.Context, T) error) {
	t.Helper()
	var (
		wait sync.WaitGroup
		// mu guards errs.
		mu   sync.Mutex
		errs []error
		next = make(chan T)
	)
	for range min(parallel, len(items)) {
		wait.Go(func() {
			for item := range next {
				if err := do(t.Context(), item); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("%v: %w", item, err))
					mu.Unlock()
				}
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
