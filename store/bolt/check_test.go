package bolt_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.etcd.io/bbolt"
)

// selfCheck runs the test binary as the child that checks.
var selfCheck []string

// loop makes the root page of the open evictions a branch that leads to itself,
// which is what a walk of it follows until the stack is full.
func loop(t *testing.T, path string) {
	t.Helper()
	page, size := evictionsPage(t, path), int64(os.Getpagesize())
	b := make([]byte, size)
	binary.LittleEndian.PutUint64(b, uint64(page))
	binary.LittleEndian.PutUint16(b[8:], 1)  // a branch
	binary.LittleEndian.PutUint16(b[10:], 1) // of one element
	binary.LittleEndian.PutUint32(b[16:], 16)
	binary.LittleEndian.PutUint32(b[20:], 8)
	binary.LittleEndian.PutUint64(b[24:], uint64(page))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, page*size); err != nil {
		t.Fatal(err)
	}
}

// killed takes the marker of the clean close away, as if there had been none.
func killed(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path + ".clean"); err != nil {
		t.Fatal(err)
	}
}

// TestDeadlyPage: a page that would end the process ends a child, at the first
// start after an unclean end; the file is refused or set aside, as asked.
func TestDeadlyPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reprieve.db")
	populate(t, path, 300)
	killed(t, path)
	loop(t, path)
	o := bolt.Options{Path: path, CheckCommand: selfCheck}
	if _, err := bolt.Open(t.Context(), o); !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), "restore a backup") {
		t.Fatalf("refusing: %v", err)
	}
	aside := path + ".damaged"
	var told string
	o.SetAside = func(string) string { return aside }
	o.WasSetAside = func(to string, why error) { told = fmt.Sprint(to, " ", why) }
	s, err := bolt.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := storetest.Load(t.Context(), s)
	if err != nil || len(c.Clusters) > 0 {
		t.Errorf("the new file has %v, error %v", c, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(aside); err != nil || !strings.HasPrefix(told, aside+" ") {
		t.Errorf("set aside: %v; told %q", err, told)
	}
	if again, err := bolt.Open(t.Context(), o); err != nil {
		t.Errorf("opened again: %v", err)
	} else {
		again.Close()
	}
}

// TestOpenEndsWithItsContext cancels a start while a child checks the file, and
// before the file is read. Nothing is set aside by that.
func TestOpenEndsWithItsContext(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	killed(t, path)
	begun := filepath.Join(t.TempDir(), "begun")
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	o := bolt.Options{
		Path: path, CheckCommand: []string{"/bin/sh", "-c", `echo >"$0"; exec sleep 300`, begun},
		SetAside: func(string) string { t.Error("a file is set aside that nothing is known of"); return path + ".damaged" },
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("asked to stop")
	go func() {
		// The pipe's two ends wait for each other.
		_, _ = os.ReadFile(begun)
		cancel(stop)
	}()
	for _, when := range []string{"while a child checks", "before the file is read"} {
		if s, err := bolt.Open(ctx, o); !errors.Is(err, stop) || s != nil {
			t.Errorf("%s: opened %v, error %v", when, s != nil, err)
		}
	}
	if c := load(t, path); len(c.Clusters) != 1 {
		t.Errorf("the file has %d clusters afterwards", len(c.Clusters))
	}
}

// TestCleanCloseNeedsNoCheck: a clean close is believed for that state of the file
// only; damage met later, or a failed write, leaves no mark of one.
func TestCleanCloseNeedsNoCheck(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	o := bolt.Options{Path: path, CheckCommand: []string{"/no/such/program"}}
	s, err := bolt.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("after a clean close: %v", err)
	}
	if _, err := os.Stat(path + ".clean"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is there while the file is open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bbolt.Tx) error { return bucket(tx, "meta").Put([]byte("x"), garbage) })
	if _, err := bolt.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("after a change behind the mark: %v", err)
	}
	edit(t, path, func(tx *bbolt.Tx) error { return bucket(tx, "clusters", "a").DeleteBucket([]byte("nodes")) })
	s = open(t, path)
	if _, err := storetest.Load(t.Context(), s); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("load: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + ".clean"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a damaged file has the mark: %v", err)
	}
}

