package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/internal/history"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	// DefaultLockTimeout is how long Open waits for another process to let go of the file.
	DefaultLockTimeout = 2 * time.Second
	// spareMap is how much more than the file is mapped at open. Only addresses
	// are spent, and until the file has grown by that much no writer waits for
	// readers to leave, which a new mapping needs.
	spareMap = 1 << 30
	// preReadMax bounds the pre-read: of a file that hardly fits into memory the
	// kernel would drop the beginning before it is needed.
	preReadMax = 4 << 30
)

// Options say where the data file is and how to open it.
type Options struct {
	// Path is the data file. Its folder is made if it does not exist (mode 0700).
	Path string
	// LockTimeout is how long to wait for another process to let go of the
	// file; zero means [DefaultLockTimeout].
	LockTimeout time.Duration
	// Damaged, if set, is told of closed evictions that readers found damaged
	// and left out. It may be called by several goroutines and must not block.
	// What a load finds goes to the visitor instead.
	Damaged func(where string, err error)
	// Room is how many bytes the file system must have free, for a file whose
	// disk was full: with less, small commits work, larger ones do not, and the
	// file would be given up and opened all the time. Zero asks for none.
	Room uint64
	// CheckCommand, if set, is the program, with the arguments before the file,
	// that checks a file that was not closed cleanly, in a process of its own: see
	// [CheckInChild]. Without it such a file is opened as it is.
	CheckCommand []string
	// SetAside, if set, makes Open rename a file that is beyond help to what it
	// returns, and begin a new one. Without it Open refuses such a file.
	SetAside func(path string) (to string)
	// WasSetAside, if set, is told of a file that was set aside, and why.
	WasSetAside func(to string, why error)
	// Migrated, if set, is told of a file that was of an older schema version, and
	// of the copy that was made of it before.
	Migrated func(from, to uint32, backup string)
	// steps are the program's own, but for tests.
	steps []step
}

// Store is a bbolt file open for reading and writing.
type Store struct {
	path    string
	damaged func(where string, err error)
	db      *bbolt.DB
	// pageSize is bbolt's, in bytes. It is asked for once: a handle that is closed
	// or being mapped anew must not be asked.
	pageSize int64
	closed   atomic.Bool
	// broken is set by the first failed write, suspect by the first damage that was met.
	broken, suspect atomic.Bool
	// counts has how many closed evictions the clusters have by class, of those
	// clusters that were pruned. Only Commit and Prune use it, which are never called at once.
	counts map[string]*[history.Classes]int
	kept   kept
	// encoder is Commit's.
	encoder encoder
}

// Open opens the data file, or makes it. It ends with ctx's cause if ctx ends while
// it reads or checks the file, which takes minutes for a large one. Its errors wrap
// [engine.ErrStoreLocked] if another process has the file open,
// [engine.ErrSchemaVersion] if a newer version of the program wrote it, and
// [store.ErrDamaged] if it is cut short, beyond help or no data file at all;
// nothing is changed in these cases, unless [Options.SetAside] says so. A file of
// an older schema version is copied and then migrated.
func Open(ctx context.Context, o Options) (engine.Store, error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	if o.Damaged == nil {
		o.Damaged = func(string, error) {}
	}
	if o.steps == nil {
		o.steps = steps()
	}
	s, err := open(ctx, o)
	if o.SetAside == nil || !isDamage(err) {
		return orNil(s), err
	}
	to := o.SetAside(o.Path)
	if err := setAside(o.Path, to); err != nil {
		return nil, err
	}
	if o.WasSetAside != nil {
		o.WasSetAside(to, err)
	}
	s, err = open(ctx, o)
	return orNil(s), err
}

// orNil keeps a missing store from becoming an interface that is not nil.
func orNil(s *Store) engine.Store {
	if s == nil {
		return nil
	}
	return s
}

func isDamage(err error) bool { return errors.Is(err, store.ErrDamaged) }

// open opens the data file as it is, or makes it.
func open(ctx context.Context, o Options) (*Store, error) {
	if err := checkRoom(o.Path, o.Room); err != nil {
		return nil, err
	}
	size, err := prepare(ctx, o.Path)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		if size, err = create(o.Path, newest(o.steps)); err != nil {
			return nil, err
		}
	} else {
		if err := fit(ctx, o, size); err != nil {
			return nil, err
		}
	}
	db, err := openFile(o, size, false)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(o.Path + markerSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("open data file %s: remove the marker of its last close: %w", o.Path, err), db.Close())
	}
	s := &Store{path: o.Path, damaged: o.Damaged, db: db, pageSize: int64(db.Info().PageSize), counts: map[string]*[history.Classes]int{}}
	if err := s.begin(&o); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// fit reports whether an existing file can be opened. It does not write to it: a
