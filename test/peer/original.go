package main

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
)

// original is Kubernetes' own controller on an API server that is a fake.
type original struct {
	client  *fake.Clientset
	workers reflect.Value
	nodes   []*corev1.Node
}

// startOriginal runs the controller on so many nodes with so many pods each and
// waits until its caches have them. calls, if set, stands between the controller and the fake.
func startOriginal(ctx context.Context, nodes, perNode int, calls func(kubernetes.Interface) kubernetes.Interface) (*original, error) {
	ctx = klog.NewContext(ctx, klog.Logger{})
	// The fake's watches panic when a reader is slower than that.
	watch.DefaultChanSize = 100_000
	o := &original{}
	var objects []runtime.Object
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), UID: types.UID(nodeUID(i))}}
		o.nodes = append(o.nodes, n)
		objects = append(objects, n)
		for k := range perNode {
			objects = append(objects, corePod(i*perNode+k, i))
		}
	}
	o.client = fake.NewSimpleClientset(objects...)
	var client kubernetes.Interface = o.client
	if calls != nil {
		client = calls(client)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	if err := pods.Informer().AddIndexers(cache.Indexers{"spec.nodeName": func(obj any) ([]string, error) {
		return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
	}}); err != nil {
		return nil, err
	}
	c, err := tainteviction.New(ctx, client, pods, factory.Core().V1().Nodes(), "taint-eviction-controller")
	if err != nil {
		return nil, err
	}
	// How many waits it holds, it tells nobody.
	o.workers = reflect.ValueOf(c).Elem().FieldByName("taintEvictionQueue").Elem().FieldByName("workers")
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil, fmt.Errorf("cache of %v did not sync", kind)
		}
	}
	if n := len(pods.Informer().GetStore().ListKeys()); n != nodes*perNode {
		return nil, fmt.Errorf("the original's cache has %d pods, want %d", n, nodes*perNode)
	}
	go c.Run(ctx)
	// It looks at every pod and node once; nothing follows from it that could be waited for.
	time.Sleep(2 * time.Second)
	return o, nil
}

func corePod(i, node int) *corev1.Pod {
	bound := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop-" + strconv.Itoa(node%50), Name: podName(i), UID: types.UID(podUID(i)), CreationTimestamp: bound,
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", APIVersion: "apps/v1", Name: "web-7d4b9c6f5d", UID: types.UID(fmt.Sprintf("1b0c2a94-77d1-4c1c-8e0c-%012d", i/20))}},
		},
		Spec: corev1.PodSpec{NodeName: nodeName(node), Tolerations: tolerations(hour)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: bound},
		}},
	}
}

// taint gives every node the taints, as its only ones.
func (o *original) taint(ctx context.Context, taints ...corev1.Taint) error {
	for _, n := range o.nodes {
		n = n.DeepCopy()
		n.Spec.Taints = taints
		if _, err := o.client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func coreTaint(key string) corev1.Taint {
	now := metav1.Now()
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &now}
}

// until waits until it holds so many waits.
func (o *original) until(ctx context.Context, want int) error {
	for o.workers.Len() != want {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the original holds %d waits, want %d: %w", o.workers.Len(), want, context.Cause(ctx))
		}
	}
	return nil
}

// slowDeletes is a clientset whose calls for pods succeed at once, but for
// deletes, which take a while each; events go nowhere.
type slowDeletes struct {
	kubernetes.Interface
	after   time.Duration
	deleted func()
}

func (c slowDeletes) CoreV1() typedcorev1.CoreV1Interface {
	return slowCore{c.Interface.CoreV1(), c}
}

// IsWatchListSemanticsUnSupported passes on what the fake says of itself: it
// serves no list by a watch.
func (slowDeletes) IsWatchListSemanticsUnSupported() bool { return true }

type slowCore struct {
	typedcorev1.CoreV1Interface
	c slowDeletes
}

func (c slowCore) Pods(ns string) typedcorev1.PodInterface {
	return slowPods{c.CoreV1Interface.Pods(ns), c.c}
}

func (c slowCore) Events(ns string) typedcorev1.EventInterface {
	return noEvents{c.CoreV1Interface.Events(ns)}
}

type slowPods struct {
	typedcorev1.PodInterface
	c slowDeletes
}

func (p slowPods) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	i, err := strconv.Atoi(name[len(name)-7:])
	return corePod(i, 0), err
}

func (p slowPods) Patch(_ context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Pod, error) {
	return p.Get(context.Background(), name, metav1.GetOptions{})
}

func (p slowPods) Delete(context.Context, string, metav1.DeleteOptions) error {
	time.Sleep(p.c.after)
	p.c.deleted()
	return nil
}

type noEvents struct{ typedcorev1.EventInterface }

func (noEvents) CreateWithEventNamespaceWithContext(_ context.Context, e *corev1.Event) (*corev1.Event, error) {
	return e, nil
}

func (noEvents) PatchWithEventNamespaceWithContext(_ context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e, nil
}
