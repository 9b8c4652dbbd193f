package engine

import "sync"

// permit is the dispatcher's leave to send one eviction to one executor.
type permit struct {
	offer *offer
	link  *execLink
	// awaited counts the commits up to that of the delivery. The shard's.
	awaited int32

	// Guarded by the line's mu.
	next *permit
	// saved: its delivery is on disk. over: it was used or returned.
	saved, over bool
}

// line has the permits of a cluster in the order in which they were granted.
// Shards commit their deliveries side by side; an order leaves only when all
// permits before its own have been used or returned (I8). So one that a shard
// has yet to commit keeps those behind it back, for as long as its commit takes.
type line struct {
	mu         sync.Mutex // guards what follows
	head, tail *permit
}

// join puts a new permit at the end.
func (l *line) join(p *permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head == nil {
		l.head = p
	} else {
		l.tail.next = p
	}
	l.tail = p
}

// ready notes that a permit's delivery is on disk and reports whether it is its
// turn already. If not, the leave of the one before tells of it.
func (l *line) ready(p *permit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.saved = true
	return l.head == p
}

// leave takes out a permit that was used or returned. It returns the one whose
// turn it is by that, if its delivery is on disk; else nil.
func (l *line) leave(p *permit) *permit {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.over = true
	if l.head != p {
		return nil
	}
	for l.head != nil && l.head.over {
		l.head = l.head.next
	}
	if l.head == nil {
		l.tail = nil
		return nil
	}
	if !l.head.saved {
		return nil
	}
	return l.head
}
