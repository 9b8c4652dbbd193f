package bolt_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.etcd.io/bbolt"
)

// The power failure test records what bbolt writes to the file under a real
// workload, in order, with its syncs and the acknowledgements. From that it builds
// what a disk may hold after the power failed at any instant: all that was
// written up to the last sync, and of the writes since then any part, sector by
// sector. Each image is opened by the store.
//
// What is recorded and what is known: the writes are seen, for the function that
// bbolt writes with is replaced. The syncs are not seen: bbolt calls the kernel
// for them. They are put where bbolt's code makes them, after the pages and
// after the meta page, and TestPowerSyncs proves both places: it makes a sync
// fail and sees the commit stop there. A file that grows is truncated and synced
// before its pages are written; the new size is seen at the next write.

var (
	powerImages = flag.Int("images", 60, "torn images that the power failure test builds; make power builds more")
	powerSeed   = flag.Uint64("power-seed", 1, "seed of the power failure test")
)

const sector = 512

// diskOp is one thing that happened to the file: a write, a sync or an acknowledgement.
type diskOp struct {
	// data is what was written at off; nil if it is no write.
	data []byte
	off  int64
	// size is the file's before the write; a growth is on disk by then.
	size int64
	// meta is a write of a meta page.
	meta bool
	// sync ends what may be lost; beforeMeta is the one between the pages and the meta page.
	sync, beforeMeta bool
	// acked is the commit acknowledged here, counted from 1; 0: none.
	acked int
}

// recording is a workload: the file at its start, what happened to it, and what
// was in it after each commit, the start's first.
type recording struct {
	start  []byte
	ops    []diskOp
	states []string
	syncs  int
	writes int
	// check is the command of a check in a child process, for images that may be damaged.
	check []string
}

// state is all that the store gives back, as text.
func state(t *testing.T, s engine.Store) (string, error) {
	c, err := storetest.Load(t.Context(), s)
	if err != nil {
		return "", err
	}
	if len(c.Aside) > 0 {
		return "", fmt.Errorf("set aside: %v", c.Aside)
	}
	all := []any{c.Meta, c.Clusters}
	for _, cluster := range c.Clusters {
		h, err := storetest.History(t.Context(), s, engine.HistoryQuery{Cluster: cluster.Record.Name, Limit: 100})
		if err != nil {
			return "", err
		}
		all = append(all, h)
	}
	text, err := json.Marshal(all)
	return string(text), err
}

// workload makes batches as the engine does: waits that open, change and close,
// nodes, reprieves, records of clusters, now and then a large record or a forgotten cluster.
type workload struct {
	r   *rand.Rand
	seq map[string]uint64
}

func (w *workload) batch(n int) *engine.Batch {
	b := &engine.Batch{Now: epoch.Add(time.Duration(n) * time.Second), Revision: uint64(n)}
	for range 1 + w.r.IntN(16) {
		b.Changes = append(b.Changes, w.change([]string{"a", "b", "c"}[w.r.IntN(3)]))
	}
	return b
}

func (w *workload) change(cluster string) engine.Change {
	name := fmt.Sprintf("n-%d", w.r.IntN(60))
	switch k := w.r.IntN(100); {
	case k < 45:
		w.seq[cluster]++
		e := storetest.Eviction(cluster, w.seq[cluster])
		if k == 0 {
			e.LastMessage = strings.Repeat("a long refusal ", 1000)
		}
		return engine.Change{Kind: engine.ChangePutEviction, Cluster: cluster, Eviction: storetest.VersionOf(e)}
	case k < 55:
		e := storetest.Eviction(cluster, 1+w.r.Uint64N(w.seq[cluster]+1))
		w.seq[cluster] = max(w.seq[cluster], e.Seq)
		e.Attempts = w.r.Uint32N(9)
		return engine.Change{Kind: engine.ChangePutEviction, Cluster: cluster, Eviction: storetest.VersionOf(e)}
	case k < 85:
		seq := 1 + w.r.Uint64N(w.seq[cluster]+1)
		w.seq[cluster] = max(w.seq[cluster], seq)
		e := storetest.Closed(cluster, seq, epoch.Add(time.Duration(seq)*time.Millisecond), w.r.IntN(2) == 0)
		return engine.Change{Kind: engine.ChangeCloseEviction, Cluster: cluster, Eviction: storetest.VersionOf(e), DropReprieve: true}
	case k < 92:
		return engine.Change{Kind: engine.ChangePutNode, Cluster: cluster, Node: storetest.Node(cluster, name)}
	case k < 95:
		return engine.Change{Kind: engine.ChangeDeleteNode, Cluster: cluster, Node: &engine.NodeRecord{Name: name}}
	case k < 97:
		return engine.Change{Kind: engine.ChangePutReprieve, Cluster: cluster, Reprieve: storetest.Reprieve(cluster, "uid-"+name)}
	case k < 99:
		return engine.Change{Kind: engine.ChangePutCluster, Cluster: cluster, Record: storetest.Cluster(cluster)}
	}
	if cluster != "c" {
		return engine.Change{Kind: engine.ChangePutCluster, Cluster: cluster, Record: storetest.Cluster(cluster)}
	}
	return engine.Change{Kind: engine.ChangeForgetCluster, Cluster: cluster}
}

