package engine

import "testing"

// TestRecyclerBounds fills a recycler with more than it may keep.
func TestRecyclerBounds(t *testing.T) {
	const number, longest = 2, 4 * recycledFrom
	r := newRecycler[*int](number, longest)
	for _, length := range []int{recycledFrom - 1, longest + 1} {
		r.put(make([]*int, length))
		if n := len(r.spare); n != 0 {
			t.Errorf("a slice of %d was kept", length)
		}
	}
	for range number + 1 {
		s := make([]*int, recycledFrom)
		s[7] = new(int)
		r.put(s)
	}
	if n := len(r.spare); n != number {
		t.Errorf("%d slices were kept, want %d", n, number)
	}
	// One that is made has the room that was asked for; nobody needs the spare ones for little.
	if s := r.get(recycledFrom - 1); len(r.spare) != number || cap(s) != recycledFrom-1 {
		t.Errorf("%d slices left and room for %d", len(r.spare), cap(s))
	}
	for range number + 1 {
		s := r.get(longest)
		if len(s) != 0 || cap(s) < recycledFrom {
			t.Fatalf("length %d, capacity %d", len(s), cap(s))
		}
		if all := s[:recycledFrom]; cap(s) == recycledFrom && all[7] != nil {
			t.Error("what was in a slice is still reachable")
		}
	}
}
