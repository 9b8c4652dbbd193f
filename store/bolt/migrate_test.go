package bolt_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.etcd.io/bbolt"
)

// older is a closed data file of version 1 with one batch of records.
func older(t *testing.T) string {
	path := newFile(t)
	s, err := bolt.Open(t.Context(), bolt.Options{Path: path}.With())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Commit(t.Context(), batchOf(1)), s.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func version(t *testing.T, path string) (v uint32) {
	t.Helper()
	edit(t, path, func(tx *bbolt.Tx) error {
		v = binary.BigEndian.Uint32(tx.Bucket([]byte("meta")).Get([]byte("schema_version")))
		return nil
	})
	return v
}

// TestMigration opens a file of version 1 with a program of version 3: both steps
// are made in order, the copy is of the old version, and an older program refuses the file.
func TestMigration(t *testing.T) {
	path := older(t)
	var done []string
	step := func(name string) bolt.Step {
		return func(tx *bbolt.Tx) error {
			done = append(done, name)
			return tx.Bucket([]byte("meta")).Put([]byte(name), []byte{1})
		}
	}
	told := ""
	o := bolt.Options{Path: path, Migrated: func(from, to uint32, copy string) { told = fmt.Sprint(from, to, copy) }}.With(step("first"), step("second"))
	for range 2 {
		s, err := bolt.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		c, err := storetest.Load(t.Context(), s)
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		if n := len(c.Clusters[0].Evictions); n != perBatch {
			t.Errorf("%d evictions after the migration, want %d", n, perBatch)
		}
	}
	if got := strings.Join(done, " "); got != "first second" {
		t.Errorf("steps made: %s; want each once", got)
	}
	backup := path + ".schema-1"
	if want := fmt.Sprint(1, 3, backup); told != want {
		t.Errorf("told of %q, want %q", told, want)
	}
	if v, b := version(t, path), version(t, backup); v != 3 || b != 1 {
		t.Errorf("the file has version %d and its copy %d, want 3 and 1", v, b)
	}
	if c := load(t, backup); len(c.Clusters[0].Evictions) != perBatch {
		t.Errorf("the copy has %+v", c.Clusters[0])
	}
	_, err := bolt.Open(t.Context(), bolt.Options{Path: path}.With(step("first")))
	if !errors.Is(err, engine.ErrSchemaVersion) || !strings.Contains(err.Error(), path+".schema-2") {
		t.Errorf("an older program opens the file: %v", err)
	}
}

// TestMigrationFails has a step fail: the file is of the old version and whole, it is
// not set aside, and the next start migrates it.
func TestMigrationFails(t *testing.T) {
	good := func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("new"), []byte{1}) }
	for name, step := range map[string]bolt.Step{
		"error":  func(*bbolt.Tx) error { return errors.New("made up") },
		"damage": func(*bbolt.Tx) error { return fmt.Errorf("%w: made up", store.ErrDamaged) },
		"panic":  func(*bbolt.Tx) error { panic("made up") },
	} {
		t.Run(name, func(t *testing.T) {
			path := older(t)
			o := bolt.Options{Path: path, SetAside: func(string) string { return path + ".aside" }}
			_, err := bolt.Open(t.Context(), o.With(good, step))
			if err == nil || errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "from schema version 1 to 3") || !strings.Contains(err.Error(), path) {
				t.Fatalf("open: %v", err)
			}
			if _, err := os.Lstat(path + ".aside"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file was set aside: %v", err)
			}
			edit(t, path, func(tx *bbolt.Tx) error {
				if v := tx.Bucket([]byte("meta")).Get([]byte("new")); v != nil {
					t.Error("the first step is on disk without the second")
				}
				return nil
			})
			if v := version(t, path); v != 1 {
				t.Errorf("version %d after the failure, want 1", v)
			}
			s, err := bolt.Open(t.Context(), o.With(good, good))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if v := version(t, path); v != 3 {
				t.Errorf("version %d in the end, want 3", v)
			}
		})
	}
}

// TestNoMigrationWithoutACopy has no room for the copy: nothing is migrated.
func TestNoMigrationWithoutACopy(t *testing.T) {
	path := older(t)
	// A folder that is not empty takes the copy's name.
	if err := os.MkdirAll(filepath.Join(path+".schema-1", "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := bolt.Open(t.Context(), bolt.Options{Path: path}.With(func(*bbolt.Tx) error { t.Error("a step was made"); return nil }))
	if err == nil || !strings.Contains(err.Error(), path+".schema-1") {
		t.Fatalf("open: %v", err)
	}
	if v := version(t, path); v != 1 {
		t.Errorf("version %d, want 1", v)
	}
}

// TestOpensEverySchema opens a data file of each schema version that there has been
// and finds what was written to it. Fields that came later have no say. A check finds
// as many records before it is opened as after.
func TestOpensEverySchema(t *testing.T) {
	for v := uint32(1); v <= bolt.Newest(); v++ {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			path, name := newFile(t), filepath.Join("testdata", fmt.Sprintf("schema-%d", v))
			unpack(t, name+".db.gz", path)
			var want any
			text, err := os.ReadFile(name + ".json")
			if err := errors.Join(err, json.Unmarshal(text, &want)); err != nil {
				t.Fatal(err)
			}
			old := reportOf(t, path)
			if at := missing("", want, everything(t, path)); at != "" {
				t.Errorf("what was written at %s is not what is read", at)
			}
			now := reportOf(t, path)
			if diff := cmp.Diff(now.Buckets, old.Buckets); diff != "" || len(old.Buckets) < 5 || old.SchemaVersion != v || old.Revision != now.Revision || old.Damaged() {
				t.Errorf("a check before the migration: %+v (-after it +before it):\n%s", old, diff)
			}
		})
	}
}

func reportOf(t *testing.T, path string) *bolt.Report {
	t.Helper()
	r, err := bolt.Check(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// everything is all that a file has, as JSON has it.
func everything(t *testing.T, path string) (out any) {
	t.Helper()
	s := open(t, path)
	defer s.Close()
	c, err := storetest.Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	h, err := storetest.History(t.Context(), s, engine.HistoryQuery{Cluster: "a", Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"open": c, "history": h})
	if err := errors.Join(err, json.Unmarshal(text, &out)); err != nil {
		t.Fatal(err)
	}
	return out
}

// missing is the first place at which got has not what want has; empty if there is none.
func missing(at string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		got, _ := got.(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if m := missing(at+"/"+k, want[k], got[k]); m != "" {
				return m
			}
		}
	case []any:
		got, _ := got.([]any)
		if len(got) != len(want) {
			return at
		}
		for i := range want {
			if m := missing(fmt.Sprint(at, "/", i), want[i], got[i]); m != "" {
				return m
			}
		}
	default:
		if want != got {
			return at
		}
	}
	return ""
}

func unpack(t *testing.T, from, to string) {
	t.Helper()
	packed, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	file, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, file, 0o600); err != nil {
		t.Fatal(err)
	}
}