// record runs a workload on a real file.
func record(t *testing.T, seed uint64, commits int) *recording {
	path := filepath.Join(t.TempDir(), "reprieve.db")
	s := open(t, path)
	// Small steps: the file grows often, and images of it are small.
	bolt.Handle(s).AllocSize = 64 << 10
	rec := &recording{}
	var err error
	if rec.start, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	bolt.HookWrites(s, func(db *bbolt.DB, write func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		meta := off < 2*int64(db.Info().PageSize)
		if meta {
			rec.ops = append(rec.ops, diskOp{sync: true, beforeMeta: true})
		}
		rec.ops = append(rec.ops, diskOp{data: bytes.Clone(b), off: off, size: info.Size(), meta: meta})
		rec.writes++
		if meta {
			rec.ops = append(rec.ops, diskOp{sync: true})
			rec.syncs += 2
		}
		return write(b, off)
	})
	note := func() {
		st, err := state(t, s)
		if err != nil {
			t.Fatal(err)
		}
		rec.states = append(rec.states, st)
	}
	note()
	w := &workload{r: rand.New(rand.NewPCG(seed, 1)), seq: map[string]uint64{}}
	for n := 1; n <= commits; n++ {
		if n%7 == 0 {
			// A prune is a transaction like any other.
			q := engine.HistoryQuotas{SentAge: time.Hour, EarlyAge: time.Hour, SentCount: 20, EarlyCount: 20}
			pruned, err := s.Prune(t.Context(), "a", epoch, q, 50)
			if err != nil {
				t.Fatal(err)
			}
			if pruned == 0 {
				continue
			}
		} else if err := s.Commit(t.Context(), w.batch(n)); err != nil {
			t.Fatal(err)
		}
		note()
		rec.ops = append(rec.ops, diskOp{acked: len(rec.states) - 1})
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return rec
}

// without leaves syncs out.
func (rec *recording) without(gone func(diskOp) bool) *recording {
	out := *rec
	out.check = selfCheck
	out.ops = slices.DeleteFunc(slices.Clone(rec.ops), func(o diskOp) bool { return o.sync && gone(o) })
	return &out
}

// disk is a file as a disk may have it.
type disk []byte

func (d *disk) grow(size int64) {
	if n := size - int64(len(*d)); n > 0 {
		*d = append(*d, make([]byte, n)...)
	}
}

func (d *disk) write(b []byte, off int64) {
	d.grow(off + int64(len(b)))
	copy((*d)[off:], b)
}

// failure is the power failing: the image, and which commits may be in it.
type failure struct {
	image disk
	// acked commits must be there; the next may be.
	acked int
	// lost counts writes that did not reach the disk, wholly or in part.
	lost int
	how  string
}

// Ways to lose writes that were not synced.
var losses = []string{"all lost", "none lost", "some lost", "torn", "one torn", "garbage"}

// fail builds an image of the power failing after the op before cut.
func (rec *recording) fail(r *rand.Rand, cut int) failure {
	f := failure{image: slices.Clone(rec.start), how: losses[r.IntN(len(losses))]}
	synced := 0
	for i, o := range rec.ops[:cut] {
		if o.sync {
			synced = i
		}
		f.acked = max(f.acked, o.acked)
	}
	var pending []diskOp
	for i, o := range rec.ops[:cut] {
		if o.data == nil {
			continue
		}
		f.image.grow(o.size)
		if i < synced {
			f.image.write(o.data, o.off)
		} else {
			pending = append(pending, o)
		}
	}
	one := 0
	if len(pending) > 0 {
		one = r.IntN(len(pending))
	}
	for i, o := range pending {
		switch {
		case f.how == "none lost", f.how == "one torn" && i != one, f.how == "some lost" && r.IntN(2) == 0:
			f.image.write(o.data, o.off)
		case f.how == "torn", f.how == "one torn", f.how == "garbage":
			f.lost++
			f.tear(r, o)
		default:
			f.lost++
		}
	}
	return f
}

// tear writes some sectors of a write. A sector that was being written when the
// power failed may hold neither the old nor the new.
func (f *failure) tear(r *rand.Rand, o diskOp) {
	for at := 0; at < len(o.data); at += sector {
		b := o.data[at:min(at+sector, len(o.data))]
		switch n := r.IntN(20); {
		case n < 10:
			f.image.write(b, o.off+int64(at))
		case n == 10 && f.how == "garbage":
			g := make([]byte, len(b))
			for i := range g {
				g[i] = byte(r.Uint32())
			}
			f.image.write(g, o.off+int64(at))
		}
	}
}

// judge opens an image with the store and says what is wrong with it.
func (rec *recording) judge(t *testing.T, path string, f failure) error {
	if err := os.WriteFile(path, f.image, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		os.Remove(path)
		os.Remove(path + ".clean")
	}()
	if rec.check == nil {
		// What a service does first with a file that was not closed cleanly.
		switch r, err := bolt.Check(t.Context(), path); {
		case err != nil:
			return fmt.Errorf("check: %w", err)
		case r.Damaged():
			return fmt.Errorf("check: %v", append(r.Pages, r.Records...))
		}
	}
	s, err := bolt.Open(t.Context(), bolt.Options{Path: path, CheckCommand: rec.check})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	got, err := state(t, s)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	switch at := slices.Index(rec.states, got); {
	case at < 0:
		return errors.New("what is there was there after no commit")
	case at < f.acked:
		return fmt.Errorf("acknowledged commit %d is lost: the file is as after %d", f.acked, at)
	case at > f.acked+1:
		return fmt.Errorf("commit %d is there, though only %d was acknowledged", at, f.acked)
	}
	return goesOn(t, s, got)
}

// goesOn commits to an image, which writes over what the power failure left of the
// commit in flight, and looks again.
func goesOn(t *testing.T, s engine.Store, before string) error {
	c, err := storetest.Load(t.Context(), s)
	if err != nil {
		return fmt.Errorf("load again: %w", err)
	}
	if err := s.Commit(t.Context(), &engine.Batch{Now: c.Meta.ClockFloor, Revision: c.Meta.Revision}); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if after, err := state(t, s); err != nil || after != before {
		return fmt.Errorf("an empty commit changed what is there, or broke it: %v", err)
	}
	return bolt.Handle(s).View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			return fmt.Errorf("bbolt: %w", err)
		}
		return nil
	})
}

