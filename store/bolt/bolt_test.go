package bolt_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.etcd.io/bbolt"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) engine.StoreOpener { return opener(newFile(t)) })
}

// newFile is the path of a data file that is not there yet; what becomes of it
// is checked when the test ends.
func newFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "data", "reprieve.db")
	t.Cleanup(func() { check(t, path) })
	return path
}

func opener(path string) engine.StoreOpener {
	return func(ctx context.Context) (engine.Store, error) { return bolt.Open(ctx, bolt.Options{Path: path}) }
}

// check runs bbolt's own check over a closed data file.
func check(t *testing.T, path string) {
	t.Helper()
	edit(t, path, func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("bbolt finds fault with %s: %v", path, err)
		}
		return nil
	})
}

// edit changes a closed data file behind the store's back.
func edit(t *testing.T, path string, f func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: bolt.DefaultLockTimeout})
	if err != nil {
		t.Fatalf("open %s behind the store's back: %v", path, err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := db.Update(f); err != nil {
		t.Fatalf("edit %s: %v", path, err)
	}
}
