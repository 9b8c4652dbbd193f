package engine

// heapItem is what an [indexedHeap] holds: an item that knows its place.
type heapItem[T any] interface {
	comparable
	// before is the heap's order.
	before(T) bool
	// at points to the item's index plus one; zero means that it is in no heap.
	at() *int32
}

// indexedHeap is a min-heap from which any item can be taken in O(log n).
type indexedHeap[T heapItem[T]] []T

// head returns the least item, or the zero value if there is none.
func (h indexedHeap[T]) head() (least T) {
	if len(h) > 0 {
		least = h[0]
	}
	return least
}

// push puts an item in, or moves it to where it belongs after its order changed.
func (h *indexedHeap[T]) push(item T) {
	if *item.at() == 0 {
		*h = append(*h, item)
		*item.at() = int32(len(*h))
	}
	h.up(int(*item.at()) - 1)
	h.down(int(*item.at()) - 1)
}

// remove takes an item out if it is in.
func (h *indexedHeap[T]) remove(item T) {
	if *item.at() == 0 {
		return
	}
	i, last := int(*item.at())-1, len(*h)-1
	h.swap(i, last)
	var none T
	(*h)[last] = none
	*h = (*h)[:last]
	*item.at() = 0
	if i < last {
		moved := (*h)[i]
		h.up(i)
		h.down(int(*moved.at()) - 1)
	}
}

func (h indexedHeap[T]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].at(), *h[j].at() = int32(i+1), int32(j+1)
}

func (h indexedHeap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h indexedHeap[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
