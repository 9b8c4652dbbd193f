package bolt

import (
	"context"
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"go.etcd.io/bbolt"
)

// Commit writes the batch in one transaction. When it returns nil, all of it is on disk.
func (s *Store) Commit(ctx context.Context, b *engine.Batch) error {
	if err := ctx.Err(); err != nil {
		s.broken.Store(true)
		return fmt.Errorf("commit to data file %s: %w", s.path, err)
	}
	s.kept.ahead(b.Changes)
	var w *writer
	err := s.update("commit", func(tx *bbolt.Tx) error {
		w = newWriter(tx, &s.encoder)
		s.encoder.begin(b.Changes)
		defer s.encoder.end()
		for i := range b.Changes {
			if err := w.apply(i, &b.Changes[i]); err != nil {
				return fmt.Errorf("change %d of cluster %q: %w", i, b.Changes[i].Cluster, err)
			}
		}
		if err := w.putRecords(); err != nil {
			return err
		}
		return putMeta(tx, b.Revision, history.Nanos(b.Now))
	})
	if err != nil {
		return err
	}
	s.count(w)
	return nil
}

// count keeps the counts of history in step with a transaction that is on disk.
func (s *Store) count(w *writer) {
	for name := range w.forgotten {
		delete(s.counts, name)
	}
	for name, added := range w.added {
		if have := s.counts[name]; have != nil {
			for class := range have {
				have[class] += added[class]
			}
		}
	}
}

// writer applies changes within one transaction.
type writer struct {
	tx      *bbolt.Tx
	encoder *encoder
	trees   map[string]*clusterTree
	// records are written at the end: a busy cluster has many in a batch.
	records map[string]*engine.ClusterRecord
	// added counts new entries of history, forgotten has clusters that are no more.
	added     map[string]*[history.Classes]int
	forgotten map[string]bool
}

func newWriter(tx *bbolt.Tx, e *encoder) *writer {
	return &writer{
		tx: tx, encoder: e, trees: map[string]*clusterTree{}, records: map[string]*engine.ClusterRecord{},
		added: map[string]*[history.Classes]int{}, forgotten: map[string]bool{},
	}
}

func (w *writer) tree(name string) (*clusterTree, error) {
	if t := w.trees[name]; t != nil {
		return t, nil
	}
	t, err := needCluster(w.tx, name)
	if err == nil {
		w.trees[name] = t
	}
	return t, err
}

// apply makes the change of that place in the batch.
func (w *writer) apply(i int, c *engine.Change) error {
	if err := store.CheckChange(c); err != nil {
		return err
	}
	switch c.Kind {
	case engine.ChangeNotify:
		return nil
	case engine.ChangeForgetCluster:
		return w.forget(c.Cluster)
	case engine.ChangePutCluster:
		w.records[c.Cluster] = c.Record
		return nil
	case engine.ChangeDeleteNode, engine.ChangeDeleteReprieve, engine.ChangeDeleteHealth:
		return w.remove(c)
	}
	t, err := w.tree(c.Cluster)
	if err != nil {
		return err
	}
	switch c.Kind {
	case engine.ChangePutEviction:
		return w.putEviction(t, i)
	case engine.ChangeCloseEviction:
		return w.closeEviction(t, i, c)
	case engine.ChangePutNode:
		v, err := codec.EncodeNode(c.Node)
		if err != nil {
			return err
		}
		return t.nodes.Put([]byte(c.Node.Name), v)
	case engine.ChangePutHealth:
		return t.putHealth(c.Health)
	default: // ChangePutReprieve: CheckChange knows no other kind.
		v, err := codec.EncodeReprieve(c.Reprieve)
		if err != nil {
			return err
		}
		return t.reprieves.Put([]byte(c.Reprieve.UID), v)
	}
}

// putHealth writes a node's health.
func (t *clusterTree) putHealth(r *engine.NodeHealthRecord) error {
	v, err := codec.EncodeHealth(r)
	if err != nil {
		return err
	}
	if t.health == nil {
		if t.health, err = t.self.CreateBucketIfNotExists(bucketHealth); err != nil {
			return err
		}
	}
	return t.health.Put([]byte(r.Name), v)
}

// remove deletes a node, its health or a reprieve; it does not make an unknown cluster known.
func (w *writer) remove(c *engine.Change) error {
	t := w.trees[c.Cluster]
	if t == nil {
		var err error
		if t, err = findCluster(w.tx, c.Cluster); t == nil {
			return err
		}
		w.trees[c.Cluster] = t
	}
	switch {
	case c.Kind == engine.ChangeDeleteNode:
		return t.nodes.Delete([]byte(c.Node.Name))
	case c.Kind == engine.ChangeDeleteHealth && t.health == nil:
		return nil
	case c.Kind == engine.ChangeDeleteHealth:
		return t.health.Delete([]byte(c.Health.Name))
	}
	return t.reprieves.Delete([]byte(c.Reprieve.UID))
}

func (w *writer) putEviction(t *clusterTree, i int) error {
	e, err := w.encoder.eviction(i)
	if err != nil {
		return err
	}
	if err := t.raise(e.seq); err != nil {
		return err
	}
	return t.evictions.Put(codec.SeqKey(e.seq), e.value)
}

// raise keeps the highest sequence ever given, in the transaction that gives it.
func (t *clusterTree) raise(seq uint64) error {
	if seq <= t.evictions.Sequence() {
		return nil
	}
	return t.evictions.SetSequence(seq)
}

// closeEviction moves an eviction from the open ones to history.
func (w *writer) closeEviction(t *clusterTree, i int, c *engine.Change) error {
	e, err := w.encoder.eviction(i)
	if err != nil {
		return err
	}
	if err := t.raise(e.seq); err != nil {
		return err
	}
	cursors := t.forCloses()
	if at(cursors.evictions, codec.SeqKey(e.seq)) {
		if err := cursors.evictions.Delete(); err != nil {
			return err
		}
	}
	k := codec.HistoryKey(e.class, e.at)
	if !at(cursors.history, k) {
		if w.added[c.Cluster] == nil {
			w.added[c.Cluster] = new([history.Classes]int)
		}
		w.added[c.Cluster][e.class]++
	}
	if err := t.history.Put(k, e.value); err != nil {
		return err
	}
	if !c.DropReprieve {
		return nil
	}
	return t.reprieves.Delete([]byte(e.uid))
}

// forget removes everything of a cluster, what is in quarantine too.
func (w *writer) forget(name string) error {
	delete(w.trees, name)
	delete(w.records, name)
	delete(w.added, name)
	w.forgotten[name] = true
	clusters := w.tx.Bucket(bucketClusters)
	if clusters.Bucket([]byte(name)) != nil {
		if err := clusters.DeleteBucket([]byte(name)); err != nil {
			return err
		}
	}
	return forgetQuarantine(w.tx, name)
}

func (w *writer) putRecords() error {
	for name, r := range w.records {
		v, err := codec.EncodeCluster(r)
		if err != nil {
			return fmt.Errorf("record of cluster %q: %w", name, err)
		}
		t, err := w.tree(name)
		if err != nil {
			return err
		}
		if err := t.self.Put(keyCluster, v); err != nil {
			return err
		}
	}
	return nil
}
