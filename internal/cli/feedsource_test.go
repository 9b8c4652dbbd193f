package cli

import (
	"errors"
	"strings"
	"testing"

	"buf.build/go/protovalidate"

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
