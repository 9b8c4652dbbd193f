package mem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/btree"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"github.com/reprieve-dev/reprieve/store/internal/record"
)

// degree of the trees; memory and speed hardly depend on it.
const degree = 32

// Data is what was committed. Its handles come and go.
type Data struct {
	// mu guards everything below and what it points to. Records themselves never change.
	mu       sync.RWMutex
	meta     engine.Meta
	clusters map[string]*cluster
	// owner is the handle that may be used: the one opened last.
	owner *handle
}

// New returns empty data.
func New() *Data { return &Data{clusters: map[string]*cluster{}} }

// Open returns a store over the data. It is an [engine.StoreOpener]. A handle
// that is still open loses the data to the new one, as a process that dies would.
func (d *Data) Open(ctx context.Context) (engine.Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open store in memory: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owner = &handle{data: d}
	return d.owner, nil
}

// cluster is what is kept of one cluster.
type cluster struct {
	// record is nil if none was ever written.
	record    *engine.ClusterRecord
	lastSeq   uint64
	nodes     *btree.BTreeG[*engine.NodeRecord]
	healths   *btree.BTreeG[*engine.NodeHealthRecord]
	reprieves *btree.BTreeG[*engine.ReprieveRecord]
	open      pages
	// closed has all of history by position; classes has the positions by class.
	closed  *btree.BTreeG[closed]
	classes [history.Classes]*btree.BTreeG[history.Position]
}

type closed struct {
	at      history.Position
	version engine.EvictionVersion
}

func newCluster() *cluster {
	c := &cluster{
		nodes:   btree.NewG(degree, func(a, b *engine.NodeRecord) bool { return a.Name < b.Name }),
		healths: btree.NewG(degree, func(a, b *engine.NodeHealthRecord) bool { return a.Name < b.Name }),
		reprieves: btree.NewG(degree, func(a, b *engine.ReprieveRecord) bool {
			return a.UID < b.UID
		}),
		open:   pages{},
		closed: btree.NewG(degree, func(a, b closed) bool { return a.at.Compare(b.at) < 0 }),
	}
	for class := range c.classes {
		c.classes[class] = btree.NewG(degree, func(a, b history.Position) bool { return a.Compare(b) < 0 })
	}
	return c
}

// handle is an open store.
type handle struct {
	data *Data
	// broken is set by the first failed write. data.mu guards it.
	broken bool
}

// usable returns why the handle cannot be used, if so. data.mu is held.
func (h *handle) usable() error {
	switch {
	case h.data.owner != h:
		return store.ErrClosed
	case h.broken:
		return store.ErrBroken
	}
	return nil
}

// Load reads from a snapshot, so that the visitor may take its time.
func (h *handle) Load(ctx context.Context, v engine.Visitor) error {
	h.data.mu.Lock()
	if err := h.usable(); err != nil {
		h.data.mu.Unlock()
		return fmt.Errorf("load store in memory: %w", err)
	}
	meta, all := h.data.meta, map[string]snapshot{}
	for name, c := range h.data.clusters {
		all[name] = snapshot{
			record: c.record, lastSeq: c.lastSeq, nodes: c.nodes.Clone(), healths: c.healths.Clone(),
			reprieves: c.reprieves.Clone(), open: c.open.all(),
		}
	}
	h.data.mu.Unlock()
	if err := v.Meta(meta); err != nil {
		return fmt.Errorf("load store in memory: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := visit(ctx, v, name, all[name]); err != nil {
			return fmt.Errorf("load store in memory: %w", err)
		}
	}
	return nil
}

// snapshot is what a load reads of a cluster.
type snapshot struct {
	record    *engine.ClusterRecord
	lastSeq   uint64
	nodes     *btree.BTreeG[*engine.NodeRecord]
	healths   *btree.BTreeG[*engine.NodeHealthRecord]
	reprieves *btree.BTreeG[*engine.ReprieveRecord]
	open      []engine.EvictionVersion
}

