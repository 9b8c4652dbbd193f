package bolt

import (
	"context"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"go.etcd.io/bbolt"
)

// scanRecords is how many records one transaction of a scan decodes: an old
// transaction keeps pages from being used again.
const scanRecords = 4096

// History reads closed evictions, newest first. A scan is cut into several
// transactions, so that a filter that matches little holds none for long.
func (s *Store) History(ctx context.Context, hq engine.HistoryQuery) (engine.HistoryPage, error) {
	q, err := history.Parse(hq)
	if err != nil {
		return engine.HistoryPage{}, err
	}
	var page engine.HistoryPage
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return engine.HistoryPage{}, fmt.Errorf("read history of cluster %q: %w", q.Cluster, err)
		}
		err := s.view(func(tx *bbolt.Tx) (err error) {
			done, err = s.scan(tx, q, &page)
			return err
		})
		if err != nil {
			return engine.HistoryPage{}, fmt.Errorf("read history of cluster %q: %w", q.Cluster, err)
		}
	}
	return page, nil
}

// scan adds to the page what matches among the next records below q.Below,
// moves that on, and reports whether the page is complete.
func (s *Store) scan(tx *bbolt.Tx, q *history.Query, page *engine.HistoryPage) (done bool, err error) {
	t, err := findCluster(tx, q.Cluster)
	if t == nil {
		return true, err
	}
	d := newDescent(t.history, q.Below)
	for range scanRecords {
		e := d.next()
		if e == nil || !q.Reaches(e.at) {
			return true, nil
		}
		if len(page.Evictions) == q.Limit {
			page.Cursor = history.Cursor(q.Below)
			return true, nil
		}
		q.Below = e.at
		r, err := codec.DecodeEviction(q.Cluster, e.at.Seq, e.value)
		if err != nil {
			s.damaged(where(q.Cluster, e.at), err)
			continue
		}
		if q.Match(r) {
			page.Evictions = append(page.Evictions, r)
		}
	}
	return false, nil
}

// where names a closed eviction for people.
func where(cluster string, at history.Position) string {
	return fmt.Sprintf("clusters/%s/history/%s/%d", cluster, time.Unix(0, at.ClosedAt).UTC().Format(time.RFC3339Nano), at.Seq)
}

// descent goes through both classes of a history at once, newest first.
type descent struct {
	cursors [history.Classes]*bbolt.Cursor
	heads   [history.Classes]*entry
	last    *entry
}

// entry is one record of history. Its bytes live as long as the transaction.
type entry struct {
	class history.Class
	at    history.Position
	value []byte
}

// newDescent begins at the newest entry below a position.
func newDescent(b *bbolt.Bucket, at history.Position) *descent {
	d := &descent{}
	for class := range history.Class(history.Classes) {
		c := b.Cursor()
		d.cursors[class] = c
		d.heads[class] = below(c, class, at)
	}
	return d
}

// below is a class's newest entry below a position; nil if there is none.
func below(c *bbolt.Cursor, class history.Class, at history.Position) *entry {
	var k, v []byte
	if found, _ := c.Seek(codec.HistoryKey(class, at)); found == nil {
		k, v = c.Last()
	} else {
		k, v = c.Prev()
	}
	return settle(c, class, k, v)
}

// settle takes the cursor's entry, or the next one down that can be read; nil
// at the end of the class.
func settle(c *bbolt.Cursor, class history.Class, k, v []byte) *entry {
	for ; len(k) > 0 && k[0] >= byte(class); k, v = c.Prev() {
		if have, at, err := codec.ParseHistoryKey(k); err == nil && have == class {
			return &entry{class: class, at: at, value: v}
		}
	}
	return nil
}

// next returns the next entry, nil after the last.
func (d *descent) next() *entry {
	if e := d.last; e != nil {
		c := d.cursors[e.class]
		k, v := c.Prev()
		d.heads[e.class] = settle(c, e.class, k, v)
	}
	d.last = d.heads[history.Sent]
	if e := d.heads[history.Early]; d.last == nil || e != nil && e.at.Compare(d.last.at) > 0 {
		d.last = e
	}
	return d.last
}