// TestCheck reports counts and what is damaged, the same in a child.
func TestCheck(t *testing.T) {
	path := newFile(t)
	populate(t, path, 3)
	edit(t, path, func(tx *bbolt.Tx) error {
		h := bucket(tx, "clusters", "a", "history")
		k, _ := h.Cursor().First()
		return errors.Join(bucket(tx, "clusters", "a", "nodes").Put([]byte("n-1"), garbage), h.Put(append([]byte(nil), k...), garbage))
	})
	r, err := bolt.Check(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	want := []bolt.BucketCount{
		{Bucket: "clusters/a/nodes", Records: 2, Damaged: 1}, {Bucket: "clusters/a/reprieves", Records: 2},
		{Bucket: "clusters/a/evictions", Records: 3}, {Bucket: "clusters/a/history", Records: 3, Damaged: 1}, {Bucket: "quarantine"},
	}
	if diff := cmp.Diff(want, r.Buckets); diff != "" {
		t.Errorf("buckets (-want +got):\n%s", diff)
	}
	if r.DamagedRecords != 2 || r.BeyondHelp() || !r.Damaged() || r.SchemaVersion != bolt.Newest() {
		t.Errorf("report %+v", r)
	}
	child, err := bolt.CheckInChild(t.Context(), selfCheck, path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, child); diff != "" {
		t.Errorf("a child's report (-in process +child):\n%s", diff)
	}
}

// TestCheckCannotLook: what is no finding is an error, through the child too.
func TestCheckCannotLook(t *testing.T) {
	path := newFile(t)
	s := open(t, path)
	if _, err := bolt.CheckInChild(t.Context(), selfCheck, path); !errors.Is(err, engine.ErrStoreLocked) {
		t.Errorf("in use: %v", err)
	}
	s.Close()
	edit(t, path, func(tx *bbolt.Tx) error { return bucket(tx, "meta").Put([]byte("schema_version"), []byte{0, 0, 0, 9}) })
	if _, err := bolt.CheckInChild(t.Context(), selfCheck, path); !errors.Is(err, engine.ErrSchemaVersion) {
		t.Errorf("of another version: %v", err)
	}
	edit(t, path, func(tx *bbolt.Tx) error { return bucket(tx, "meta").Put([]byte("schema_version"), []byte{0, 0, 0, 1}) })
	if _, err := bolt.Check(t.Context(), path+".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// contents is a file's state.
func contents(t *testing.T, path string) string {
	t.Helper()
	s := open(t, path)
	defer s.Close()
	text, err := state(t, s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestSnapshotAmongCommits takes a copy from an open store while it commits: it
// is one state, and commits do not wait for the copy's reader.
func TestSnapshotAmongCommits(t *testing.T) {
	path, to := newFile(t), newFile(t)
	populate(t, path, 3)
	want := contents(t, path)
	s := open(t, path)
	err := os.MkdirAll(filepath.Dir(to), 0o700)
	if err != nil {
		t.Fatal(err)
	}
	commits := 0
	err = bolt.WriteFile(to, func(w io.Writer) error {
		_, err := s.(*bolt.Store).WriteSnapshot(t.Context(), writerFunc(func(p []byte) (int, error) {
			commits++
			b := &engine.Batch{Revision: uint64(10 + commits), Changes: []engine.Change{{Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(storetest.Eviction("a", uint64(100+commits)))}}}
			if err := s.Commit(t.Context(), b); err != nil {
				return 0, err
			}
			return w.Write(p)
		}))
		return err
	})
	if err != nil || commits == 0 {
		t.Fatalf("%d commits, %v", commits, err)
	}
	if got := contents(t, to); got != want {
		t.Errorf("the copy has\n%s\nwant\n%s", got, want)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestBackupAndRestore copies a closed file and puts it back over a later state,
// which is kept.
func TestBackupAndRestore(t *testing.T) {
	path := newFile(t)
	populate(t, path, 3)
	backup := filepath.Join(t.TempDir(), "b.db")
	if n, err := bolt.Backup(t.Context(), path, backup); err != nil || n == 0 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if _, err := bolt.Backup(t.Context(), path, backup); err == nil {
		t.Error("a backup was overwritten")
	}
	want := contents(t, path)
	s := open(t, path)
	if err := s.Commit(t.Context(), &engine.Batch{Revision: 9, Changes: []engine.Change{{Kind: engine.ChangeForgetCluster, Cluster: "a"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := bolt.Backup(t.Context(), path, backup+"2"); !errors.Is(err, engine.ErrStoreLocked) {
		t.Errorf("backup of a file in use: %v", err)
	}
	keep := path + ".before"
	if err := bolt.Restore(t.Context(), backup, path, keep); !errors.Is(err, engine.ErrStoreLocked) {
		t.Errorf("restore over a file in use: %v", err)
	}
	s.Close()
	if err := bolt.Restore(t.Context(), backup, path, ""); err == nil {
		t.Error("restored over a file without being told to")
	}
	later := contents(t, path)
	if err := bolt.Restore(t.Context(), backup, path, keep); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, path); got != want {
		t.Error("the restored file differs from what was backed up")
	}
	if got := contents(t, keep); got != later {
		t.Error("the file that was there was not kept")
	}
}

// TestCompact shrinks a file and changes nothing that it says.
func TestCompact(t *testing.T) {
	path := newFile(t)
	populate(t, path, 2000)
	s := open(t, path)
	var closing []engine.Change
	for seq := uint64(1); seq <= 1900; seq++ {
		closing = append(closing, engine.Change{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(storetest.Closed("a", seq, epoch, true))})
	}
	if err := s.Commit(t.Context(), &engine.Batch{Revision: 9, Now: epoch, Changes: closing}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), "a", epoch, engine.HistoryQuotas{SentAge: 1, EarlyAge: 1}, 10_000); err != nil {
		t.Fatal(err)
	}
	if _, _, err := bolt.Compact(t.Context(), path); !errors.Is(err, engine.ErrStoreLocked) {
		t.Errorf("compaction of a file in use: %v", err)
	}
	s.Close()
	want := contents(t, path)
	before, after, err := bolt.Compact(t.Context(), path)
	if err != nil || after >= before {
		t.Fatalf("%d bytes became %d, %v", before, after, err)
	}
	if got := contents(t, path); digest(got) != digest(want) {
		t.Error("the compacted file says something else")
	}
	if left, _ := filepath.Glob(path + ".compact*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestOwnerStays: root may maintain a data file, and the service opens it afterwards.
func TestOwnerStays(t *testing.T) {
	path := newFile(t)
	populate(t, path, 3)
	backup := filepath.Join(t.TempDir(), "b.db")
	if _, err := bolt.Backup(t.Context(), path, backup); err != nil {
		t.Fatal(err)
	}
	want := uint32(os.Getuid())
	if want == 0 {
		// Only root can play this through.
		want = 4711
		for _, p := range []string{path, filepath.Dir(path)} {
			if err := os.Chown(p, int(want), int(want)); err != nil {
				t.Fatal(err)
			}
		}
	}
	owned := func(by string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != want {
			t.Errorf("after %s the file is owned by %+v, want %d", by, info.Sys(), want)
		}
	}
	if _, _, err := bolt.Compact(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	owned("a compaction")
	if err := bolt.Restore(t.Context(), backup, path, path+".before"); err != nil {
		t.Fatal(err)
	}
	owned("a restore over a file")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := bolt.Restore(t.Context(), backup, path, ""); err != nil {
		t.Fatal(err)
	}
	owned("a restore into the folder")
}

func digest(s string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, s)
	return h.Sum64()
}

// TestFirstStartCutShort: a power failure at the first start leaves nothing under
// the file's name, and what it leaves is in nobody's way.
func TestFirstStartCutShort(t *testing.T) {
	path := newFile(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	left := fmt.Sprintf("%s.new-%d", path, os.Getpid())
	if err := os.WriteFile(left, garbage, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, path).Close()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// TestHeaderCutShort: a meta page whose sector held neither the old nor the new
// when the power failed is no damage, in a child neither; the next commit mends it.
func TestHeaderCutShort(t *testing.T) {
	path := newFile(t)
	populate(t, path, 3)
	want := contents(t, path)
	// The older of the two is the one that a commit in flight writes.
	page := int64(0)
	edit(t, path, func(tx *bbolt.Tx) error {
		page = int64(tx.ID()+1) % 2
		return nil
	})
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(strings.Repeat("?", sector)), page*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	r, err := bolt.CheckInChild(t.Context(), selfCheck, path)
	if err != nil || r.Damaged() || r.Path != path {
		t.Errorf("report %+v, error %v", r, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "check-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	s, err := bolt.Open(t.Context(), bolt.Options{Path: path, CheckCommand: selfCheck})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := state(t, s)
	if err != nil || got != want {
		t.Fatalf("the file says something else, or nothing: %v", err)
	}
	if err := goesOn(t, s, got); err != nil {
		t.Error(err)
	}
}
