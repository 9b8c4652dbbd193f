package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// renewEvery is how often a kubelet renews its Lease.
	renewEvery = 10
	// grace is how long a node may be silent, the same for both sides, and watchFor
	// how long the nodes are watched: what may come on top is in it.
	grace, watchFor = 20 * time.Second, 30 * time.Second
	// registering is how long the original has for its first look at the nodes.
	registering = 5 * time.Second
)

// tick is a second of the nodes' time: a tenth of them renews, but the first, which is dead.
func renewing(second, nodes int) (which []int) {
	for i := second % renewEvery; i < nodes; i += renewEvery {
		if i > 0 {
			which = append(which, i)
		}
	}
	return which
}

// watched lets nodes renew for watchFor and measures the share of a core, and how
// long after the last sign of it the dead node is found.
func watched(ctx context.Context, nodes int, renew func([]int) error, found func() (bool, error)) (figures, error) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	began, usedBefore, dead := time.Now(), processorTime(), time.Duration(0)
	for second := 0; time.Since(began) < watchFor; second++ {
		if err := renew(renewing(second, nodes)); err != nil {
			return nil, err
		}
		if dead == 0 && time.Since(began) > grace/2 {
			yes, err := found()
			if err != nil {
				return nil, err
			}
			if yes {
				dead = time.Since(began)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if dead == 0 {
		return nil, fmt.Errorf("the dead node was not found within %s", watchFor)
	}
	return figures{"share": 100 * (processorTime() - usedBefore).Seconds() / time.Since(began).Seconds(), "found": dead.Seconds()}, nil
}

// nodesOurs is the whole service with node health, on bbolt, fed over a socket.
func nodesOurs(r *run1) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "nodes-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := startService(r, dir, openBolt(dir))
	if err != nil {
		return nil, err
	}
	observe := reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE
	if _, err := reprievev1.NewAdminServiceClient(s.conn).SetPolicy(r, &reprievev1.SetPolicyRequest{
		Cluster: clusterName, Policy: &reprievev1.ClusterPolicy{
			NodeHealth: &observe, NodeHealthFigures: &reprievev1.NodeHealthFigures{GracePeriod: durationpb.New(grace)},
		},
	}); err != nil {
		return nil, err
	}
	f, err := openFeed(r, s.conn)
	if err != nil {
		return nil, err
	}
	if err := f.healthyNodes(r.size); err != nil {
		return nil, err
	}
	query := reprievev1.NewQueryServiceClient(s.conn)
	fig, err := watched(r, r.size, f.renew, func() (bool, error) {
		x, err := query.ExplainNode(r, &reprievev1.ExplainNodeRequest{Cluster: clusterName, Node: nodeName(0)})
		return x.GetNode().GetHealth().GetSilent(), err
	})
	if err != nil {
		return nil, err
	}
	return fig, s.stop()
}

// healthyNodes lists nodes that are ready.
func (f *wireFeed) healthyNodes(nodes int) error {
	if err := f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}); err != nil {
		return err
	}
	for i := range nodes {
		n := &reprievev1.Node{Name: nodeName(i), Uid: nodeUID(i)}
		for _, c := range readyConditions() {
			n.Conditions = append(n.Conditions, &reprievev1.NodeCondition{
				Type: string(c.Type), Status: string(c.Status), LastHeartbeatTime: timestamppb.New(c.LastHeartbeatTime.Time),
			})
		}
		if err := f.events(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: n}}); err != nil {
			return err
		}
	}
	if err := f.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}}); err != nil {
		return err
	}
	return f.acked(f.seq)
}

func readyConditions() []corev1.NodeCondition {
	conditions := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		conditions = append(conditions, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now()})
	}
	return conditions
}

// renew tells of the nodes' leases.
func (f *wireFeed) renew(which []int) error {
	m := &reprievev1.NodeLeaseRenewals{}
	for _, i := range which {
		m.NodeNames, m.RenewTimes = append(m.NodeNames, nodeName(i)), append(m.RenewTimes, timestamppb.Now())
	}
	if err := f.events(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_LeaseRenewals{LeaseRenewals: m}}); err != nil {
		return err
	}
	return f.acked(f.seq)
}

// nodesOriginal is Kubernetes' own controller with its usual figures. Renewals are
// put into its cache directly, so that no watch counts.
func nodesOriginal(r *run1) (figures, error) {
	ctx, cancel := context.WithCancel(klog.NewContext(r, klog.Logger{}))
	defer cancel()
	watch.DefaultChanSize = 100_000
	var objects []runtime.Object
	for i := range r.size {
		objects = append(objects,
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), UID: types.UID(nodeUID(i)), CreationTimestamp: metav1.Now()},
				Status:     corev1.NodeStatus{Conditions: readyConditions()},
			}, lease(i))
	}
	client := fake.NewSimpleClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	leases := factory.Coordination().V1().Leases()
	c, err := nodelifecycle.NewNodeLifecycleController(ctx, leases, factory.Core().V1().Pods(), factory.Core().V1().Nodes(),
		factory.Apps().V1().DaemonSets(), deafClient{client}, 5*time.Second, time.Minute, grace, 0.1, 0.01, 50, 0.55)
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	// It says of every node that it is registered, which is not what is measured.
	time.Sleep(registering)
	fig, err := watched(ctx, r.size, func(which []int) error {
		for _, i := range which {
			if err := leases.Informer().GetStore().Update(lease(i)); err != nil {
				return err
			}
		}
		return nil
	}, func() (bool, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, nodeName(0), metav1.GetOptions{})
		return err == nil && n.Status.Conditions[0].Status == corev1.ConditionUnknown, err
	})
	cancel()
	<-ended
	return fig, err
}

// deafClient is a fake that takes the controller's events, which go another way, and forgets them.
type deafClient struct{ kubernetes.Interface }

type deafCore struct{ typedcorev1.CoreV1Interface }

func (c deafClient) CoreV1() typedcorev1.CoreV1Interface { return deafCore{c.Interface.CoreV1()} }

func (deafCore) RESTClient() rest.Interface {
	return &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: corev1.SchemeGroupVersion,
		Client: restfake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader(""))}, nil
		}),
	}
}

func lease(i int) *coordv1.Lease {
	now := metav1.NewMicroTime(time.Now())
	return &coordv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: nodeName(i)},
		Spec:       coordv1.LeaseSpec{RenewTime: &now},
	}
}
