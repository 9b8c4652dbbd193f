package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// Change is what a watch showed of a node: a condition's new status, such as Ready=Unknown, or a taint that came or
// went, such as +key:NoExecute and -key:NoExecute.
type Change struct {
	Node, What string
	// Seen is when the watch showed it.
	Seen time.Time
}

// NodeRecorder follows the conditions and taints of all nodes, through outages of the API server.
type NodeRecorder struct {
	// mu guards changes.
	mu      sync.Mutex
	changes []Change
}

// RecordNodes starts to follow the nodes until the test ends. Nodes that are there already begin without a change.
func RecordNodes(t testing.TB, cs kubernetes.Interface) *NodeRecorder {
	t.Helper()
	r := &NodeRecorder{}
	follow(t, cs, "nodes", &corev1.Node{}, func(was, is *corev1.Node) {
		if was != nil && is != nil {
			r.see(was, is)
		}
	})
	return r
}

func (r *NodeRecorder) see(was, is *corev1.Node) {
	now := await.Now()
	old, current := traits(was), traits(is)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, trait := range current {
		if !slices.Contains(old, trait) {
			r.changes = append(r.changes, Change{is.Name, trait, now})
		}
	}
	for _, trait := range old {
		if taint, ok := strings.CutPrefix(trait, "+"); ok && !slices.Contains(current, trait) {
			r.changes = append(r.changes, Change{is.Name, "-" + taint, now})
		}
	}
}

// traits are a node's conditions and taints as changes name them.
func traits(n *corev1.Node) (all []string) {
	for _, c := range n.Status.Conditions {
		all = append(all, string(c.Type)+"="+string(c.Status))
	}
	for _, taint := range n.Spec.Taints {
		all = append(all, "+"+taint.Key+":"+string(taint.Effect))
	}
	return all
}

// Of returns a node's changes since an instant, in their order.
func (r *NodeRecorder) Of(node string, since time.Time) []Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Change
	for _, c := range r.changes {
		if c.Node == node && !c.Seen.Before(since) {
			all = append(all, c)
		}
	}
	return all
}

// First returns a node's first such change since an instant, if there was one.
func (r *NodeRecorder) First(node, what string, since time.Time) (time.Time, bool) {
	for _, c := range r.Of(node, since) {
		if c.What == what {
			return c.Seen, true
		}
	}
	return time.Time{}, false
}

// Wait waits for a node's first such change since an instant and returns when that was.
func (r *NodeRecorder) Wait(t testing.TB, within time.Duration, node, what string, since time.Time) time.Time {
	t.Helper()
	var at time.Time
	await.Until(t, within, what+" of node "+node, func(context.Context) (err error) {
		var ok bool
		if at, ok = r.First(node, what, since); !ok {
			err = fmt.Errorf("since %s it had %v", since.Format(time.StampMilli), r.Of(node, since))
		}
		return err
	})
	return at
}

// Quiet fails the test if one of the nodes has changed in any way since an instant.
func (r *NodeRecorder) Quiet(t testing.TB, since time.Time, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		if all := r.Of(node, since); len(all) > 0 {
			t.Errorf("node %s should not have changed since %s, and did: %v", node, since.Format(time.StampMilli), all)
		}
	}
}
