package engine

import (
	"context"
	"time"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

const (
	// maxBatchChanges bounds one transaction, so that a small change of one
	// cluster never waits long behind a large one of another.
	maxBatchChanges = 5000
	// clusterTurn is how many changes one cluster puts into a batch before the next has its turn.
	clusterTurn = 500
	// pruneLimit bounds what one transaction removes from history.
	pruneLimit = 5000
)

// pending is a change on its way to the disk. A kind of zero changes nothing.
type pending struct {
	kind    ChangeKind
	cluster string
	// version is set for a change of an eviction, other for any other change.
	version      *Version
	dropReprieve bool
	// prune asks for history to be brought back within its quotas.
	prune bool
	other *Change
	// ev, if set, is the eviction whose shard is told after the commit.
	ev *eviction
	// then is called after the commit, by the committer; it must not block.
	then func()
}

// change is the pending change as a store takes it.
func (p *pending) change() Change {
	if p.other != nil {
		return *p.other
	}
	return Change{Kind: p.kind, Cluster: p.cluster, Eviction: p.version, DropReprieve: p.dropReprieve}
}

// committer makes changes durable: one goroutine, which groups the changes of
// all shards into transactions. Changes of one cluster keep their order. After
// a commit it tells the shards, then calls what waited.
type committer struct {
	core  *core
	inbox *mailbox[pending]

	// Owned by the goroutine.
	queues   map[string]*commitQueue
	order    []*commitQueue
	waiting  int
	turn     int
	revision uint64
	items    []pending     // room for a batch
	changes  []Change      // the same
	acks     [][]*eviction // what each shard is told of a batch
	prune    bool
	// firstGood and lastGood are the first and the last time that changes reached
	// the disk; read by the engine when the goroutine has ended.
	firstGood, lastGood time.Time
}

// commitQueue has one cluster's changes, and the sequence that it gave last.
type commitQueue struct {
	items   []pending
	lastSeq uint64
}

func newCommitter(c *core) *committer {
	return &committer{core: c, inbox: newMailbox[pending](&c.activity), queues: map[string]*commitQueue{}}
}

func (w *committer) run(ctx context.Context) error {
	var spare []pending
	for ctx.Err() == nil {
		if w.waiting == 0 && !w.prune {
			msgs := w.inbox.take(ctx, spare)
			if msgs == nil {
				return nil
			}
			spare = w.enqueue(msgs)
		} else if msgs := w.inbox.tryTake(spare); msgs != nil {
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

// provenFor is the time over which commits have succeeded.
func (w *committer) provenFor() time.Duration { return w.lastGood.Sub(w.firstGood) }

func (w *committer) enqueue(msgs []pending) (spare []pending) {
	var q *commitQueue
	for i := range msgs {
		name := msgs[i].cluster
		// Messages come in runs of one cluster.
		if q == nil || name != msgs[i-1].cluster {
			q = w.queue(name)
		}
		q.items = append(q.items, msgs[i])
	}
	w.waiting += len(msgs)
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

// next takes up to maxBatchChanges, going round the clusters, and gives new
// evictions their sequence.
func (w *committer) next() []pending {
	batch := w.items[:0]
	for len(batch) < maxBatchChanges && w.waiting > len(batch) {
		w.turn = (w.turn + 1) % len(w.order)
		q := w.order[w.turn]
		n := min(len(q.items), clusterTurn, maxBatchChanges-len(batch))
		for i := range q.items[:n] {
			w.stamp(q, &q.items[i])
		}
		batch = append(batch, q.items[:n]...)
		clear(q.items[:n])
		if q.items = q.items[n:]; len(q.items) == 0 {
			q.items = nil
		}
	}
	w.waiting -= len(batch)
	w.items = batch
	return batch
}

// stamp gives an eviction its sequence at its first commit, and its revision.
func (w *committer) stamp(q *commitQueue, p *pending) {
	if p.kind == ChangeForgetCluster {
		// A cluster that comes back by that name is a new one.
		q.lastSeq = 0
	}
	v := p.version
	if v == nil {
		return
	}
	if p.ev != nil {
		if p.ev.seq() == 0 {
			q.lastSeq++
			p.ev.seqNo.Store(q.lastSeq)
		}
		v.seq = p.ev.seq()
	}
	v.revision = w.revision + 1
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
	w.inbox.done(n)
	return nil
}

// write makes changes durable and shows them to watchers.
func (w *committer) write(ctx context.Context, changes []Change) error {
	batch := &Batch{Now: w.core.clock.Now(), Revision: w.revision + 1, Changes: changes}
	failpoint.Hit(failpoint.CommitBefore)
	err := w.core.store.Commit(ctx, batch)
	failpoint.Hit(failpoint.CommitAfter)
	w.core.observer.Committed(len(changes), w.core.clock.Now().Sub(batch.Now), err)
	if err != nil {
		return err
	}
	w.revision = batch.Revision
	if w.lastGood = w.core.clock.Now(); w.firstGood.IsZero() {
		w.firstGood = w.lastGood
	}
	w.core.ring.publish(batch)
	return nil
}

// tell informs the shards first, so that what waits for the commit finds them
// knowing of it.
func (w *committer) tell(items []pending) {
	w.acks = w.acks[:0]
	w.acks = append(w.acks, make([][]*eviction, len(w.core.shards))...)
	for i := range items {
		if e := items[i].ev; e != nil {
			id := e.pod.shard.id
			if w.acks[id] == nil {
				w.acks[id] = make([]*eviction, 0, len(items)/len(w.acks)+1)
			}
			w.acks[id] = append(w.acks[id], e)
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
