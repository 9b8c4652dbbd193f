package kube

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// Hearts renew the Leases of nodes, as kubelets do, and are known to the millisecond.
type Hearts struct {
	t     testing.TB
	cs    kubernetes.Interface
	every time.Duration

	// mu guards what follows.
	mu       sync.Mutex
	beats    map[string]*beat
	last     map[string]time.Time
	renewals int
}

// beat is one node's renewals.
type beat struct {
	stop context.CancelFunc
	done chan struct{}
}

// NewHearts returns hearts that renew so often. They stop with the test.
func NewHearts(t testing.TB, cs kubernetes.Interface, every time.Duration) *Hearts {
	h := &Hearts{t: t, cs: cs, every: every, beats: map[string]*beat{}, last: map[string]time.Time{}}
	t.Cleanup(func() {
		h.mu.Lock()
		var all []string
		for node := range h.beats {
			all = append(all, node)
		}
		h.mu.Unlock()
		h.Stop(all...)
	})
	return h
}

// Start makes the nodes' hearts beat, the first time at once. While the API server is away they try on.
func (h *Hearts) Start(nodes ...string) {
	for _, node := range nodes {
		ctx, stop := context.WithCancel(context.Background())
		b := &beat{stop: stop, done: make(chan struct{})}
		h.mu.Lock()
		if h.beats[node] != nil {
			h.mu.Unlock()
			stop()
			h.t.Fatalf("the heart of node %s beats already", node)
		}
		h.beats[node] = b
		h.mu.Unlock()
		go func() {
			defer close(b.done)
			for {
				at := await.Now()
				if h.renew(ctx, node) == nil {
					h.mu.Lock()
					h.last[node] = at
					h.renewals++
					h.mu.Unlock()
				}
				if !await.Pause(ctx, h.every) {
					return
				}
			}
		}()
	}
}

// Stop stops the nodes' hearts, and returns when none of them will renew any more.
func (h *Hearts) Stop(nodes ...string) {
	h.mu.Lock()
	var stopped []*beat
	for _, node := range nodes {
		if b := h.beats[node]; b != nil {
			stopped = append(stopped, b)
			delete(h.beats, node)
		}
	}
	h.mu.Unlock()
	for _, b := range stopped {
		b.stop()
	}
	for _, b := range stopped {
		<-b.done
	}
}

// Last is when a node's last renewal that the API server took was sent: nobody can have
// known of it before.
func (h *Hearts) Last(node string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[node]
}

// Renewals is how many the API server has taken so far.
func (h *Hearts) Renewals() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.renewals
}

// renew is one renewal. It ends by itself when the API server hangs.
func (h *Hearts) renew(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	leases := h.cs.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NewMicroTime(await.Now())
	patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, now.UTC().Format(metav1.RFC3339Micro))
	_, err := leases.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: corev1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &now},
		}, metav1.CreateOptions{})
	}
	return err
}
