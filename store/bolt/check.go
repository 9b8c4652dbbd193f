package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"go.etcd.io/bbolt"
)

// reported bounds how many faults of each kind a report names. All damaged records
// are counted; the check of pages ends there.
const reported = 100

// BucketCount is how many records a bucket has, and how many of them cannot be read.
type BucketCount struct {
	Bucket  string `json:"bucket"`
	Records int    `json:"records"`
	Damaged int    `json:"damaged"`
}

// Report is what a check of a data file found.
type Report struct {
	Path string `json:"path"`
	// SizeBytes is the file's, FreeBytes the room in it that records left.
	SizeBytes     int64  `json:"size_bytes"`
	FreeBytes     int64  `json:"free_bytes"`
	SchemaVersion uint32 `json:"schema_version"`
	Revision      uint64 `json:"revision"`
	// LastCommit is the engine time of the last commit; zero if there was none.
	LastCommit time.Time     `json:"last_commit,omitzero"`
	Buckets    []BucketCount `json:"buckets"`
	// Pages are faults of the file's pages. A file with any is beyond help.
	Pages []string `json:"pages,omitempty"`
	// Records are those that cannot be read. A load sets them aside.
	Records        []string `json:"records,omitempty"`
	DamagedPages   int      `json:"damaged_pages"`
	DamagedRecords int      `json:"damaged_records"`
}

// BeyondHelp reports whether the file cannot be served from: pages are damaged.
func (r *Report) BeyondHelp() bool { return r.DamagedPages > 0 }

// Damaged reports whether anything of the file is damaged.
func (r *Report) Damaged() bool { return r.DamagedPages+r.DamagedRecords > 0 }

// page notes a fault of the pages.
func (r *Report) page(format string, args ...any) {
	if r.DamagedPages++; r.DamagedPages <= reported {
		r.Pages = append(r.Pages, fmt.Sprintf(format, args...))
	}
}

// Check reads all of a data file, without writing to it: bbolt's own check of the
// pages, and every record decoded. What it finds is in the report; its errors
// say that it could not look ([engine.ErrStoreLocked], [engine.ErrSchemaVersion],
// no such file). A page can be damaged so that reading it ends the process:
// [CheckInChild] survives that.
func Check(ctx context.Context, path string) (*Report, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("check data file: %w", err)
	}
	r := &Report{Path: path, SizeBytes: info.Size()}
	o := Options{Path: path, LockTimeout: DefaultLockTimeout, steps: steps()}
	if err := inspect(o, info.Size()); err != nil {
		return r.orDamaged(err)
	}
	db, err := openFile(o, info.Size(), true)
	if err != nil {
		return r.orDamaged(err)
	}
	// The lock on the file is kept while a copy of it is checked.
	at, done, err := checkable(path, int64(db.Info().PageSize))
	switch {
	case err != nil:
	case at == path:
		err = r.walk(ctx, db)
	default:
		err = r.checkCopy(ctx, at, done)
	}
	return r.orDamaged(errors.Join(err, db.Close()))
}

// checkCopy reads a copy of the file. The copy loses its name as soon as it is
// open, so that nothing is left behind if a page ends the process.
func (r *Report) checkCopy(ctx context.Context, at string, done func() error) error {
	db, err := openFile(Options{Path: at, LockTimeout: DefaultLockTimeout}, r.SizeBytes, true)
	if err != nil {
		return errors.Join(err, done())
	}
	return errors.Join(done(), r.walk(ctx, db), db.Close())
}

func (r *Report) walk(ctx context.Context, db *bbolt.DB) error {
	return guard(r.Path, func() error { return db.View(func(tx *bbolt.Tx) error { return r.read(ctx, tx) }) })
}