func visit(ctx context.Context, v engine.Visitor, name string, c snapshot) error {
	lc := engine.LoadedCluster{Record: engine.ClusterRecord{Name: name}, LastSeq: c.lastSeq}
	if c.record != nil {
		lc.Record = *record.Cluster(c.record)
	}
	if err := v.Cluster(lc); err != nil {
		return err
	}
	err := each(ctx, c.nodes, func(r *engine.NodeRecord) error { return v.Node(record.Node(r)) })
	if err != nil {
		return err
	}
	err = each(ctx, c.healths, func(r *engine.NodeHealthRecord) error { return v.Health(record.Health(r)) })
	if err != nil {
		return err
	}
	err = each(ctx, c.reprieves, func(r *engine.ReprieveRecord) error { return v.Reprieve(record.Reprieve(r)) })
	if err != nil {
		return err
	}
	for _, version := range c.open {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := v.Eviction(read(name, version)); err != nil {
			return err
		}
	}
	return nil
}

func each[T any](ctx context.Context, t *btree.BTreeG[T], f func(T) error) (err error) {
	t.Ascend(func(item T) bool {
		if err = ctx.Err(); err == nil {
			err = f(item)
		}
		return err == nil
	})
	return err
}

// Commit applies the whole batch or, if a change of it is bad, nothing.
func (h *handle) Commit(ctx context.Context, b *engine.Batch) error {
	h.data.mu.Lock()
	defer h.data.mu.Unlock()
	if err := h.usable(); err != nil {
		return fmt.Errorf("commit to store in memory: %w", err)
	}
	if err := ctx.Err(); err != nil {
		h.broken = true
		return fmt.Errorf("commit to store in memory: %w", err)
	}
	for i := range b.Changes {
		if err := store.CheckChange(&b.Changes[i]); err != nil {
			h.broken = true
			return fmt.Errorf("commit to store in memory: change %d of cluster %q: %w", i, b.Changes[i].Cluster, err)
		}
	}
	var c *cluster
	for i := range b.Changes {
		// Changes come in runs of one cluster.
		if i == 0 || b.Changes[i].Cluster != b.Changes[i-1].Cluster || c == nil {
			c = h.data.clusters[b.Changes[i].Cluster]
		}
		c = h.data.apply(c, &b.Changes[i])
	}
	h.data.meta = engine.Meta{Revision: b.Revision, ClockFloor: b.Now}
	return nil
}

// apply makes one checked change of a cluster, nil if it is not known, and returns
// the cluster as it then is. mu is held.
func (d *Data) apply(c *cluster, ch *engine.Change) *cluster {
	switch ch.Kind {
	case engine.ChangeNotify:
		return c
	case engine.ChangeForgetCluster:
		delete(d.clusters, ch.Cluster)
		return nil
	}
	switch {
	case c != nil:
	case ch.Kind == engine.ChangeDeleteNode || ch.Kind == engine.ChangeDeleteReprieve || ch.Kind == engine.ChangeDeleteHealth:
		// Nothing to delete, and no reason to make the cluster known.
		return nil
	default:
		c = newCluster()
		d.clusters[ch.Cluster] = c
	}
	switch ch.Kind {
	case engine.ChangePutEviction:
		c.lastSeq = max(c.lastSeq, ch.Eviction.Seq())
		c.open.put(ch.Eviction)
	case engine.ChangeCloseEviction:
		c.close(ch)
	case engine.ChangePutNode:
		r := record.Node(ch.Node)
		r.Cluster = ch.Cluster
		c.nodes.ReplaceOrInsert(r)
	case engine.ChangeDeleteNode:
		c.nodes.Delete(ch.Node)
	case engine.ChangePutHealth:
		r := record.Health(ch.Health)
		r.Cluster = ch.Cluster
		c.healths.ReplaceOrInsert(r)
	case engine.ChangeDeleteHealth:
		c.healths.Delete(ch.Health)
	case engine.ChangePutCluster:
		c.record = record.Cluster(ch.Record)
		c.record.Name = ch.Cluster
	case engine.ChangePutReprieve:
		r := record.Reprieve(ch.Reprieve)
		r.Cluster = ch.Cluster
		c.reprieves.ReplaceOrInsert(r)
	case engine.ChangeDeleteReprieve:
		c.reprieves.Delete(ch.Reprieve)
	}
	return c
}

// read is an eviction as it is stored: its cluster is where it is.
func read(cluster string, v engine.EvictionVersion) *engine.EvictionRecord {
	r := &engine.EvictionRecord{}
	v.Fill(r)
	r = record.Eviction(r)
	r.Cluster = cluster
	return r
}

