package engine

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestDueIndex holds the index against a slice that is sorted for each look.
func TestDueIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := time.Unix(1_700_000_000, 0).UTC()
		x := newDueIndex()
		var all []*eviction
		for i := range rapid.IntRange(1, 3*sweepFrom).Draw(t, "evictions") {
			e := &eviction{grounds: &grounds{due: base}}
			e.seqNo.Store(uint64(i + 1))
			x.add(e)
			all = append(all, e)
		}
		for range rapid.IntRange(0, 400).Draw(t, "moves") {
			e := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
			if e.indexed {
				x.remove(e)
			}
			// Back to where it was, or elsewhere, or away for now.
			if hours := rapid.IntRange(-1, 2).Draw(t, "to"); hours >= 0 {
				e.grounds = &grounds{due: base.Add(time.Duration(hours) * time.Hour)}
				x.add(e)
			}
		}
		want := slices.DeleteFunc(slices.Clone(all), func(e *eviction) bool { return !e.indexed })
		slices.SortFunc(want, func(a, b *eviction) int { return cmp.Or(a.due().Compare(b.due()), cmp.Compare(a.seq(), b.seq())) })
		from := rapid.IntRange(0, len(want)).Draw(t, "from")
		var due time.Time
		var seq uint64
		if from < len(want) && from > 0 {
			due, seq = want[from].due(), want[from].seq()
		} else {
			from = 0
		}
		var got []*eviction
		x.ascend(due, seq, func(e *eviction) bool { got = append(got, e); return true })
		if !slices.Equal(got, want[from:]) {
			t.Fatalf("the index has %d evictions from %s, %d on, want %d", len(got), due, seq, len(want)-from)
		}
		for i, e := range want {
			if i > 0 && e.due().After(want[i-1].due()) {
				if g := x.after(want[i-1].due()); g == nil || !g.due.Equal(e.due()) {
					t.Fatalf("after %s comes %v, want %s", want[i-1].due(), g, e.due())
				}
			}
			if all := x.group(e.due()).all(); !slices.Contains(all, e) {
				t.Fatalf("eviction %d is not in the group of %s", e.seq(), e.due())
			}
		}
	})
}

// TestSeqListSweeps: a list keeps nothing that has left at its head, and at most as
// many elsewhere as it has.
func TestSeqListSweeps(t *testing.T) {
	for name, c := range map[string]struct {
		kept  func(n int) int // which of n stays
		which func(i, n int) int
		most  func(left int) int
	}{
		"from the head": {func(n int) int { return n - 1 }, func(i, _ int) int { return i }, func(left int) int { return left }},
		"from the end":  {func(int) int { return 0 }, func(i, n int) int { return n - 1 - i }, func(left int) int { return max(sweepFrom, 2*left+1) }},
	} {
		t.Run(name, func(t *testing.T) {
			var l seqList
			var all []*eviction
			for i := range 10 * sweepFrom {
				e := &eviction{state: StateWaiting}
				e.seqNo.Store(uint64(i + 1))
				l.add(e)
				all = append(all, e)
			}
			n := len(all)
			for i := range n - 1 {
				all[c.which(i, n)].state = StateClosed
				if l.leave(isOpen); l.length > c.most(n-i-1) {
					t.Fatalf("%d of %d are left, the list has %d", n-i-1, n, l.length)
				}
			}
			kept := all[c.kept(n)]
			if l.find(kept.seq(), isOpen) != kept || l.find(all[n/2].seq(), isOpen) != nil {
				t.Error("the list has not what is left")
			}
			kept.state = StateClosed
			if l.leave(isOpen); len(l.blocks) != 0 {
				t.Errorf("the list of none has %d", l.length)
			}
			all[0].state = StateWaiting
			if l.add(all[0]); l.find(1, isOpen) != all[0] {
				t.Error("the list that was empty has not what came")
			}
		})
	}
}

func TestInstant(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 999_999_999, time.UTC)
	var before instant
	for _, c := range []struct{ in, want time.Time }{
		{time.Time{}, time.Time{}},
		{time.Unix(-5, 0), time.Unix(0, 1).UTC()},
		{time.Unix(7, 0), time.Unix(7, 0).UTC()},
		{at, at},
		{at.Add(1), at.Add(1)},
		{at.Add(292 * 365 * 24 * time.Hour), at.Add(292 * 365 * 24 * time.Hour)},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(1<<34-1, 999_999_999).UTC()},
	} {
		i := instantOf(c.in)
		if got := i.time(); got != c.want {
			t.Errorf("%s became %s, want %s", c.in, got, c.want)
		}
		if i < before {
			t.Errorf("%s sorts before what is earlier", c.in)
		}
		before = i
	}
}
