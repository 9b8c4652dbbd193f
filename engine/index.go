package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/btree"
)

// dueIndex has a shard's committed open evictions of one cluster in the order of
// (due, seq). Many fall due together, a node's pods above all, so that it is an
// order of groups, and an eviction comes and goes without a search.
type dueIndex struct {
	groups *btree.BTreeG[*dueGroup]
	last   *dueGroup // the group used last
	pivot  dueGroup  // room for searches
}

// dueGroup are the evictions due at one instant.
type dueGroup struct {
	due  time.Time
	list seqList
}

func newDueIndex() dueIndex {
	return dueIndex{groups: btree.NewG(32, func(a, b *dueGroup) bool { return a.due.Before(b.due) })}
}

// group returns the group of an instant, nil if there is none.
func (x *dueIndex) group(due time.Time) *dueGroup {
	if x.last == nil || !x.last.due.Equal(due) {
		x.pivot.due = due
		x.last, _ = x.groups.Get(&x.pivot)
	}
	return x.last
}

func (x *dueIndex) add(e *eviction) {
	g := x.group(e.due())
	if g == nil {
		g = &dueGroup{due: e.due()}
		x.groups.ReplaceOrInsert(g)
		x.last = g
	}
	e.indexed = true
	g.list.add(e)
}

// remove takes e out, before its due instant changes.
func (x *dueIndex) remove(e *eviction) {
	g := x.group(e.due())
	e.indexed = false
	if g.list.leave(g.has); g.list.live == 0 {
		x.groups.Delete(g)
		x.last = nil
	}
}

// has reports whether an eviction of the group's list is still in it.
func (g *dueGroup) has(e *eviction) bool { return e.indexed && e.due().Equal(g.due) }

// all returns the group's evictions in their order, in a slice of its own.
func (g *dueGroup) all() []*eviction {
	out := make([]*eviction, 0, g.list.live)
	g.list.ascend(0, g.has, func(e *eviction) bool {
		out = append(out, e)
		return true
	})
	return out
}

// ascend calls visit for the evictions from (due, seq) on until it says no.
// visit must not change the index.
func (x *dueIndex) ascend(due time.Time, seq uint64, visit func(*eviction) bool) {
	x.pivot.due = due
	x.groups.AscendGreaterOrEqual(&x.pivot, func(g *dueGroup) bool {
		if !g.due.Equal(due) {
			seq = 0
		}
		return g.list.ascend(seq, g.has, visit)
	})
}

// after returns the first group whose instant is later than due, nil if there is none.
func (x *dueIndex) after(due time.Time) (next *dueGroup) {
	x.pivot.due = due.Add(1)
	x.groups.AscendGreaterOrEqual(&x.pivot, func(g *dueGroup) bool {
		next = g
		return false
	})
	return next
}

// seqList has evictions in the order of their sequence, which is mostly that of
// their coming. Those that have left stay in the slice until they are the
// greater half, so that leaving needs no search.
type seqList struct {
	all      []*eviction
	live     int
	unsorted bool
}

// sweepFrom is the length from which a list is swept.
const sweepFrom = 64

func (l *seqList) add(e *eviction) {
	if n := len(l.all); n > 0 && l.all[n-1].seq() > e.seq() {
		l.unsorted = true
	}
	l.all = append(l.all, e)
	l.live++
}

// leave notes that an eviction has left; has says which are still there.
func (l *seqList) leave(has func(*eviction) bool) {
	if l.live--; len(l.all) < sweepFrom || l.live > len(l.all)/2 {
		return
	}
	kept := make([]*eviction, 0, l.live)
	l.ascend(0, has, func(e *eviction) bool {
		kept = append(kept, e)
		return true
	})
	l.all = kept
}

// ascend calls visit for what is in the list from a sequence on until it says
// no, and returns whether it did not.
func (l *seqList) ascend(seq uint64, has, visit func(*eviction) bool) bool {
	if l.unsorted {
		slices.SortFunc(l.all, func(a, b *eviction) int { return cmp.Compare(a.seq(), b.seq()) })
		l.unsorted = false
	}
	from := 0
	if seq > 0 {
		from, _ = slices.BinarySearchFunc(l.all, seq, func(e *eviction, seq uint64) int { return cmp.Compare(e.seq(), seq) })
	}
	for i := from; i < len(l.all); i++ {
		// One that left and came back is there twice.
		if e := l.all[i]; has(e) && (i == from || l.all[i-1] != e) && !visit(e) {
			return false
		}
	}
	return true
}

// find returns the eviction of a sequence if the list has it.
func (l *seqList) find(seq uint64, has func(*eviction) bool) (found *eviction) {
	l.ascend(seq, has, func(e *eviction) bool {
		if e.seq() == seq {
			found = e
		}
		return false
	})
	return found
}
