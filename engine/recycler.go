package engine

// recycler has slices that are used up, for the next who needs one: what is made
// for every few hundred changes need not become garbage. It keeps a bounded
// number of them, none shorter or longer than is worth it.
type recycler[T any] struct {
	spare   chan []T
	longest int
}

// recycledFrom is the capacity from which a slice is worth keeping.
const recycledFrom = 256

func newRecycler[T any](number, longest int) recycler[T] {
	return recycler[T]{spare: make(chan []T, number), longest: longest}
}

// get returns an empty slice with room for about n.
func (r recycler[T]) get(n int) []T {
	if n >= recycledFrom {
		select {
		case s := <-r.spare:
			return s
		default:
		}
	}
	return make([]T, 0, n)
}

// put takes a slice that nobody else has any more.
func (r recycler[T]) put(s []T) {
	if cap(s) < recycledFrom || cap(s) > r.longest {
		return
	}
	clear(s)
	select {
	case r.spare <- s[:0]:
	default:
	}
}
