package cli

import (
	"errors"
	"testing"

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