// powerFigures are what a run found.
type powerFigures struct {
	images, torn int
	faults       []error
}

// scratch is a folder in memory where the system has one: what a disk may hold
// does not need a disk, and other programs' syncs would be waited for.
func scratch(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "reprieve-power-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// cut draws an instant: as often as not one at which a meta page was being written.
func (rec *recording) cut(r *rand.Rand) int {
	if r.IntN(2) == 0 {
		return 1 + r.IntN(len(rec.ops))
	}
	var metas []int
	for i, o := range rec.ops {
		if o.meta {
			metas = append(metas, i)
		}
	}
	return 1 + metas[r.IntN(len(metas))]
}

// run judges so many images, each another, or as many as it takes to find enough faults.
func (rec *recording) run(t *testing.T, seed uint64, images, enough int) powerFigures {
	r := rand.New(rand.NewPCG(seed, 2))
	dir := scratch(t)
	var p powerFigures
	seen := map[uint64]bool{}
	for p.images < images {
		f := rec.fail(r, rec.cut(r))
		sum := uint64(crc32.ChecksumIEEE(f.image))<<32 | uint64(f.acked)
		if seen[sum] {
			continue
		}
		seen[sum] = true
		p.images++
		if f.lost > 0 {
			p.torn++
		}
		if err := rec.judge(t, filepath.Join(dir, fmt.Sprintf("image-%d.db", p.images)), f); err != nil {
			p.faults = append(p.faults, fmt.Errorf("image %d (%s, %d writes lost, %d commits acknowledged): %w", p.images, f.how, f.lost, f.acked, err))
			if len(p.faults) == enough {
				break
			}
		}
	}
	return p
}

// TestPowerFailure: whatever of the writes that were not synced is lost or torn,
// everything acknowledged is there, the commit in flight is wholly there or
// wholly not, and bbolt finds no fault with the file.
func TestPowerFailure(t *testing.T) {
	rec := record(t, *powerSeed, 60)
	p := rec.run(t, *powerSeed, *powerImages, *powerImages)
	t.Logf("%d commits, %d writes, %d syncs; %d images, %d of them with writes lost or torn; %d with a fault",
		len(rec.states)-1, rec.writes, rec.syncs, p.images, p.torn, len(p.faults))
	for _, err := range p.faults {
		t.Error(err)
	}
	if p.torn < p.images/4 {
		t.Errorf("only %d images of %d lost anything", p.torn, p.images)
	}
}

// TestPowerFailureIsFound: with syncs left out the same test finds losses, so it
// would notice if bbolt or an option of ours left them out.
func TestPowerFailureIsFound(t *testing.T) {
	rec := record(t, *powerSeed, 60)
	for name, gone := range map[string]func(diskOp) bool{
		"all":                  func(diskOp) bool { return true },
		"before the meta page": func(o diskOp) bool { return o.beforeMeta },
		"after the meta page":  func(o diskOp) bool { return !o.beforeMeta },
	} {
		t.Run(name, func(t *testing.T) {
			images, enough := max(60, *powerImages/20), 1
			if *powerImages >= 1000 {
				enough = images // A long run says how many of all images have lost something.
			}
			p := rec.without(gone).run(t, *powerSeed, images, enough)
			t.Logf("%d images, %d with a fault", p.images, len(p.faults))
			if len(p.faults) == 0 {
				t.Error("no loss was found")
			}
		})
	}
}

// TestPowerSyncs proves the places of the syncs that the recording assumes: with
// a file that cannot be synced a commit stops after its pages and before its meta
// page; with one that cannot be synced from the meta page on it fails after that.
func TestPowerSyncs(t *testing.T) {
	for _, fromMeta := range []bool{false, true} {
		for _, noSync := range []bool{false, true} {
			t.Run(fmt.Sprintf("from meta %v, NoSync %v", fromMeta, noSync), func(t *testing.T) {
				testSync(t, fromMeta, noSync)
			})
		}
	}
}

func testSync(t *testing.T, fromMeta, noSync bool) {
	s := open(t, filepath.Join(t.TempDir(), "reprieve.db"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	bolt.Handle(s).NoSync = noSync
	pages, metas := 0, 0
	var file *os.File
	swap := func(db *bbolt.DB) {
		if file == nil {
			file = bolt.SwapFile(db, w)
		}
	}
	bolt.HookWrites(s, func(db *bbolt.DB, write func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
		meta := off < 2*int64(db.Info().PageSize)
		if meta {
			metas++
		} else {
			pages++
		}
		if !fromMeta || meta {
			swap(db)
		}
		return write(b, off)
	})
	err = s.Commit(t.Context(), &engine.Batch{Revision: 1, Changes: []engine.Change{{Kind: engine.ChangePutCluster, Cluster: "a", Record: storetest.Cluster("a")}}})
	bolt.SwapFile(bolt.Handle(s), file)
	wantMetas := 0
	if fromMeta || noSync {
		wantMetas = 1
	}
	if pages == 0 || metas != wantMetas {
		t.Errorf("%d pages and %d meta pages were written, want %d of these", pages, metas, wantMetas)
	}
	if noSync && err != nil || !noSync && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("commit: %v", err)
	}
}
