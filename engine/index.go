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
// their coming. It is cut into blocks, so that it grows without being copied.
// Leaving needs no search: those that have left stay in it until they are at its
// head, where most leave, or are the greater half.
type seqList struct {
	blocks   [][]*eviction // none is empty
	length   int           // of all blocks
	live     int
	unsorted bool
}

const (
	// A list's blocks double in length from the first to the longest.
	firstBlock, longestBlock = 8, 512
	// sweepFrom is the length from which a list is swept.
	sweepFrom = 64
)

func (l *seqList) add(e *eviction) {
	var last []*eviction
	n := len(l.blocks)
	if n > 0 {
		last = l.blocks[n-1]
		l.unsorted = l.unsorted || last[len(last)-1].seq() > e.seq()
	}
	if len(last) == cap(last) {
		last = make([]*eviction, 0, min(max(2*len(last), firstBlock), longestBlock))
		l.blocks = append(l.blocks, nil)
		n++
	}
	l.blocks[n-1] = append(last, e)
	l.length++
	l.live++
}

// leave notes that an eviction has left; has says which are still there.
func (l *seqList) leave(has func(*eviction) bool) {
	l.live--
	l.trim(has)
	if l.length < sweepFrom || l.live > l.length/2 {
		return
	}
	l.sweep(has)
}

// sweep moves what is still there to the front of the blocks, and drops the
// blocks behind it.
func (l *seqList) sweep(has func(*eviction) bool) {
	l.sort()
	kept, at, n := 0, 0, 0 // how many, and the block and place of the next
	var before *eviction
	for _, block := range l.blocks {
		for _, e := range block {
			if e == before || !has(e) {
				continue
			}
			before = e
			if n == len(l.blocks[at]) {
				at, n = at+1, 0
			}
			l.blocks[at][n] = e
			kept, n = kept+1, n+1
		}
	}
	if l.length = kept; kept == 0 {
		l.blocks = nil
		return
	}
	clear(l.blocks[at][n:])
	l.blocks[at] = l.blocks[at][:n]
	clear(l.blocks[at+1:])
	l.blocks = l.blocks[:at+1]
}

// trim drops those at the head that have left.
func (l *seqList) trim(has func(*eviction) bool) {
	for len(l.blocks) > 0 && !has(l.blocks[0][0]) {
		head := l.blocks[0]
		head[0] = nil
		l.length--
		if l.blocks[0] = head[1:]; len(head) == 1 {
			l.blocks[0] = nil
			l.blocks = l.blocks[1:]
		}
	}
}

// ascend calls visit for what is in the list from a sequence on until it says
// no, and returns whether it did not.
func (l *seqList) ascend(seq uint64, has, visit func(*eviction) bool) bool {
	l.sort()
	// The block before the first that begins at seq or later may have it too.
	first, _ := slices.BinarySearchFunc(l.blocks, seq, func(b []*eviction, seq uint64) int { return cmp.Compare(b[0].seq(), seq) })
	var before *eviction
	for i := max(first-1, 0); i < len(l.blocks); i++ {
		block := l.blocks[i]
		if i < first {
			from, _ := slices.BinarySearchFunc(block, seq, func(e *eviction, seq uint64) int { return cmp.Compare(e.seq(), seq) })
			block = block[from:]
		}
		for _, e := range block {
			// One that left and came back is there twice.
			if e != before && has(e) && !visit(e) {
				return false
			}
			before = e
		}
	}
	return true
}

func (l *seqList) sort() {
	if !l.unsorted {
		return
	}
	all := slices.Concat(l.blocks...)
	slices.SortFunc(all, func(a, b *eviction) int { return cmp.Compare(a.seq(), b.seq()) })
	for _, block := range l.blocks {
		copy(block, all)
		all = all[len(block):]
	}
	l.unsorted = false
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
