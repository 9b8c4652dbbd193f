package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// feed drives a source as a feeder does.
type feed struct {
	t      *testing.T
	source *source
	clock  *clock.Virtual
	events chan *reprievev1.Event
	// gate holds emit back while it has something to take.
	gate chan struct{}
}

func newFeed(t *testing.T, a *api) *feed {
	clk := clock.NewVirtual(epoch)
	f := &feed{t: t, clock: clk, events: make(chan *reprievev1.Event, 1000), source: &source{
		core: a.kube().CoreV1().RESTClient(), coordination: a.kube().CoordinationV1().RESTClient(), clock: clk, troubles: quiet(), teller: silent(),
	}}
	t.Cleanup(f.source.close)
	return f
}

// list returns the names that a list has, nodes first.
func (f *feed) list() []string {
	f.t.Helper()
	var names []string
	if err := f.source.List(f.t.Context(), func(e *reprievev1.Event) error {
		names = append(names, e.GetNode().GetName()+e.GetPod().GetName())
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// watch watches until stop, and sends Watch's error when it has ended.
func (f *feed) watch() (stop context.CancelFunc, ended <-chan error) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		done <- f.source.Watch(ctx, func(events ...*reprievev1.Event) error {
			if f.gate != nil {
				select {
				case <-f.gate:
				case <-ctx.Done():
				}
			}
			for _, e := range events {
				select {
				case f.events <- e:
				case <-ctx.Done():
				}
			}
			return nil
		})
	})
	f.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return cancel, done
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestSourceTellsTheListAndThenChanges(t *testing.T) {
	a := newAPI(t)
	a.put("nodes", "", testNode("n"))
	a.put("pods", "", testPod("p", "n"))
	f := newFeed(t, a)
	equal(t, f.list(), "n", "p")
	stop, ended := f.watch()

	a.put("nodes", "", testNode("n", corev1.Taint{Key: "k", Effect: corev1.TaintEffectNoExecute}))
	if e := <-f.events; len(e.GetNode().GetTaints()) != 1 {
		t.Errorf("the taint was told as %v", e)
	}
	// What nobody decides on is no change.
	busy := testPod("p", "n")
	busy.Status.PodIP, busy.Annotations = "10.0.0.1", map[string]string{"note": "x"}
	a.put("pods", "", busy)
	finished := testPod("p", "n")
	finished.Status.Phase = corev1.PodSucceeded
	a.put("pods", "", finished)
	if e := <-f.events; e.GetPod().GetPhase() != "Succeeded" {
		t.Errorf("after an idle change came %v", e)
	}
	a.put("pods", "DELETED", finished)
	if e := <-f.events; e.GetType() != reprievev1.Event_EVENT_TYPE_DELETE || e.GetPod().GetUid() != "uid-p" {
		t.Errorf("the deletion was told as %v", e)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch ended with %v", err)
	}
}

// Each list that the service asks for is read from the API server, at its most
// recent version.
func TestSourceListsAnew(t *testing.T) {
	a := newAPI(t)
	f := newFeed(t, a)
	equal(t, f.list())
	stop, ended := f.watch()
	stop()
	<-ended
	a.put("pods", "", testPod("p", "n"))
	equal(t, f.list(), "p")
	if n := a.count("GET /api/v1/pods v= watch"); n != 2 {
		t.Errorf("pods were read at the most recent version %d times, want 2; calls: %v", n, a.calls)
	}
	if n := a.count("GET /api/v1/pods v=0"); n != 0 {
		t.Errorf("a list took any version, %d times", n)
	}
}

// A watch that ends late takes only its own watches with it, not those of the
// list that came after them.
func TestSourceLateEndLeavesTheNextList(t *testing.T) {
	a := newAPI(t)
	f := newFeed(t, a)
	f.list()
	stop, ended := f.watch()
	a.put("nodes", "", testNode("n"))
	<-f.events // the watch has begun
	f.source.close()
	f.list()
	stop()
	<-ended
	if !f.source.alive(t.Context()) {
		t.Error("the second list's watches are gone with the first one's")
	}
}

// A watch that loses its place is no deletion: it leads to a new list, in which
// what is gone is missing.
func TestSourceRelist(t *testing.T) {
	a := newAPI(t)
	a.put("pods", "", testPod("gone", "n"))
	a.put("pods", "", testPod("stays", "n"))
	f := newFeed(t, a)
	equal(t, f.list(), "gone", "stays")
	_, ended := f.watch()

	a.mu.Lock()
	delete(a.objects["pods"], "gone")
	a.mu.Unlock()
	a.lose("pods")
	if err := <-ended; !errors.Is(err, client.ErrRelist) {
		t.Fatalf("Watch ended with %v, want ErrRelist", err)
	}
	if len(f.events) != 0 {
		t.Errorf("the lost watch told %v", <-f.events)
	}
	nodes := a.count("GET /api/v1/nodes")
	equal(t, f.list(), "stays")
	if n := a.count("GET /api/v1/nodes"); n != nodes {
		t.Errorf("nodes were read again, whose watch had not lost its place")
	}
	f.watch()
	a.put("pods", "", testPod("new", "n"))
	if e := <-f.events; e.GetPod().GetName() != "new" {
		t.Errorf("after the new list came %v", e)
	}
}

// While the API server is away nothing counts as a list.
func TestSourceListWaitsForBothWatches(t *testing.T) {
	a := newAPI(t)
	f := newFeed(t, a)
	equal(t, f.list())
	_, ended := f.watch()
	a.until("both watches stand", func() bool { return len(a.watches["pods"]) == 1 && len(a.watches["nodes"]) == 1 })
	a.mu.Lock()
	a.down = true
	a.mu.Unlock()
	a.endWatches("nodes")
	f.untilAlive(false)
	a.lose("pods")
	// The pods' list fails too, so nothing is known to be lost yet.
	a.mu.Lock()
	a.down = false
	a.signal()
	a.mu.Unlock()
	if err := <-ended; !errors.Is(err, client.ErrRelist) {
		t.Fatalf("Watch ended with %v, want ErrRelist", err)
	}
	equal(t, f.list())
	f.untilAlive(true)
}

// untilAlive waits until the source says so.
func (f *feed) untilAlive(want bool) {
	f.t.Helper()
	for {
		moved := f.source.following().state.waiter()
		if f.source.following().stand() == want {
			return
		}
		<-moved
	}
}

func TestHeartbeatNeedsLifeOfBothWatches(t *testing.T) {
	a := newAPI(t)
	f := newFeed(t, a)
	if f.source.alive(t.Context()) {
		t.Error("alive before the first list")
	}
	f.list()
	f.watch()
	if !f.source.alive(t.Context()) {
		t.Error("not alive after a list")
	}
	f.clock.Set(epoch.Add(maxQuiet))
	if !f.source.alive(t.Context()) {
		t.Errorf("not alive after %s", maxQuiet)
	}
	f.clock.Set(epoch.Add(maxQuiet + time.Millisecond))
	if f.source.alive(t.Context()) {
		t.Errorf("alive with watches that were silent for more than %s", maxQuiet)
	}
	for _, resource := range []string{"nodes", "pods"} {
		kind := map[string]string{"nodes": "Node", "pods": "Pod"}[resource]
		a.send(resource, map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"kind": kind, "apiVersion": "v1", "metadata": metav1.ObjectMeta{ResourceVersion: "900"},
		}})
		if resource == "nodes" && f.source.alive(t.Context()) {
			t.Error("alive with a bookmark of one watch")
		}
	}
	// The signs of life wake whoever waits for them, as a list does.
	f.untilAlive(true)
}