// file of another version must stay as it is.
func fit(ctx context.Context, o Options, size int64) error {
	if err := inspect(o, size); err != nil || len(o.CheckCommand) == 0 || closedCleanly(o.Path) {
		return err
	}
	r, err := CheckInChild(ctx, o.CheckCommand, o.Path)
	if err == nil && r.BeyondHelp() {
		err = r.damage()
	}
	return err
}

// setAside gives a file that is beyond help another name.
func setAside(path, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("set data file %s aside: %s is there already; move it away", path, to)
	}
	if err := os.Rename(path, to); err != nil {
		return fmt.Errorf("set data file %s aside: %w", path, err)
	}
	return syncFolder(filepath.Dir(path))
}

// prepare makes the folder, reads the file once from end to end, and returns
// the file's size, 0 if there is none yet.
func prepare(ctx context.Context, path string) (int64, error) {
	if path == "" {
		return 0, errors.New("open data file: the path is empty; name a file")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, fmt.Errorf("make the folder of data file %s: %w", path, err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("open data file %s: %w", path, err)
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("open data file %s: it is not a regular file; name another path", path)
	}
	if err := preRead(ctx, path, info.Size()); err != nil {
		return 0, fmt.Errorf("read data file %s: %w", path, err)
	}
	return info.Size(), nil
}

// preRead brings the file into the kernel's memory in order of its bytes: the
// load walks pages in the order of keys, which on a cold disk takes ten times as long.
func preRead(ctx context.Context, path string, size int64) error {
	if size > preReadMax {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := f.Read(buf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// inspect looks at an existing file without writing to it: whether it is whole
// and of a version that this program knows.
func inspect(o Options, size int64) error {
	if size < 2*int64(os.Getpagesize()) {
		return noDataFile(o.Path, fmt.Errorf("it has only %d bytes", size))
	}
	db, err := openFile(o, size, true)
	if err != nil {
		return err
	}
	return errors.Join(guard(o.Path, func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if tx.Size() > size {
				return fmt.Errorf("%w: data file %s is cut short: it has %d bytes of %d; restore a backup, or move it away to begin anew",
					store.ErrDamaged, o.Path, size, tx.Size())
			}
			_, err := checkSchema(tx, o.Path, newest(o.steps))
			return err
		})
	}), db.Close())
}

// checkSchema returns the file's schema version, 0 if it is still empty, or an
// error if that is none up to newest.
func checkSchema(tx *bbolt.Tx, path string, newest uint32) (version uint32, err error) {
	if first, _ := tx.Cursor().First(); first == nil {
		return 0, nil
	}
	var v []byte
	if meta := tx.Bucket(bucketMeta); meta != nil {
		v = meta.Get(keySchemaVersion)
	}
	if len(v) != 4 {
		return 0, fmt.Errorf("%w: data file %s has no schema version (meta/schema_version is %d bytes), supported is up to %d: it is not this program's; move it away or name another path",
			engine.ErrSchemaVersion, path, len(v), newest)
	}
	if version = binary.BigEndian.Uint32(v); version == 0 || version > newest {
		return 0, fmt.Errorf("%w: data file %s has schema version %d, supported is up to %d: run the version of the program that wrote it, or put the copy in its place that it made before its migration (%s)",
			engine.ErrSchemaVersion, path, version, newest, backupName(path, newest))
	}
	return version, nil
}

// openFile opens the file with bbolt and tells its errors in words.
func openFile(o Options, size int64, readOnly bool) (db *bbolt.DB, err error) {
	var file *os.File
	opts := &bbolt.Options{
		Timeout: o.LockTimeout, ReadOnly: readOnly, InitialMmapSize: int(size) + spareMap,
		// A map of free pages keeps its cost with many of them. It is written with
		// every commit: leaving that out saves nothing that can be measured, makes
		// bbolt walk the whole file, history too, at open, and lets a bad page met
		// on that walk end the process, since bbolt walks in a goroutine of its own.
		FreelistType: bbolt.FreelistMapType, NoFreelistSync: false,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			file = f
			return f, err
		},
	}
	err = guard(o.Path, func() (err error) {
		db, err = bbolt.Open(o.Path, 0o600, opts)
		return err
	})
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, berrors.ErrTimeout):
		return nil, inUse(o.Path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, noDataFile(o.Path, err)
	}
	var panicked *pagePanic
	if errors.As(err, &panicked) && file != nil {
		err = errors.Join(err, release(file))
	}
	return nil, fmt.Errorf("open data file %s: %w", o.Path, err)
}

// inUse says that another process has the file open.
func inUse(path string) error {
	return fmt.Errorf("%w: data file %s: probably another instance of the service runs on it, or has not ended yet; stop that one, or give this one a data directory of its own",
		engine.ErrStoreLocked, path)
}

// noDataFile says that a file is none of bbolt's.
func noDataFile(path string, why error) error {
	return fmt.Errorf("%w: data file %s is not a bbolt file, or its head is damaged (%w); name another path, restore a backup, or move it away to begin anew",
		store.ErrDamaged, path, why)
}

