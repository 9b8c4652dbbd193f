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

// pending is a change on its way to the disk.
type pending struct {
	change Change
	// shard and ev are told after the commit, if set.
	shard *shard
	ev    *eviction
	// then is called after the commit, by the committer; it must not block.
	then func()
	// prune asks for history to be brought back within its quotas.
	prune bool
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
	lastSeq  map[string]uint64
	prune    bool
	// firstGood and lastGood are the first and the last time that changes reached
	// the disk; read by the engine when the goroutine has ended.
	firstGood, lastGood time.Time
}

type commitQueue struct{ items []pending }

func newCommitter(c *core) *committer {
	return &committer{core: c, inbox: newMailbox[pending](&c.activity), queues: map[string]*commitQueue{}, lastSeq: map[string]uint64{}}
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
		name := msgs[i].change.Cluster
		// Messages come in runs of one cluster.
		if q == nil || name != msgs[i-1].change.Cluster {
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

// next takes up to maxBatchChanges, going round the clusters.
func (w *committer) next() []pending {
	batch := make([]pending, 0, min(w.waiting, maxBatchChanges))
	for len(batch) < maxBatchChanges && w.waiting > len(batch) {
		w.turn = (w.turn + 1) % len(w.order)
		q := w.order[w.turn]
		n := min(len(q.items), clusterTurn, maxBatchChanges-len(batch))
		batch = append(batch, q.items[:n]...)
		clear(q.items[:n])
		if q.items = q.items[n:]; len(q.items) == 0 {
			q.items = nil
		}
	}
	w.waiting -= len(batch)
	return batch
}

func (w *committer) commitOnce(ctx context.Context) error {
	items := w.next()
	if len(items) == 0 {
		return nil
	}
	batch := &Batch{Now: w.core.clock.Now(), Revision: w.revision + 1, Changes: make([]Change, 0, len(items))}
	for i := range items {
		w.prune = w.prune || items[i].prune
		w.stamp(&items[i], batch.Revision)
		if items[i].change.Kind != 0 {
			batch.Changes = append(batch.Changes, items[i].change)
		}
	}
	if len(batch.Changes) > 0 {
		failpoint.Hit(failpoint.CommitBefore)
		err := w.core.store.Commit(ctx, batch)
		failpoint.Hit(failpoint.CommitAfter)
		w.core.observer.Committed(len(batch.Changes), w.core.clock.Now().Sub(batch.Now), err)
		if err != nil {
			return err
		}
		w.revision = batch.Revision
		if w.lastGood = w.core.clock.Now(); w.firstGood.IsZero() {
			w.firstGood = w.lastGood
		}
		w.core.ring.publish(batch)
	}
	failpoint.Hit(failpoint.AckBefore)
	w.tell(items)
	w.inbox.done(len(items))
	return nil
}

// stamp gives an eviction its sequence at its first commit, and its revision.
func (w *committer) stamp(p *pending, revision uint64) {
	r := p.change.Eviction
	if r == nil {
		return
	}
	if p.ev != nil && p.ev.seq() == 0 {
		w.lastSeq[r.Cluster]++
		p.ev.seqNo.Store(w.lastSeq[r.Cluster])
	}
	if p.ev != nil {
		r.Seq = p.ev.seq()
	}
	r.Revision = revision
}

// tell informs the shards first, so that what waits for the commit finds them
// knowing of it.
func (w *committer) tell(items []pending) {
	acks := map[*shard][]*eviction{}
	for i := range items {
		if items[i].shard != nil {
			acks[items[i].shard] = append(acks[items[i].shard], items[i].ev)
		}
	}
	for s, evs := range acks {
		s.inbox.put(shardMsg{committed: evs, revision: w.revision})
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