// orDamaged puts an error that tells of damage into the report.
func (r *Report) orDamaged(err error) (*Report, error) {
	if isDamage(err) {
		r.page("%v", err)
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Report) read(ctx context.Context, tx *bbolt.Tx) error {
	for err := range tx.Check() {
		// Such a page is room lost and nothing else; compacting gives it back.
		if !strings.HasSuffix(err.Error(), "unreachable unfreed") {
			r.page("%.200s", err.Error())
		}
		// Pages that lead in circles make ever more faults, each longer than the
		// one before. What is left of the check waits for ever, and holds little.
		if r.DamagedPages == reported {
			break
		}
	}
	if r.DamagedPages > 0 {
		return nil
	}
	version, err := checkSchema(tx, r.Path, newest(steps()))
	if version == 0 || err != nil {
		return err
	}
	r.FreeBytes = int64(tx.DB().Stats().FreePageN) * int64(tx.DB().Info().PageSize)
	// The codec reads the records of every version there has been. With a step that
	// rewrites records, older files are to be left out here, and the report to say so.
	r.SchemaVersion = version
	c := &checker{report: r, ctx: ctx}
	l := &loader{ctx: ctx, v: c}
	if err := l.meta(tx); err != nil {
		return err
	}
	err = tx.Bucket(bucketClusters).ForEachBucket(func(name []byte) error {
		if err := l.cluster(tx, string(name)); err != nil {
			return err
		}
		return c.cluster(tx, string(name))
	})
	if err != nil {
		return err
	}
	return c.quarantine(tx)
}

// checker counts what a load visits. It implements [engine.Visitor].
type checker struct {
	report *Report
	ctx    context.Context
	// counts are those of the cluster being read: nodes, their health, reprieves, evictions.
	nodes, healths, reprieves, evictions BucketCount
}

// Meta implements [engine.Visitor].
func (c *checker) Meta(m engine.Meta) error {
	c.report.Revision, c.report.LastCommit = m.Revision, m.ClockFloor
	return nil
}

// Cluster implements [engine.Visitor].
func (c *checker) Cluster(engine.LoadedCluster) error {
	c.nodes, c.healths, c.reprieves, c.evictions = BucketCount{}, BucketCount{}, BucketCount{}, BucketCount{}
	return nil
}

// Node implements [engine.Visitor].
func (c *checker) Node(*engine.NodeRecord) error { c.nodes.Records++; return nil }

// Health implements [engine.Visitor].
func (c *checker) Health(*engine.NodeHealthRecord) error { c.healths.Records++; return nil }

// Reprieve implements [engine.Visitor].
func (c *checker) Reprieve(*engine.ReprieveRecord) error { c.reprieves.Records++; return nil }

// Eviction implements [engine.Visitor].
func (c *checker) Eviction(*engine.EvictionRecord) error { c.evictions.Records++; return nil }

// Damaged implements [engine.Visitor].
func (c *checker) Damaged(where string, err error) {
	r := c.report
	if r.DamagedRecords++; r.DamagedRecords <= reported {
		r.Records = append(r.Records, fmt.Sprintf("%s: %v", where, err))
	}
	for kind, n := range map[string]*BucketCount{"nodes": &c.nodes, "health": &c.healths, "reprieves": &c.reprieves, "evictions": &c.evictions} {
		if parts := strings.Split(where, "/"); len(parts) > 3 && parts[2] == kind {
			n.Records++
			n.Damaged++
		}
	}
}

// cluster adds the counts of a cluster that was loaded, and reads its history.
func (c *checker) cluster(tx *bbolt.Tx, name string) error {
	t, err := findCluster(tx, name)
	if err != nil {
		return err
	}
	closed := BucketCount{}
	err = t.history.ForEach(func(k, v []byte) error {
		if closed.Records++; closed.Records%loadCheck == 0 && c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		if _, err := decodeClosed(name, k, v); err != nil {
			closed.Damaged++
			c.Damaged(fmt.Sprintf("clusters/%s/history/%x", name, k), err)
		}
		return nil
	})
	for _, b := range []struct {
		name  string
		count BucketCount
	}{{"nodes", c.nodes}, {"health", c.healths}, {"reprieves", c.reprieves}, {"evictions", c.evictions}, {"history", closed}} {
		if b.name == "health" && t.health == nil {
			continue
		}
		b.count.Bucket = "clusters/" + name + "/" + b.name
		c.report.Buckets = append(c.report.Buckets, b.count)
	}
	return err
}

// decodeClosed reads one entry of history.
func decodeClosed(cluster string, k, v []byte) (*engine.EvictionRecord, error) {
	_, at, err := codec.ParseHistoryKey(k)
	if err != nil {
		return nil, err
	}
	r, err := codec.DecodeEviction(cluster, at.Seq, v)
	if err == nil && history.PositionOf(r).Compare(at) != 0 {
		return nil, errors.New("it is not the eviction that its key names")
	}
	return r, err
}

// quarantine counts what was set aside before. That is not damage of today.
func (c *checker) quarantine(tx *bbolt.Tx) error {
	n := BucketCount{Bucket: string(bucketQuarantine)}
	q := tx.Bucket(bucketQuarantine)
	err := q.ForEachBucket(func(name []byte) error {
		return q.Bucket(name).ForEach(func(_, _ []byte) error { n.Records++; return nil })
	})
	c.report.Buckets = append(c.report.Buckets, n)
	return err
}
