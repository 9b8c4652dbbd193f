package bolt

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"go.etcd.io/bbolt"
)

// noTime is the stored form of the zero time.
const noTime = math.MinInt64

// loadCheck is how many records are read between two looks at the context.
const loadCheck = 1024

// Load reads everything that is open, in the order of keys, in one
// transaction; what cannot be read is moved to quarantine in a second one.
func (s *Store) Load(ctx context.Context, v engine.Visitor) error {
	l := &loader{ctx: ctx, v: v}
	err := s.view(func(tx *bbolt.Tx) error {
		if err := l.meta(tx); err != nil {
			return err
		}
		return tx.Bucket(bucketClusters).ForEachBucket(func(name []byte) error {
			return l.cluster(tx, string(name))
		})
	})
	if err != nil {
		return fmt.Errorf("load data file %s: %w", s.path, err)
	}
	if len(l.aside) == 0 {
		return nil
	}
	return s.update("set damaged records aside", func(tx *bbolt.Tx) error {
		for i := range l.aside {
			if err := l.aside[i].move(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// loader reads within one transaction.
type loader struct {
	ctx   context.Context
	v     engine.Visitor
	aside []damagedRecord
	read  int
}

// damagedRecord is what could not be read. Its bytes are copies.
type damagedRecord struct {
	// path is that of the bucket, from the root.
	path       []string
	key, value []byte
	// stays: the record is copied to quarantine and not removed.
	stays bool
}

// report tells the visitor of damage and remembers to set it aside. name is the key in words.
func (l *loader) report(d damagedRecord, name string, err error) error {
	d.key, d.value = bytes.Clone(d.key), bytes.Clone(d.value)
	l.aside = append(l.aside, d)
	return abroad(func() error {
		l.v.Damaged(strings.Join(append(slices.Clone(d.path), name), "/"), err)
		return nil
	})
}

func (l *loader) meta(tx *bbolt.Tx) error {
	var m engine.Meta
	revision, err := l.number(tx, keyRevision)
	if err != nil {
		return err
	}
	floor, err := l.number(tx, keyClockFloor)
	if err != nil {
		return err
	}
	if revision != nil {
		m.Revision = *revision
	}
	// Without a floor the wall clock counts, as at the first start.
	if floor != nil && int64(*floor) != noTime {
		m.ClockFloor = time.Unix(0, int64(*floor)).UTC()
	}
	return abroad(func() error { return l.v.Meta(m) })
}

// number reads a number of meta; nil if it is damaged or, after damage, missing.
func (l *loader) number(tx *bbolt.Tx, key []byte) (*uint64, error) {
	v := tx.Bucket(bucketMeta).Get(key)
	if v == nil {
		return nil, nil
	}
	n, err := codec.DecodeNumber(v)
	if err != nil {
		return nil, l.report(damagedRecord{path: []string{string(bucketMeta)}, key: key, value: v}, string(key), err)
	}
	return &n, nil
}

func (l *loader) cluster(tx *bbolt.Tx, name string) error {
	t, err := findCluster(tx, name)
	if err != nil {
		return err
	}
	if err := l.record(t, name); err != nil {
		return err
	}
	err = l.each(t.nodes, []string{"clusters", name, "nodes"}, plain, func(k, v []byte) (func() error, error) {
		r, err := codec.DecodeNode(name, string(k), v)
		return func() error { return l.v.Node(r) }, err
	})
	if err != nil {
		return err
	}
	if t.health != nil {
		err = l.each(t.health, []string{"clusters", name, "health"}, plain, func(k, v []byte) (func() error, error) {
			r, err := codec.DecodeHealth(name, string(k), v)
			return func() error { return l.v.Health(r) }, err
		})
		if err != nil {
			return err
		}
	}
	err = l.each(t.reprieves, []string{"clusters", name, "reprieves"}, plain, func(k, v []byte) (func() error, error) {
		r, err := codec.DecodeReprieve(name, string(k), v)
		return func() error { return l.v.Reprieve(r) }, err
	})
	if err != nil {
		return err
	}
	return l.each(t.evictions, []string{"clusters", name, "evictions"}, decimal, func(k, v []byte) (func() error, error) {
		seq, err := codec.ParseSeqKey(k)
		if err != nil {
			return nil, err
		}
		r, err := codec.DecodeEviction(name, seq, v)
		return func() error { return l.v.Eviction(r) }, err
	})
}

// record visits the cluster. A record that was never written is an empty one:
// the crash came before the first whole list ended.
func (l *loader) record(t *clusterTree, name string) error {
	lc := engine.LoadedCluster{Record: engine.ClusterRecord{Name: name}, LastSeq: t.evictions.Sequence()}
	if v := t.self.Get(keyCluster); v != nil {
		r, err := codec.DecodeCluster(name, v)
		if err == nil {
			lc.Record = *r
		} else {
			lc.Damaged = true
			d := damagedRecord{path: []string{"clusters", name}, key: keyCluster, value: v, stays: true}
			if err := l.report(d, string(keyCluster), err); err != nil {
				return err
			}
		}
	}
	return abroad(func() error { return l.v.Cluster(lc) })
}

// each decodes every record of a bucket and visits those that can be read.
func (l *loader) each(b *bbolt.Bucket, path []string, word func([]byte) string, decode func(k, v []byte) (func() error, error)) error {
	return b.ForEach(func(k, v []byte) error {
		if l.read%loadCheck == 0 && l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		l.read++
		visit, err := decode(k, v)
		if err != nil {
			return l.report(damagedRecord{path: path, key: k, value: v}, word(k), err)
		}
		return abroad(visit)
	})
}

func plain(k []byte) string { return string(k) }

// decimal is a sequence as people write it, or what is there instead of one.
func decimal(k []byte) string {
	seq, err := codec.ParseSeqKey(k)
	if err != nil {
		return fmt.Sprintf("%x", k)
	}
	return strconv.FormatUint(seq, 10)
}

// move puts the record into quarantine and takes it from where it was.
func (d *damagedRecord) move(tx *bbolt.Tx) error {
	to, err := tx.Bucket(bucketQuarantine).CreateBucketIfNotExists([]byte(strings.Join(d.path, "/")))
	if err != nil {
		return err
	}
	if err := to.Put(d.key, d.value); err != nil || d.stays {
		return err
	}
	from := tx.Bucket([]byte(d.path[0]))
	for _, name := range d.path[1:] {
		if from = from.Bucket([]byte(name)); from == nil {
			return fmt.Errorf("%w: bucket %s is gone", store.ErrDamaged, strings.Join(d.path, "/"))
		}
	}
	return from.Delete(d.key)
}

// forgetQuarantine removes what was set aside of a cluster.
func forgetQuarantine(tx *bbolt.Tx, name string) error {
	q := tx.Bucket(bucketQuarantine)
	own := "clusters/" + name
	var doomed [][]byte
	err := q.ForEachBucket(func(k []byte) error {
		if p := string(k); p == own || strings.HasPrefix(p, own+"/") {
			doomed = append(doomed, bytes.Clone(k))
		}
		return nil
	})
	for i := 0; err == nil && i < len(doomed); i++ {
		err = q.DeleteBucket(doomed[i])
	}
	return err
}