// A heartbeat follows what was queued before it.
func TestHeartbeatWaitsForTheQueue(t *testing.T) {
	a := newAPI(t)
	f := newFeed(t, a)
	f.gate = make(chan struct{})
	f.list()
	f.watch()
	a.put("pods", "", testPod("p", "n"))
	st := f.source.following().state
	for moved := st.waiter(); ; moved = st.waiter() {
		st.mu.Lock()
		queued := st.in == 1
		st.mu.Unlock()
		if queued {
			break
		}
		<-moved
	}
	alive := make(chan bool)
	go func() { alive <- f.source.alive(t.Context()) }()
	select {
	case <-alive:
		t.Fatal("a heartbeat overtook a change")
	case f.gate <- struct{}{}:
	}
	if !<-alive {
		t.Error("not alive once the queue is empty")
	}
	if len(f.events) != 1 {
		t.Errorf("%d events were emitted before the heartbeat, want 1", len(f.events))
	}
	ctx, cancel := context.WithCancel(t.Context())
	a.put("pods", "DELETED", testPod("p", "n"))
	cancel()
	f.source.alive(ctx) // returns
	f.gate <- struct{}{}
}

// The queue is bounded: beyond it a list says the same.
func TestQueueOverflowAsksForAList(t *testing.T) {
	s := newState(silent())
	s.nodes.synced, s.pods.synced = true, true
	if _, ok := s.list(); !ok {
		t.Fatal("no list of empty mirrors")
	}
	e := &reprievev1.Event{}
	for range maxQueue {
		s.mu.Lock()
		s.push(e)
		s.mu.Unlock()
	}
	if events, relist, _ := s.take(); len(events) != maxQueue || relist {
		t.Fatalf("%d events, relist %v", len(events), relist)
	}
	for range maxQueue + 1 {
		s.mu.Lock()
		s.push(e)
		s.mu.Unlock()
	}
	if events, relist, _ := s.take(); len(events) != 0 || !relist {
		t.Errorf("%d events, relist %v; want a list", len(events), relist)
	}
}