func (c *cluster) close(ch *engine.Change) {
	var r engine.EvictionRecord
	ch.Eviction.Fill(&r)
	c.lastSeq = max(c.lastSeq, r.Seq)
	c.open.remove(r.Seq)
	at := history.PositionOf(&r)
	c.closed.ReplaceOrInsert(closed{at, ch.Eviction})
	c.classes[history.ClassOf(&r)].ReplaceOrInsert(at)
	if ch.DropReprieve {
		c.reprieves.Delete(&engine.ReprieveRecord{UID: r.UID})
	}
}

// History reads closed evictions, newest first.
func (h *handle) History(ctx context.Context, hq engine.HistoryQuery) (engine.HistoryPage, error) {
	q, err := history.Parse(hq)
	if err != nil {
		return engine.HistoryPage{}, err
	}
	var page engine.HistoryPage
	err = h.descend(ctx, q.Cluster, q.Below, func(e closed) bool {
		if e.at == q.Below {
			return true
		}
		if !q.Reaches(e.at) {
			return false
		}
		if len(page.Evictions) == q.Limit {
			page.Cursor = history.Cursor(q.Below)
			return false
		}
		q.Below = e.at
		if r := read(q.Cluster, e.version); q.Match(r) {
			page.Evictions = append(page.Evictions, r)
		}
		return true
	})
	if err != nil {
		return engine.HistoryPage{}, fmt.Errorf("read history of cluster %q: %w", q.Cluster, err)
	}
	return page, nil
}

// HistoryEviction looks for a sequence, newest first.
func (h *handle) HistoryEviction(ctx context.Context, name string, seq uint64) (*engine.EvictionRecord, error) {
	var r *engine.EvictionRecord
	err := h.descend(ctx, name, history.Newest, func(e closed) bool {
		if e.at.Seq == seq {
			r = read(name, e.version)
		}
		return r == nil
	})
	if err == nil && r == nil {
		err = engine.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read closed eviction %d of cluster %q: %w", seq, name, err)
	}
	return r, nil
}

// descend calls f for a cluster's closed evictions from a position down, until f says no.
func (h *handle) descend(ctx context.Context, name string, from history.Position, f func(closed) bool) error {
	h.data.mu.RLock()
	defer h.data.mu.RUnlock()
	if err := cmp.Or(h.usable(), ctx.Err()); err != nil {
		return err
	}
	c := h.data.clusters[name]
	if c == nil {
		return nil
	}
	var err error
	c.closed.DescendLessOrEqual(closed{at: from}, func(e closed) bool {
		err = ctx.Err()
		return err == nil && f(e)
	})
	return err
}

// Prune removes the oldest entries of each class that are beyond its quota.
func (h *handle) Prune(ctx context.Context, name string, now time.Time, q engine.HistoryQuotas, limit int) (int, error) {
	h.data.mu.Lock()
	defer h.data.mu.Unlock()
	if err := h.usable(); err != nil {
		return 0, fmt.Errorf("prune history of cluster %q: %w", name, err)
	}
	if err := ctx.Err(); err != nil {
		h.broken = true
		return 0, fmt.Errorf("prune history of cluster %q: %w", name, err)
	}
	c := h.data.clusters[name]
	if c == nil {
		return 0, nil
	}
	removed := 0
	for class, quota := range history.Quotas(q) {
		expired := history.Expired(now, quota.Age)
		for t := c.classes[class]; removed < limit; removed++ {
			oldest, ok := t.Min()
			if !ok || t.Len() <= quota.Count && oldest.Compare(expired) >= 0 {
				break
			}
			t.DeleteMin()
			c.closed.Delete(closed{at: oldest})
		}
	}
	return removed, nil
}

// Size is 0: nothing is on disk.
func (h *handle) Size() int64 { return 0 }

// Free implements [engine.Store]; there is none.
func (h *handle) Free() int64 { return 0 }

// Close ends the handle; the data stays.
func (h *handle) Close() error {
	h.data.mu.Lock()
	defer h.data.mu.Unlock()
	if h.data.owner == h {
		h.data.owner = nil
	}
	return nil
}
