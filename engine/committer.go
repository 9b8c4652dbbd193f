package engine

import (
	"context"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

const (
	// maxBatchChanges bounds one transaction, so that a small change of one
	// cluster never waits long behind a large one of another.
	maxBatchChanges = 5000
	// clusterTurn is how many changes one cluster puts into a batch before the next has its turn.
	clusterTurn = 500
	// manyChanges are worth a transaction of their own at once.
	manyChanges = 500
	// pruneLimit bounds what one transaction removes from history.
	pruneLimit = 5000
)

// pending is a change on its way to the disk. A kind of zero changes nothing.
type pending struct {
	kind         ChangeKind
	dropReprieve bool
	// prune asks for history to be brought back within its quotas.
	prune bool
	// tell has the eviction's shard told after the commit. Its number is at hand
	// here: the eviction itself is far from the committer's cache.
	tell    bool
	shard   int32
	cluster string
	// version is set for a change of an eviction, other for any other change.
	version *Version
	other   *Change
	// then is called after the commit, by the committer; it must not block.
	then func()
}

// change is the pending change as a store takes it.
func (p *pending) change() Change {
	if p.other != nil {
		return *p.other
	}
	c := Change{Kind: p.kind, Cluster: p.cluster, DropReprieve: p.dropReprieve}
	if p.version != nil {
		c.Eviction = p.version
	}
	return c
}

// committer makes changes durable: one goroutine, which groups the changes of
// all shards into transactions. Changes of one cluster keep their order. After
// a commit it tells the shards, then calls what waited.
type committer struct {
	core  *core
	inbox *mailbox[[]pending]
	// timer puts into rested when it is time for the next transaction.
	timer  clock.Timer
	rested chan struct{} // one slot

	// used has slices of changes for shards, told those of acks for tell.
	used recycler[pending]
	told recycler[*eviction]

	// Owned by the goroutine.
	queues   map[string]*commitQueue
	order    []*commitQueue
	waiting  int
	turn     int
	revision uint64
	items    []pending     // room for a batch
	changes  []Change      // the same
	acks     [][]*eviction // what each shard is told of a batch
	acked    []int         // of how many
	prune    bool
	// ended is when the last transaction did, took how long it took; full: it had many
	// changes, so that more of them are probably to come.
	ended time.Time
	took  time.Duration
	full  bool
	// firstGood and lastGood are the first and the last time that changes reached
	// the disk; read by the engine when the goroutine has ended.
	firstGood, lastGood time.Time
}

// commitQueue has one cluster's changes, in the slices in which they came, and
// the sequence that it gave last.
type commitQueue struct {
	parts   []queued
	lastSeq uint64
}

// queued is a slice of changes of which some were taken already.
type queued struct {
	changes []pending
	taken   int
}

func newCommitter(c *core) *committer {
	w := &committer{
		core: c, inbox: newMailbox[[]pending](&c.activity), queues: map[string]*commitQueue{},
		acks: make([][]*eviction, c.opts.Shards), acked: make([]int, c.opts.Shards),
		used: newRecycler[pending](c.opts.Shards, 4*flushFrom), told: newRecycler[*eviction](c.opts.Shards, 2*maxBatchChanges),
		rested: make(chan struct{}, 1),
	}
	w.timer = c.clock.NewTimer(func() {
		select {
		case w.rested <- struct{}{}:
		default:
		}
	})
	return w
}

// put queues changes in order. The slice is the committer's from then on.
func (w *committer) put(items ...pending) {
	if len(items) > 0 {
		w.core.activity.add(len(items))
		w.inbox.put(items)
	}
}

func (w *committer) run(ctx context.Context) error {
	defer w.timer.Stop()
	var spare [][]pending
	for ctx.Err() == nil {
		if w.waiting == 0 && !w.prune {
			msgs := w.inbox.take(ctx, spare)
			if msgs == nil {
				return nil
			}
			spare = w.enqueue(msgs)
		}
		if w.waiting > 0 && w.waiting < manyChanges && !w.rest(ctx) {
			return nil
		}
		if msgs := w.inbox.tryTake(spare); msgs != nil {
			spare = w.enqueue(msgs)
		}
		if err := w.commitOnce(ctx); err != nil {
			return err
		}
		if err := w.pruneOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until a transaction may begin; false means that ctx has ended. One costs
// the same few pages, two syncs and reading what leads to its pages, whether it has
// one change or a hundred: back to back, those of a steady trickle keep a processor
// and the garbage collector busy.
func (w *committer) rest(ctx context.Context) bool {
	at := w.ended.Add(min(w.took, w.core.opts.CommitRest))
	if w.full || !w.core.clock.Now().Before(at) {
		return true
	}
	w.timer.Reset(at)
	select {
	case <-w.rested:
		return true
	case <-ctx.Done():
		return false
	}
}

// provenFor is the time over which commits have succeeded.
func (w *committer) provenFor() time.Duration { return w.lastGood.Sub(w.firstGood) }

func (w *committer) enqueue(msgs [][]pending) (spare [][]pending) {
	for _, items := range msgs {
		w.waiting += len(items)
		for len(items) > 0 {
			// Changes come in runs of one cluster.
			n := 1
			for n < len(items) && items[n].cluster == items[0].cluster {
				n++
			}
			q := w.queue(items[0].cluster)
			q.parts = append(q.parts, queued{changes: items[:n:n]})
			items = items[n:]
		}
	}
	// What is in them is counted on its own.
	w.inbox.done(len(msgs))
	clear(msgs)
	return msgs
}

// queue returns the queue of a cluster, made if it has none.
func (w *committer) queue(name string) *commitQueue {
	q := w.queues[name]
	if q == nil {
		q = &commitQueue{}
		w.queues[name] = q
		w.order = append(w.order, q)
	}
	return q
}

// next takes up to maxBatchChanges, going round the clusters.
func (w *committer) next() []pending {
	batch := w.items[:0]
	for len(batch) < maxBatchChanges && w.waiting > len(batch) {
		w.turn = (w.turn + 1) % len(w.order)
		q := w.order[w.turn]
		for left := min(clusterTurn, maxBatchChanges-len(batch)); left > 0 && len(q.parts) > 0; {
			part := &q.parts[0]
			n := min(len(part.changes)-part.taken, left)
			batch = append(batch, part.changes[part.taken:part.taken+n]...)
			left -= n
			if part.taken += n; part.taken == len(part.changes) {
				w.used.put(part.changes)
				*part = queued{}
				q.parts = q.parts[1:]
			}
		}
		if len(q.parts) == 0 {
			q.parts = nil
		}
	}
	w.waiting -= len(batch)
	w.stamp(batch)
	w.items = batch
	return batch
}

// stamp gives evictions their sequence at their first commit, and versions their revision.
func (w *committer) stamp(batch []pending) {
	var q *commitQueue
	for i := range batch {
		p := &batch[i]
		if i == 0 || p.cluster != batch[i-1].cluster {
			q = w.queue(p.cluster)
		}
		if p.kind == ChangeForgetCluster {
			// A cluster that comes back by that name is a new one.
			q.lastSeq = 0
		}
		if v := p.version; v != nil {
			if v.ev.seq() == 0 {
				q.lastSeq++
				v.ev.seqNo.Store(q.lastSeq)
			}
			v.revision = w.revision + 1
		}
	}
}

func (w *committer) commitOnce(ctx context.Context) error {
	items := w.next()
	if len(items) == 0 {
		return nil
	}
	changes := w.changes[:0]
	for i := range items {
		w.prune = w.prune || items[i].prune
		if items[i].kind != 0 {
			changes = append(changes, items[i].change())
		}
	}
	if len(changes) > 0 {
		if err := w.write(ctx, changes); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.AckBefore)
	w.tell(items)
	n := len(items)
	clear(items)
	clear(changes)
	w.changes = changes
	w.core.activity.done(n)
	return nil
}

// write makes changes durable and shows them to watchers.
func (w *committer) write(ctx context.Context, changes []Change) error {
	batch := &Batch{Now: w.core.clock.Now(), Revision: w.revision + 1, Changes: changes}
	failpoint.Hit(failpoint.CommitBefore)
	err := w.core.store.Commit(ctx, batch)
	failpoint.Hit(failpoint.CommitAfter)
	w.ended = w.core.clock.Now()
	w.took, w.full = w.ended.Sub(batch.Now), len(changes) >= manyChanges
	w.core.observer.Committed(len(changes), w.took, err)
	if err != nil {
		return err
	}
	w.revision = batch.Revision
	if w.lastGood = w.ended; w.firstGood.IsZero() {
		w.firstGood = w.lastGood
	}
	w.core.ring.publish(batch)
	return nil
}

// tell informs the shards first, so that what waits for the commit finds them
// knowing of it.
func (w *committer) tell(items []pending) {
	clear(w.acks)
	clear(w.acked)
	for i := range items {
		if items[i].tell {
			w.acked[items[i].shard]++
		}
	}
	for i := range items {
		if p := &items[i]; p.tell {
			if w.acks[p.shard] == nil {
				w.acks[p.shard] = w.told.get(w.acked[p.shard])
			}
			w.acks[p.shard] = append(w.acks[p.shard], p.version.ev)
		}
	}
	for id, evs := range w.acks {
		if len(evs) > 0 {
			w.core.shards[id].inbox.put(shardMsg{committed: evs, revision: w.revision})
		}
	}
	for i := range items {
		if items[i].then != nil {
			items[i].then()
		}
	}
}

// pruneOnce removes history beyond the quotas when it is time to, a limited
// number of entries of each cluster; what is left goes between the next commits.
func (w *committer) pruneOnce(ctx context.Context) error {
	if !w.prune {
		return nil
	}
	w.prune = false
	for _, cl := range w.core.all() {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the engine's end is no fault of the store; run ends by it
		}
		failpoint.Hit(failpoint.PruneBefore)
		n, err := w.core.store.Prune(ctx, cl.name, w.core.clock.Now(), w.core.quotas, pruneLimit)
		if err != nil {
			return err
		}
		failpoint.Hit(failpoint.PruneAfter)
		if n == pruneLimit {
			w.prune = true
		}
	}
	return nil
}
