package bolt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.etcd.io/bbolt"
)

func open(t *testing.T, path string) engine.Store {
	t.Helper()
	s, err := bolt.Open(t.Context(), bolt.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// populate makes a data file with n open and n closed evictions of cluster a, and closes it.
func populate(t *testing.T, path string, n int) {
	t.Helper()
	s := open(t, path)
	b := &engine.Batch{Revision: 1, Now: epoch, Changes: []engine.Change{
		{Kind: engine.ChangePutCluster, Cluster: "a", Record: storetest.Cluster("a")},
		{Kind: engine.ChangePutNode, Cluster: "a", Node: storetest.Node("a", "n-1")},
		{Kind: engine.ChangePutNode, Cluster: "a", Node: storetest.Node("a", "n-2")},
		{Kind: engine.ChangePutReprieve, Cluster: "a", Reprieve: storetest.Reprieve("a", "u-1")},
		{Kind: engine.ChangePutReprieve, Cluster: "a", Reprieve: storetest.Reprieve("a", "u-2")},
	}}
	for i := range n {
		b.Changes = append(b.Changes,
			engine.Change{Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(storetest.Eviction("a", uint64(2*i+1)))},
			engine.Change{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(closed(2*i + 2))})
	}
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

var epoch = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// closed is a closed eviction; its second is its sequence, and every fourth is early.
func closed(seq int) *engine.EvictionRecord {
	return storetest.Closed("a", uint64(seq), epoch.Add(time.Duration(seq)*time.Second), seq%4 == 0)
}

// wantRefused opens a file that must be refused with an error that wraps is
// and says all of words, and must stay as it is.
func wantRefused(t *testing.T, path string, is error, words ...string) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := bolt.Open(t.Context(), bolt.Options{Path: path, LockTimeout: time.Millisecond})
		if err == nil {
			s.Close()
			t.Fatalf("%s was opened", path)
		}
		if !errors.Is(err, is) {
			t.Errorf("open: %v, want %v", err, is)
		}
		for _, w := range append(words, path) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the error does not say %q: %v", w, err)
			}
		}
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
}

func TestOtherSchemas(t *testing.T) {
	for name, c := range map[string]struct {
		version []byte
		words   []string
	}{
		"newer":     {binary.BigEndian.AppendUint32(nil, 7), []string{"schema version 7", "supported is up to 2", "run the version"}},
		"malformed": {[]byte("1"), []string{"no schema version", "supported is up to 2"}},
		"none":      {nil, []string{"no schema version", "supported is up to 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t)
			populate(t, path, 1)
			edit(t, path, func(tx *bbolt.Tx) error {
				if c.version == nil {
					return tx.Bucket([]byte("meta")).Delete([]byte("schema_version"))
				}
				return tx.Bucket([]byte("meta")).Put([]byte("schema_version"), c.version)
			})
			wantRefused(t, path, engine.ErrSchemaVersion, c.words...)
		})
	}
}

func TestForeignBoltFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	edit(t, path, func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("somebody else's"))
		return err
	})
	wantRefused(t, path, engine.ErrSchemaVersion, "not this program's")
}

func TestNoBoltFile(t *testing.T) {
	for name, content := range map[string][]byte{
		"a line":  []byte("this is no data file\n"),
		"a page":  bytes.Repeat([]byte{7}, 4096),
		"a lot":   bytes.Repeat([]byte("kind: Pod\n"), 10_000),
		"nothing": make([]byte, 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "reprieve.db")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			wantRefused(t, path, store.ErrDamaged, "not a bbolt file", "restore a backup")
		})
	}
}

func TestCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reprieve.db")
	populate(t, path, 500)
	for _, pages := range []int64{40, 10, 3} {
		if err := os.Truncate(path, pages*int64(os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, path, store.ErrDamaged, "cut short", "restore a backup")
	}
}

// TestEmptyFile: a file of no bytes is what is left when a process dies between making it and writing to it.
func TestEmptyFile(t *testing.T) {
	path := newFile(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	populate(t, path, 1)
}

// TestUnplantedFile: a bbolt file without a bucket is what is left when a process dies a little later.
func TestUnplantedFile(t *testing.T) {
	path := newFile(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(*bbolt.Tx) error { return nil })
	populate(t, path, 1)
}

func TestBadPaths(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"none": "", "a folder": dir, "under a file": filepath.Join(file, "data", "reprieve.db"), "a file for a folder": filepath.Join(file, "reprieve.db")} {
		if s, err := bolt.Open(t.Context(), bolt.Options{Path: path}); err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name the path: %v", name, err)
		}
	}
}

func TestModes(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", p, info.Mode(), want)
		}
	}
}

func TestLocked(t *testing.T) {
	path := newFile(t)
	s := open(t, path)
	_, err := bolt.Open(t.Context(), bolt.Options{Path: path, LockTimeout: time.Millisecond})
	if !errors.Is(err, engine.ErrStoreLocked) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "another instance") {
		t.Errorf("second open: %v", err)
	}
	if err := s.Commit(t.Context(), &engine.Batch{Revision: 1}); err != nil {
		t.Errorf("commit of the first after that: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

// TestFree removes what was written: its room is free, after a reopening too,
// and is used before the file grows.
func TestFree(t *testing.T) {
	path := newFile(t)
	s := open(t, path)
	batch := func(kind engine.ChangeKind, revision uint64) {
		t.Helper()
		b := &engine.Batch{Revision: revision}
		for i := range 2000 {
			b.Changes = append(b.Changes, engine.Change{Kind: kind, Cluster: "a", Node: storetest.Node("a", fmt.Sprint("node-", i))})
		}
		if err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	batch(engine.ChangePutNode, 1)
	full, before := s.Size(), s.Free()
	batch(engine.ChangeDeleteNode, 2)
	freed := s.Free()
	if freed < before+100_000 || freed > s.Size() {
		t.Fatalf("%d bytes free after a removal, %d before, of %d", freed, before, full)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	if got := s.Free(); got < before+100_000 {
		t.Errorf("%d bytes free after a reopening, %d before", got, freed)
	}
	batch(engine.ChangePutNode, 3)
	if got := s.Free(); got >= freed {
		t.Errorf("%d bytes free after the room was used again, %d before", got, freed)
	}
}

func TestSize(t *testing.T) {
	path := newFile(t)
	s := open(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Size() != info.Size() || s.Size() == 0 {
		t.Errorf("size is %d, the file has %d bytes", s.Size(), info.Size())
	}
	moved := path + ".moved"
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if s.Size() != 0 {
		t.Errorf("size of a file that is gone is %d", s.Size())
	}
	if err := os.Rename(moved, path); err != nil {
		t.Fatal(err)
	}
}
