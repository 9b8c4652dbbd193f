//go:build failpoints

package bolt

import (
	"bytes"
	"os"

	"go.etcd.io/bbolt"
)

// rehearseVariable, if set, gives this build one schema version more than it has.
const rehearseVariable = "REPRIEVE_REHEARSE_MIGRATION"

// rehearsal is a step that takes every eviction out and puts it back, so that a
// kill during a migration has all of them to lose.
func rehearsal() []step {
	if os.Getenv(rehearseVariable) == "" {
		return nil
	}
	return []step{func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketClusters).ForEachBucket(func(name []byte) error {
			t, err := findCluster(tx, string(name))
			if err != nil {
				return err
			}
			for _, b := range []*bbolt.Bucket{t.evictions, t.history} {
				if err := rewrite(b); err != nil {
					return err
				}
			}
			return nil
		})
	}}
}

func rewrite(b *bbolt.Bucket) error {
	var keys, values [][]byte
	err := b.ForEach(func(k, v []byte) error {
		keys, values = append(keys, bytes.Clone(k)), append(values, bytes.Clone(v))
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	for i, k := range keys {
		if err := b.Put(k, values[i]); err != nil {
			return err
		}
	}
	return nil
}
