package cli

import (
	"errors"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/client/timeline"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// TestChangesOfAnOutageAreBounded lets more changes come in than are kept while
// nobody takes them: a list says the same.
func TestChangesOfAnOutageAreBounded(t *testing.T) {
	s := newFileSource("c", true)
	close(s.listed)
	e := timeline.Entry{Cluster: timeline.DefaultCluster, Type: timeline.Modified, Node: &reprievev1.Node{Name: "n", Uid: "u"}}
	for range maxChanges + 10 {
		if err := s.take(e); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.changes) != 0 {
		t.Errorf("%d changes are kept for a list that makes them old", len(s.changes))
	}
	told := 0
	if err := s.Watch(t.Context(), func(events ...*reprievev1.Event) error { told += len(events); return nil }); !errors.Is(err, client.ErrRelist) || told != 0 {
		t.Fatalf("Watch: %v after %d events, want a new list", err, told)
	}
	if err := s.List(t.Context(), func(*reprievev1.Event) error { told++; return nil }); err != nil || told != 1 {
		t.Fatalf("the list has %d objects, %v", told, err)
	}
	if err := s.take(e); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	if err := s.Watch(t.Context(), func(...*reprievev1.Event) error { return enough }); !errors.Is(err, enough) {
		t.Fatalf("Watch after the list: %v", err)
	}
}

// TestFirstListStaysUntilTheServiceHasIt lists twice, as on a stream that broke before
// the list's end was acknowledged, and tells of what came after it only then.
func TestFirstListStaysUntilTheServiceHasIt(t *testing.T) {
	s := newFileSource("c", false)
	node := `"object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u"}`
	in := `{"type":"ADDED",` + node + `}}{"type":"MODIFIED",` + node + `,"spec":{"taints":[{"key":"k","effect":"NoExecute"}]}}}`
	s.read(t.Context(), []timeline.Input{{Name: "nodes", R: strings.NewReader(in)}}, timeline.MergeOptions{})
	taints := func(what string, want int) {
		t.Helper()
		if err := s.List(t.Context(), func(e *reprievev1.Event) error {
			if got := len(e.GetNode().GetTaints()); got != want {
				t.Errorf("%s has %d taints, want %d", what, got, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	taints("the first list", 0)
	if changes, end, err := s.next(); len(changes) != 0 || end || err != nil {
		t.Errorf("next before the service has the list: %v, %t, %v", changes, end, err)
	}
	taints("the first list again", 0)
	s.synced()
	var told []*reprievev1.Event
	if err := s.Watch(t.Context(), func(events ...*reprievev1.Event) error { told = append(told, events...); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || len(told[0].GetNode().GetTaints()) != 1 {
		t.Errorf("told of %v", told)
	}
	taints("a later list", 1)
}

// TestFeedCutsWhatExceedsTheContract takes an object that the service would
// refuse the whole feed for.
func TestFeedCutsWhatExceedsTheContract(t *testing.T) {
	s := newFileSource("c", true)
	var warnings []timeline.Warning
	s.warn = func(w timeline.Warning) { warnings = append(warnings, w) }
	for _, name := range []string{"a", "b"} {
		pod := &reprievev1.Pod{Namespace: "n", Name: name, Uid: name, OwnerReferences: make([]*reprievev1.OwnerReference, 100)}
		for i := range pod.OwnerReferences {
			pod.OwnerReferences[i] = &reprievev1.OwnerReference{Name: "o"}
		}
		if err := s.take(timeline.Entry{Cluster: timeline.DefaultCluster, Type: timeline.Added, Pod: pod}); err != nil {
			t.Fatal(err)
		}
		if err := protovalidate.Validate(s.changes[len(s.changes)-1]); err != nil {
			t.Errorf("the service refuses %s: %v", name, err)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].Text, "pod n/a exceeds") {
		t.Errorf("warnings: %v", warnings)
	}
	if err := s.take(timeline.Entry{Cluster: timeline.DefaultCluster, Type: timeline.Added, Pod: &reprievev1.Pod{Name: "a", Uid: "u"}}); err == nil {
		t.Error("a pod without a namespace was taken")
	}
}

// TestFeedTellsOfLeases tells of leases where they are wanted, also that none was
// renewed, and is silent once no input shows them any more.
func TestFeedTellsOfLeases(t *testing.T) {
	s := newFileSource("c", true)
	renewed := func(node string, second int64) timeline.Entry {
		return timeline.Entry{Cluster: timeline.DefaultCluster, Type: timeline.Modified, Pos: timeline.Position{File: "leases"},
			Lease: &timeline.Lease{Node: node, RenewTime: &timestamppb.Timestamp{Seconds: second}, Renewed: true}}
	}
	names := func() string {
		var out []string
		for _, e := range s.renewals() {
			if err := protovalidate.Validate(e); err != nil {
				t.Error(err)
			}
			out = append(out, "["+strings.Join(e.GetLeaseRenewals().GetNodeNames(), " ")+"]")
		}
		return strings.Join(out, "")
	}
	take := func(entries ...timeline.Entry) {
		t.Helper()
		for _, e := range entries {
			if err := s.take(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(what, want string) {
		t.Helper()
		if got := names(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	take(renewed("n1", 1))
	expect("not wanted", "")
	s.setNodeHealth(reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE)
	take(renewed("n2", 1), renewed("n1", 2))
	expect("wanted", "[n1 n2]")
	expect("none renewed", "[]")
	old := renewed("n1", 2)
	old.Lease.Renewed = false
	take(old)
	expect("not renewed", "[]")
	s.setNodeHealth(reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OFF)
	expect("off", "")
	if len(s.changes) != 0 || len(s.objects) != 0 {
		t.Error("leases are among the objects")
	}

	s.setNodeHealth(reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE)
	in := `{"type":"ADDED","object":{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n3","namespace":"kube-node-lease"},"spec":{"renewTime":"2026-01-01T00:00:00Z"}}}`
	s.read(t.Context(), []timeline.Input{{Name: "leases", R: strings.NewReader(in)}}, timeline.MergeOptions{})
	expect("the input has ended", "")
}

// TestFeedTellsOfLeasesAtTicks hands a tick's renewals to the feed, also while there
// are changes.
func TestFeedTellsOfLeasesAtTicks(t *testing.T) {
	s := newFileSource("c", true)
	tick := make(chan struct{}, 1)
	s.ticks = tick
	s.setNodeHealth(reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE)
	s.leases.inputs["leases"] = true
	enough := errors.New("enough")
	for range 2 { // With changes waiting, and without.
		tick <- struct{}{}
		err := s.Watch(t.Context(), func(events ...*reprievev1.Event) error {
			if events[0].GetLeaseRenewals() == nil {
				t.Errorf("told first of %v", events[0])
			}
			return enough
		})
		if !errors.Is(err, enough) {
			t.Fatal(err)
		}
		s.changes = []*reprievev1.Event{{}}
	}
}
