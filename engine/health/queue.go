package health

// queue has nodes in the order of their last heartbeat. A node is in at most one.
type queue struct {
	first, last *node
	len         int
}

// place is a node's place in its queue.
type place struct {
	queue      *queue
	prev, next *node
}

// push puts n at the end; heard of those before it is not later.
func (q *queue) push(n *node) {
	n.unlink()
	n.queue, n.prev = q, q.last
	if q.last != nil {
		q.last.next = n
	} else {
		q.first = n
	}
	q.last = n
	q.len++
}

// unlink takes n out of its queue, if it is in one.
func (n *node) unlink() {
	q := n.queue
	if q == nil {
		return
	}
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		q.first = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		q.last = n.prev
	}
	q.len--
	n.place = place{}
}
