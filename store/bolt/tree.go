package bolt

import (
	"bytes"
	"fmt"

	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"go.etcd.io/bbolt"
)

// The names in the tree that doc.go draws.
var (
	bucketMeta       = []byte("meta")
	bucketClusters   = []byte("clusters")
	bucketQuarantine = []byte("quarantine")
	bucketNodes      = []byte("nodes")
	bucketEvictions  = []byte("evictions")
	bucketReprieves  = []byte("reprieves")
	bucketHistory    = []byte("history")
	// bucketHealth is made with the first record of it: files of versions that did
	// not know it have none, and those versions leave it alone.
	bucketHealth = []byte("health")

	keySchemaVersion = []byte("schema_version")
	keyRevision      = []byte("revision")
	keyClockFloor    = []byte("clock_floor")
	keyCluster       = []byte("cluster")
)

// orderedFill is how full pages are left in buckets whose keys only grow.
const orderedFill = 0.95

// clusterTree is one cluster's part of the tree.
type clusterTree struct {
	self, nodes, evictions, reprieves, history *bbolt.Bucket
	// health is nil until something was put into it.
	health *bbolt.Bucket
	// closes is made with the first close of a transaction.
	closes *closeCursors
}

// closeCursors find what a close moves. A bucket's own methods make a cursor for
// each call, and room for its path; these use theirs again.
type closeCursors struct {
	evictions, history *bbolt.Cursor
}

// forCloses returns the cursors for what is closed.
func (t *clusterTree) forCloses() *closeCursors {
	if t.closes == nil {
		t.closes = &closeCursors{evictions: t.evictions.Cursor(), history: t.history.Cursor()}
	}
	return t.closes
}

// at moves a cursor to a key and reports whether it is there.
func at(c *bbolt.Cursor, key []byte) bool {
	k, _ := c.Seek(key)
	return bytes.Equal(k, key)
}

// findCluster returns the cluster's part of the tree, or nil if there is none.
func findCluster(tx *bbolt.Tx, name string) (*clusterTree, error) {
	self := tx.Bucket(bucketClusters).Bucket([]byte(name))
	if self == nil {
		return nil, nil
	}
	t := &clusterTree{
		self: self, nodes: self.Bucket(bucketNodes), evictions: self.Bucket(bucketEvictions),
		reprieves: self.Bucket(bucketReprieves), history: self.Bucket(bucketHistory),
		health: self.Bucket(bucketHealth),
	}
	if t.nodes == nil || t.evictions == nil || t.reprieves == nil || t.history == nil {
		return nil, fmt.Errorf("%w: bucket clusters/%s lacks one of nodes, evictions, reprieves, history", store.ErrDamaged, name)
	}
	t.evictions.FillPercent, t.history.FillPercent = orderedFill, orderedFill
	return t, nil
}

// needCluster returns the cluster's part of the tree and makes it if there is none.
func needCluster(tx *bbolt.Tx, name string) (*clusterTree, error) {
	if t, err := findCluster(tx, name); t != nil || err != nil {
		return t, err
	}
	self, err := tx.Bucket(bucketClusters).CreateBucket([]byte(name))
	if err != nil {
		return nil, err
	}
	for _, b := range [][]byte{bucketNodes, bucketEvictions, bucketReprieves, bucketHistory} {
		if _, err := self.CreateBucket(b); err != nil {
			return nil, err
		}
	}
	return findCluster(tx, name)
}

// plant makes the tree of a new file of that version.
func plant(tx *bbolt.Tx, version uint32) error {
	for _, b := range [][]byte{bucketMeta, bucketClusters, bucketQuarantine} {
		if _, err := tx.CreateBucket(b); err != nil {
			return err
		}
	}
	if err := stamp(tx, version); err != nil {
		return err
	}
	return putMeta(tx, 0, noTime)
}

// putMeta writes what the store keeps about itself.
func putMeta(tx *bbolt.Tx, revision uint64, clockFloor int64) error {
	meta := tx.Bucket(bucketMeta)
	if err := meta.Put(keyRevision, codec.EncodeNumber(revision)); err != nil {
		return err
	}
	return meta.Put(keyClockFloor, codec.EncodeNumber(uint64(clockFloor)))
}
