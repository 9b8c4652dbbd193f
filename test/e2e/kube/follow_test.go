package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// toldWithin is how long a recorder may take for what it must tell.
const toldWithin = 8 * time.Second

var outOfService = corev1.Taint{Key: "test/out", Effect: corev1.TaintEffectNoExecute}

// wantChanges fails unless these and no others are what the recorder has of a node.
func wantChanges(t *testing.T, r *NodeRecorder, node string, want ...string) {
	t.Helper()
	var got []string
	for _, c := range r.Of(node, time.Time{}) {
		got = append(got, c.What)
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes of node %s: %v, want %v", node, got, want)
	}
}

// A change that comes between the list and the watch is told, however the server lists.
func TestRecorderMissesNothingAfterTheList(t *testing.T) {
	for name, plain := range map[string]bool{"a list, then a watch": true, "a watch that lists": false} {
		t.Run(name, func(t *testing.T) {
			a, cs := newFakeAPI(t)
			a.plain = plain
			a.put(fakeNode("n1", "True"), 1)
			a.then = func() { a.put(fakeNode("n1", "Unknown"), 1) }
			r := RecordNodes(t, cs)
			r.Wait(t, toldWithin, "n1", "Ready=Unknown", time.Time{})
			wantChanges(t, r, "n1", "Ready=Unknown")
		})
	}
}

// An object that is delivered twice has changed once.
func TestRecorderTellsAChangeOnce(t *testing.T) {
	a, cs := newFakeAPI(t)
	pod := fakePod(1)
	a.put(fakeNode("n1", "True"), 1)
	a.put(pod, 1)
	nodes, pods := RecordNodes(t, cs), Record(t, cs)
	a.put(fakeNode("n1", "Unknown"), 2)
	a.put(fakeNode("n1", "Unknown", outOfService), 2)
	a.put(fakeNode("n1", "Unknown"), 2)
	a.put(fakeNode("n1", "True"), 1)
	nodes.Wait(t, toldWithin, "n1", "Ready=True", time.Time{})
	wantChanges(t, nodes, "n1", "Ready=Unknown", "+test/out:NoExecute", "-test/out:NoExecute", "Ready=True")
	pods.NoneOf(t, pod.UID)
	a.remove(pod)
	pods.Wait(t, toldWithin, pod.UID)
}

// What happens while the API server is away is told soon after it is back: an informer's back-off would take longer
// than toldWithin by its fourth try. What has not changed is not told.
func TestRecorderFindsTheServerBack(t *testing.T) {
	a, cs := newFakeAPI(t)
	pods := []*corev1.Pod{fakePod(0), fakePod(1)}
	for _, pod := range pods {
		a.put(pod, 1)
	}
	a.put(fakeNode("n1", "True", outOfService), 1)
	a.put(fakeNode("n2", "True"), 1)
	nodes, deletions := RecordNodes(t, cs), Record(t, cs)
	a.outage(8, func() {
		a.put(fakeNode("n1", "False"), 1)
		a.remove(pods[0])
	})
	nodes.Wait(t, toldWithin, "n1", "Ready=False", time.Time{})
	deletions.Wait(t, toldWithin, pods[0].UID)
	// And the watch goes on.
	a.remove(pods[1])
	a.put(fakeNode("n1", "True"), 1)
	nodes.Wait(t, toldWithin, "n1", "Ready=True", time.Time{})
	deletions.Wait(t, toldWithin, pods[1].UID)
	wantChanges(t, nodes, "n1", "Ready=False", "-test/out:NoExecute", "Ready=True")
	nodes.Quiet(t, time.Time{}, "n2")
}
