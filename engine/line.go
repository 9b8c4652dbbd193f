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
	length     int
	// full: the dispatcher found no room, and is told when half of it is free.
	full bool
}

// lineRoom is how many permits a line takes: what two transactions write, one
// under way and one behind it. More would be in memory and wait for the disk, and
// keep other changes waiting, while the executors' credit is held for nothing.
const lineRoom = 2 * maxBatchChanges

// room reports whether the line takes another permit. If not, a leave will say
// when it does.
func (l *line) room() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = l.length >= lineRoom
	return !l.full
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
	l.length++
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
// turn it is by that, if its delivery is on disk; else nil. roomy: the dispatcher
// waits for room, and there is some.
func (l *line) leave(p *permit) (next *permit, roomy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.over = true
	l.length--
	if roomy = l.full && l.length <= lineRoom/2; roomy {
		l.full = false
	}
	if l.head != p {
		return nil, roomy
	}
	for l.head != nil && l.head.over {
		l.head = l.head.next
	}
	if l.head == nil {
		l.tail = nil
		return nil, roomy
	}
	if !l.head.saved {
		return nil, roomy
	}
	return l.head, roomy
}
