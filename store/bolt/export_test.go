package bolt

import (
	"os"
	"reflect"
	"unsafe"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"go.etcd.io/bbolt"
)

// field reaches into a handle of bbolt's. A field that is of another type or not
// there any more panics, so that a new version of bbolt is noticed.
func field[T any](db *bbolt.DB, path ...string) *T {
	v := reflect.ValueOf(db).Elem()
	for _, name := range path {
		v = v.FieldByName(name)
	}
	if v.Type() != reflect.TypeFor[T]() {
		panic("bbolt has another type there: " + v.Type().String())
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// HookWrites lets hook do the store's writes from now on. It is given bbolt's handle
// and what would do the write.
func HookWrites(s engine.Store, hook func(db *bbolt.DB, write func([]byte, int64) (int, error), b []byte, off int64) (int, error)) {
	db := s.(*Store).db
	writeAt := field[func([]byte, int64) (int, error)](db, "ops", "writeAt")
	real := *writeAt
	*writeAt = func(b []byte, off int64) (int, error) { return hook(db, real, b, off) }
}

// SwapFile gives the store another file to sync; its writes go where they went.
func SwapFile(db *bbolt.DB, f *os.File) (old *os.File) {
	file := field[*os.File](db, "file")
	old, *file = *file, f
	return old
}

// Handle is the store's bbolt handle.
func Handle(s engine.Store) *bbolt.DB { return s.(*Store).db }

// FindWithin reports whether a closed eviction is found among so many keys of its class.
func FindWithin(s engine.Store, cluster string, seq uint64, keys int) (found bool, err error) {
	err = s.(*Store).view(func(tx *bbolt.Tx) error {
		t, err := findCluster(tx, cluster)
		if err != nil {
			return err
		}
		for class := range history.Class(history.Classes) {
			at := &search{class: class, seq: seq}
			found = found || at.look(t.history, keys) != nil
		}
		return nil
	})
	return found, err
}

// Step is one step of a migration.
type Step = step

// Newest is the schema version of this program.
func Newest() uint32 { return newest(steps()) }

// With gives the store other steps than the program's own.
func (o Options) With(steps ...Step) Options {
	o.steps = append([]Step{}, steps...)
	return o
}
