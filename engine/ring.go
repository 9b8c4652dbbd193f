package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// ringSize is how many changes are kept for watchers to resume from.
const ringSize = 100_000

// ring keeps the latest committed changes in memory. Watchers read it at their
// own pace; one that falls behind its tail has to begin anew.
type ring struct {
	mu sync.Mutex // guards what follows
	// entries[i] is change number first+i; numbers only grow.
	entries []*Version
	head    int // index of the oldest entry once entries is full
	first   uint64
	// base is the revision before the oldest entry; last that of the newest.
	base, last uint64
	changed    chan struct{}
	closed     error
}

func newRing(revision uint64) *ring {
	return &ring{base: revision, last: revision, changed: make(chan struct{})}
}

func (r *ring) publish(b *Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lost *Version
	for i := range b.Changes {
		e, ok := b.Changes[i].Eviction.(*Version)
		if !ok {
			continue
		}
		if n := len(r.entries); n < ringSize {
			if n == cap(r.entries) {
				r.entries = slices.Grow(r.entries, min(max(n, ringSize/256), ringSize-n))
			}
			r.entries = append(r.entries, e)
			continue
		}
		lost, r.entries[r.head] = r.entries[r.head], e
		r.head = (r.head + 1) % ringSize
		r.first++
	}
	if lost != nil {
		r.base = lost.revision
	}
	r.last = b.Revision
	close(r.changed)
	r.changed = make(chan struct{})
}

// close ends all watchers with err.
func (r *ring) close(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed == nil {
		r.closed = err
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// revision returns that of the last commit.
func (r *ring) revision() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Watcher reads committed changes in order.
type Watcher struct {
	ring *ring
	next uint64 // number of the next change
}

// watch returns a watcher of the changes after revision.
func (r *ring) watch(revision uint64) (*Watcher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if revision < r.base || revision > r.last {
		return nil, fmt.Errorf("%w: %d is outside %d to %d; list again", ErrRevisionTooOld, revision, r.base, r.last)
	}
	n := len(r.entries)
	// Revisions in the ring ascend: the first entry beyond the revision is the place to begin.
	lo, hi := 0, n
	for lo < hi {
		mid := (lo + hi) / 2
		if r.entries[(r.head+mid)%max(n, 1)].revision > revision {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return &Watcher{ring: r, next: r.first + uint64(lo)}, nil
}

// Next waits for changes and returns up to limit of them, with the revision
// that is complete once they are delivered.
func (w *Watcher) Next(ctx context.Context, limit int) ([]ChangeEvent, uint64, error) {
	r := w.ring
	for {
		r.mu.Lock()
		if w.next < r.first {
			r.mu.Unlock()
			return nil, 0, ErrReaderTooSlow
		}
		if from := int(w.next - r.first); from < len(r.entries) {
			n := min(limit, len(r.entries)-from)
			out := make([]ChangeEvent, n)
			for i := range out {
				v := r.entries[(r.head+from+i)%len(r.entries)]
				out[i] = ChangeEvent{Revision: v.revision, Eviction: v.Record()}
			}
			w.next += uint64(n)
			complete := r.last
			if from+n < len(r.entries) {
				// The rest of the last revision may still be to come.
				complete = out[n-1].Revision - 1
			}
			r.mu.Unlock()
			return out, complete, nil
		}
		changed, closed := r.changed, r.closed
		r.mu.Unlock()
		if closed != nil {
			return nil, 0, closed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}
