package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/reprieve-dev/reprieve/engine"
)

// trace is what a run of ours wrote: which evictions each transaction put or
// closed, and the bytes of one record each, so that bbolt alone can write the same.
type trace struct {
	Batches [][]uint64
	Values  map[uint64][]byte
}

// tracing notes what goes through a store, from the moment it is told to.
type tracing struct {
	engine.Store
	on      func() bool
	mu      sync.Mutex // guards what follows
	batches [][]uint64
}

func (t *tracing) Commit(ctx context.Context, b *engine.Batch) error {
	if t.on() {
		var seqs []uint64
		for i := range b.Changes {
			if k := b.Changes[i].Kind; k == engine.ChangePutEviction || k == engine.ChangeCloseEviction {
				seqs = append(seqs, b.Changes[i].Eviction.Seq())
			}
		}
		if len(seqs) > 0 {
			t.mu.Lock()
			t.batches = append(t.batches, seqs)
			t.mu.Unlock()
		}
	}
	return t.Store.Commit(ctx, b)
}

// save writes the trace beside the data file, whose evictions it reads. The store is closed.
func (t *tracing) save(dir, to string) error {
	out := trace{Batches: t.batches, Values: map[uint64][]byte{}}
	err := openEvictions(filepath.Join(dir, "reprieve.db"), func(k, v []byte) error {
		out.Values[seqOf(k)] = append([]byte(nil), v...)
		return nil
	})
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(out), f.Close())
}

// openEvictions walks the open evictions of a data file.
func openEvictions(path string, f func(k, v []byte) error) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("clusters")).Bucket([]byte(clusterName)).Bucket([]byte("evictions")).ForEach(f)
	})
}

func seqOf(k []byte) (n uint64) {
	for _, b := range k {
		n = n<<8 | uint64(b)
	}
	return n
}

func decideBolt(r *run1) (figures, error) { return onBolt(r, decide) }

// decideTraced runs the same once more to see what it writes; its time is not counted.
func decideTraced(r *run1, to string) error {
	dir, err := os.MkdirTemp(r.dir, "trace-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &tracing{on: func() bool { return true }}
	_, err = decide(r, func(ctx context.Context) (engine.Store, error) {
		s, err := openBolt(dir)(ctx)
		t.Store = s
		return t, err
	})
	if err != nil {
		return err
	}
	return t.save(dir, to)
}

func decideRaw(r *run1) (figures, error) {
	path := filepath.Join(r.dir, fmt.Sprintf("decide-%d.trace", r.size))
	if _, err := os.Stat(path); err != nil {
		if err := decideTraced(r, path); err != nil {
			return nil, err
		}
	}
	return replay(r, path, r.size)
}

// replay writes a trace with bbolt alone: the same keys, as many bytes, the
// same transactions, each synced to the disk.
func replay(r *run1, path string, puts int) (figures, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var t trace
	if err := gob.NewDecoder(f).Decode(&t); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(r.dir, "raw-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	db, err := bbolt.Open(filepath.Join(dir, "raw.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	n := 0
	w := startWatch()
	for _, seqs := range t.Batches {
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("evictions"))
			if err != nil {
				return err
			}
			b.FillPercent = 0.95
			for _, seq := range seqs {
				var key [8]byte
				for i := range key {
					key[i] = byte(seq >> (56 - 8*i))
				}
				if err := b.Put(key[:], t.Values[seq]); err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	got := w.stop(puts)
	if n < puts {
		return nil, fmt.Errorf("the trace has %d puts, want %d", n, puts)
	}
	got["transactions"] = float64(len(t.Batches))
	return got, nil
}