// begin checks the version, plants the tree in a file that has none, and
// migrates one of an older version.
func (s *Store) begin(o *Options) error {
	var version uint32
	err := s.view(func(tx *bbolt.Tx) (err error) {
		version, err = checkSchema(tx, s.path, newest(o.steps))
		return err
	})
	switch {
	case err != nil:
		return err
	case version == 0:
		return s.update("make the tree", func(tx *bbolt.Tx) error { return plant(tx, newest(o.steps)) })
	case version < newest(o.steps):
		return s.migrate(o, version)
	}
	return nil
}

// create makes a new data file under another name first: one that a power
// failure cut short would be refused for ever after. An empty file, which is
// left alone if another process was faster, is replaced.
func create(path string, version uint32) (size int64, err error) {
	part := fmt.Sprintf("%s.new-%d", path, os.Getpid())
	if err := removeAny(part); err != nil {
		return 0, fmt.Errorf("make data file %s: %w", path, err)
	}
	db, err := openFile(Options{Path: part, LockTimeout: DefaultLockTimeout}, 0, false)
	if err != nil {
		return 0, err
	}
	err = errors.Join(db.Update(func(tx *bbolt.Tx) error { return plant(tx, version) }), db.Close())
	if err == nil {
		err = link(part, path)
	}
	if err := errors.Join(err, removeAny(part)); err != nil {
		return 0, fmt.Errorf("make data file %s: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("make data file %s: %w", path, err)
	}
	return info.Size(), syncFolder(filepath.Dir(path))
}

// link gives a file its name unless another one has it.
func link(part, path string) error {
	err := os.Link(part, path)
	switch info, statErr := os.Stat(path); {
	case err == nil:
		return nil
	case statErr == nil && info.Size() > 0:
		return nil
	}
	// An empty file is there, or the file system knows no links.
	return os.Rename(part, path)
}

// syncFolder makes a new file's name as durable as what is in the file.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", path, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder %s: %w", path, err)
	}
	return nil
}

// Close releases the file. It waits for calls under way.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close data file %s: %w", s.path, err)
	}
	if s.broken.Load() || s.suspect.Load() {
		return nil
	}
	return markClean(s.path)
}

// Size is the size of the data file in bytes, 0 if it cannot be told.
func (s *Store) Size() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Free implements [engine.Store]. It takes no transaction, and a closed handle
// answers with what it knew last.
func (s *Store) Free() int64 {
	st := s.db.Stats()
	return int64(st.FreePageN+st.PendingPageN) * s.pageSize
}

// usable returns why the handle cannot be used, if so.
func (s *Store) usable() error {
	switch {
	case s.closed.Load():
		return fmt.Errorf("data file %s: %w", s.path, store.ErrClosed)
	case s.broken.Load():
		return fmt.Errorf("data file %s: %w", s.path, store.ErrBroken)
	}
	return nil
}

// view runs f in a transaction that only reads.
func (s *Store) view(f func(tx *bbolt.Tx) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	err := guard(s.path, func() error { return s.db.View(f) })
	if isDamage(err) {
		s.suspect.Store(true)
	}
	return s.orClosed(err)
}

// update runs f in a transaction that writes and is on disk at its end. After
// an error what is on disk is unknown (the sync may fail after the new root is
// visible), so the handle is broken from then on.
func (s *Store) update(what string, f func(tx *bbolt.Tx) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	err := guard(s.path, func() error { return s.db.Update(f) })
	if err == nil {
		return nil
	}
	s.broken.Store(true)
	hint := ""
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		hint = " (make room on its disk)"
	}
	return s.orClosed(fmt.Errorf("%s in data file %s%s: %w", what, s.path, hint, err))
}

// orClosed names an error that only says that the file was closed meanwhile.
func (s *Store) orClosed(err error) error {
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return fmt.Errorf("data file %s: %w", s.path, store.ErrClosed)
	}
	return err
}

// guard runs f and turns bbolt's panic over a page that makes no sense, and a
// read beyond the end of the mapped file, into an error.
func guard(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case foreign:
			panic(p.value)
		default:
			err = &pagePanic{path: path, value: p}
		}
	}()
	return f()
}

// pagePanic is the error that stands for a panic of bbolt's.
type pagePanic struct {
	path  string
	value any
}

func (p *pagePanic) Error() string {
	return fmt.Sprintf("%v: data file %s has pages that make no sense (%v); restore a backup, or move it away to begin anew", store.ErrDamaged, p.path, p.value)
}

func (p *pagePanic) Unwrap() error { return store.ErrDamaged }

// foreign is a panic that is none of the file's.
type foreign struct{ value any }

// abroad runs f, which is not the store's: its panics are not taken for damage.
func abroad(f func() error) error {
	defer func() {
		if p := recover(); p != nil {
			panic(foreign{p})
		}
	}()
	return f()
}
