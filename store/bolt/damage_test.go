package bolt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.etcd.io/bbolt"
)

var garbage = []byte("garbage")

// bucket goes down a path of buckets.
func bucket(tx *bbolt.Tx, path ...string) *bbolt.Bucket {
	b := tx.Bucket([]byte(path[0]))
	for _, name := range path[1:] {
		b = b.Bucket([]byte(name))
	}
	return b
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// quarantine reads what was set aside, by bucket path and key.
func quarantine(t *testing.T, path string) map[string]string {
	out := map[string]string{}
	edit(t, path, func(tx *bbolt.Tx) error {
		q := tx.Bucket([]byte("quarantine"))
		return q.ForEachBucket(func(name []byte) error {
			return q.Bucket(name).ForEach(func(k, v []byte) error {
				out[fmt.Sprintf("%s %q", name, k)] = string(v)
				return nil
			})
		})
	})
	return out
}

func load(t *testing.T, path string) *storetest.Contents {
	t.Helper()
	s := open(t, path)
	defer s.Close()
	c, err := storetest.Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantAside(t *testing.T, c *storetest.Contents, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, c.Aside, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("reported as damaged (-want +got):\n%s", diff)
	}
}

// TestDamagedRecords puts garbage into records of each kind: they are set
// aside once, and the rest is served.
func TestDamagedRecords(t *testing.T) {
	path := newFile(t)
	populate(t, path, 3)
	edit(t, path, func(tx *bbolt.Tx) error {
		evictions := bucket(tx, "clusters", "a", "evictions")
		return errors.Join(
			bucket(tx, "clusters", "a", "nodes").Put([]byte("n-1"), garbage),
			bucket(tx, "clusters", "a", "reprieves").Put([]byte("u-2"), garbage),
			// Good bytes in a place of another kind.
			bucket(tx, "clusters", "a", "nodes").Put([]byte("n-3"), evictions.Get(seqKey(1))),
			evictions.Put(seqKey(3), evictions.Get(seqKey(3))[1:]),
			evictions.Put([]byte("short"), garbage),
		)
	})
	c := load(t, path)
	wantAside(t, c, "clusters/a/nodes/n-1", "clusters/a/nodes/n-3", "clusters/a/reprieves/u-2", "clusters/a/evictions/3", "clusters/a/evictions/73686f7274")
	rest := []storetest.ClusterContents{{
		LoadedCluster: engine.LoadedCluster{Record: *storetest.Cluster("a"), LastSeq: 6},
		Nodes:         []*engine.NodeRecord{storetest.Node("a", "n-2")},
		Reprieves:     []*engine.ReprieveRecord{storetest.Reprieve("a", "u-1")},
		Evictions:     []*engine.EvictionRecord{storetest.Eviction("a", 1), storetest.Eviction("a", 5)},
	}}
	if diff := storetest.Diff(rest, c.Clusters); diff != "" {
		t.Errorf("the rest (-want +got):\n%s", diff)
	}
	q := quarantine(t, path)
	want := []string{
		`clusters/a/evictions "\x00\x00\x00\x00\x00\x00\x00\x03"`, `clusters/a/evictions "short"`,
		`clusters/a/nodes "n-1"`, `clusters/a/nodes "n-3"`, `clusters/a/reprieves "u-2"`,
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(q))); diff != "" {
		t.Errorf("in quarantine (-want +got):\n%s", diff)
	}
	if got := q[`clusters/a/nodes "n-1"`]; got != string(garbage) {
		t.Errorf("the bytes in quarantine are %q", got)
	}
	c = load(t, path)
	wantAside(t, c)
	if diff := storetest.Diff(rest, c.Clusters); diff != "" {
		t.Errorf("the rest, loaded again (-want +got):\n%s", diff)
	}
}

// TestDamagedCluster: a cluster whose own record cannot be read stays damaged
// until a good one is written, and is never taken for a new one.
func TestDamagedCluster(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	edit(t, path, func(tx *bbolt.Tx) error {
		return bucket(tx, "clusters", "a").Put([]byte("cluster"), garbage)
	})
	for range 2 {
		c := load(t, path)
		wantAside(t, c, "clusters/a/cluster")
		want := engine.LoadedCluster{Record: engine.ClusterRecord{Name: "a"}, LastSeq: 2, Damaged: true}
		if diff := storetest.Diff(want, c.Clusters[0].LoadedCluster); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if len(c.Clusters[0].Evictions) != 1 || len(c.Clusters[0].Nodes) != 2 {
			t.Errorf("its records: %+v", c.Clusters[0])
		}
		if diff := cmp.Diff(map[string]string{`clusters/a "cluster"`: "garbage"}, quarantine(t, path)); diff != "" {
			t.Errorf("in quarantine (-want +got):\n%s", diff)
		}
	}
	s := open(t, path)
	if err := s.Commit(t.Context(), &engine.Batch{Revision: 2, Changes: []engine.Change{{Kind: engine.ChangePutCluster, Cluster: "a", Record: storetest.Cluster("a")}}}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	c := load(t, path)
	wantAside(t, c)
	if c.Clusters[0].Damaged {
		t.Error("the cluster is damaged after a good record was written")
	}
	if len(quarantine(t, path)) != 1 {
		t.Error("what was set aside is gone")
	}
}

// TestForgetEmptiesQuarantine: what was set aside goes with its cluster, and only that.
func TestForgetEmptiesQuarantine(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	edit(t, path, func(tx *bbolt.Tx) error {
		q := tx.Bucket([]byte("quarantine"))
		for _, name := range []string{"clusters/a", "clusters/a/nodes", "clusters/a-b/nodes", "meta"} {
			b, err := q.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			if err := b.Put([]byte("k"), garbage); err != nil {
				return err
			}
		}
		return nil
	})
	s := open(t, path)
	if err := s.Commit(t.Context(), &engine.Batch{Revision: 2, Changes: []engine.Change{{Kind: engine.ChangeForgetCluster, Cluster: "a"}}}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if diff := cmp.Diff(map[string]string{`clusters/a-b/nodes "k"`: "garbage", `meta "k"`: "garbage"}, quarantine(t, path)); diff != "" {
		t.Errorf("in quarantine (-want +got):\n%s", diff)
	}
}

// TestDamagedMeta: a number that cannot be trusted is none. A clock floor of
// garbage could hasten every eviction.
func TestDamagedMeta(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	edit(t, path, func(tx *bbolt.Tx) error {
		floor := bytes.Clone(bucket(tx, "meta").Get([]byte("clock_floor")))
		floor[len(floor)-8] ^= 0x40
		return errors.Join(bucket(tx, "meta").Put([]byte("clock_floor"), floor), bucket(tx, "meta").Put([]byte("revision"), garbage))
	})
	c := load(t, path)
	wantAside(t, c, "meta/revision", "meta/clock_floor")
	if diff := storetest.Diff(engine.Meta{}, c.Meta); diff != "" {
		t.Errorf("meta (-want +got):\n%s", diff)
	}
	if len(c.Clusters) != 1 {
		t.Errorf("%d clusters, want 1", len(c.Clusters))
	}
	wantAside(t, load(t, path))
}

// TestDamagedHistory: closed evictions that cannot be read are left out and
// reported; pruning, which looks at keys alone, removes them in time.
func TestDamagedHistory(t *testing.T) {
	path := newFile(t)
	populate(t, path, 4)
	edit(t, path, func(tx *bbolt.Tx) error {
		b := bucket(tx, "clusters", "a", "history")
		var keys [][]byte
		err := b.ForEach(func(k, _ []byte) error {
			keys = append(keys, bytes.Clone(k))
			return nil
		})
		if err != nil {
			return err
		}
		// Sequences 2, 6 are sent, 4, 8 early. Keys that are no history's sort before, between and after.
		return errors.Join(
			b.Put(keys[1], garbage), b.Put([]byte{0}, garbage), b.Put([]byte{0, 0xff}, garbage), b.Put([]byte{1, 0xff}, garbage), b.Put([]byte{7}, garbage),
		)
	})
	var reported []string
	s, err := bolt.Open(t.Context(), bolt.Options{Path: path, Damaged: func(where string, err error) {
		reported = append(reported, where)
		if !errors.Is(err, store.ErrDamaged) {
			t.Errorf("reported %v", err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all, err := storetest.History(t.Context(), s, engine.HistoryQuery{Cluster: "a", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if diff := storetest.Diff([]*engine.EvictionRecord{closed(8), closed(4), closed(2)}, all); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"clusters/a/history/2026-05-01T00:00:06Z/6"}, reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if _, err := s.HistoryEviction(t.Context(), "a", 6); !errors.Is(err, store.ErrDamaged) || errors.Is(err, engine.ErrNotFound) {
		t.Errorf("the damaged one by its sequence: %v", err)
	}
	if r, err := s.HistoryEviction(t.Context(), "a", 2); err != nil || r.Seq != 2 {
		t.Errorf("one behind it: %v, error %v", r, err)
	}
	q := engine.HistoryQuotas{SentAge: time.Hour, EarlyAge: time.Hour, SentCount: 0, EarlyCount: 1}
	if n, err := s.Prune(t.Context(), "a", epoch, q, 100); n != 3 || err != nil {
		t.Errorf("pruned %d, error %v", n, err)
	}
	if all, err = storetest.History(t.Context(), s, engine.HistoryQuery{Cluster: "a", Limit: 9}); err != nil || len(all) != 1 || all[0].Seq != 8 {
		t.Errorf("history after that: %v, error %v", all, err)
	}
}

// TestDamageInHistoryNeedsNoListener: Options.Damaged may be left out.
func TestDamageInHistoryNeedsNoListener(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	edit(t, path, func(tx *bbolt.Tx) error {
		b := bucket(tx, "clusters", "a", "history")
		k, _ := b.Cursor().First()
		return b.Put(bytes.Clone(k), garbage)
	})
	all, err := storetest.History(t.Context(), open(t, path), engine.HistoryQuery{Cluster: "a", Limit: 9})
	if err != nil || len(all) != 0 {
		t.Errorf("history: %v, error %v", all, err)
	}
}

// TestMissingBucket: a cluster without one of its buckets cannot be read at all, and says so.
func TestMissingBucket(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	edit(t, path, func(tx *bbolt.Tx) error { return bucket(tx, "clusters", "a").DeleteBucket([]byte("nodes")) })
	s := open(t, path)
	_, loadErr := storetest.Load(t.Context(), s)
	_, historyErr := s.History(t.Context(), engine.HistoryQuery{Cluster: "a", Limit: 1})
	_, oneErr := s.HistoryEviction(t.Context(), "a", 1)
	for call, err := range map[string]error{"load": loadErr, "history": historyErr, "history of one": oneErr} {
		if !errors.Is(err, store.ErrDamaged) {
			t.Errorf("%s: %v", call, err)
		}
	}
	if _, err := s.Prune(t.Context(), "a", epoch, engine.HistoryQuotas{}, 1); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("prune: %v", err)
	}
	s.Close()
	s = open(t, path)
	b := &engine.Batch{Changes: []engine.Change{{Kind: engine.ChangePutNode, Cluster: "a", Node: storetest.Node("a", "n")}}}
	if err := s.Commit(t.Context(), b); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("commit: %v", err)
	}
	s.Close()
	s = open(t, path)
	b.Changes[0] = engine.Change{Kind: engine.ChangeForgetCluster, Cluster: "a"}
	if err := s.Commit(t.Context(), b); err != nil {
		t.Errorf("forgetting the cluster, which repairs the file: %v", err)
	}
}

// zeroPage overwrites a page of a closed data file.
func zeroPage(t *testing.T, path string, page int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, os.Getpagesize()), page*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
}

// evictionsPage is the root page of the open evictions of cluster a.
func evictionsPage(t *testing.T, path string) (page int64) {
	edit(t, path, func(tx *bbolt.Tx) error {
		page = int64(bucket(tx, "clusters", "a", "evictions").Root())
		return nil
	})
	if page == 0 {
		t.Fatal("the open evictions fit into their parent's page; make more")
	}
	return page
}

// TestBadPageAtOpen: bbolt panics over a page that makes no sense; we say so,
// and let go of the file.
func TestBadPageAtOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reprieve.db")
	populate(t, path, 300)
	zeroPage(t, path, freelistPage(t, path))
	wantRefused(t, path, store.ErrDamaged, "pages that make no sense", "restore a backup")
}

// freelistPage is the page with the list of free pages.
func freelistPage(t *testing.T, path string) (page int64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: bolt.DefaultLockTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		for i := 2; ; i++ {
			info, err := tx.Page(i)
			if err != nil || info == nil {
				return fmt.Errorf("no list of free pages: %w", err)
			}
			if info.Type == "freelist" {
				page = int64(i)
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// TestBadPageLater: the same for a page that is met only after the open.
func TestBadPageLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reprieve.db")
	populate(t, path, 300)
	zeroPage(t, path, evictionsPage(t, path))
	s := open(t, path)
	if _, err := storetest.Load(t.Context(), s); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("load: %v", err)
	}
	b := &engine.Batch{Changes: []engine.Change{{Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(storetest.Eviction("a", 1))}}}
	if err := s.Commit(t.Context(), b); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("commit: %v", err)
	}
	if err := s.Commit(t.Context(), b); !errors.Is(err, store.ErrBroken) {
		t.Errorf("commit after that: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// panicky panics at its first eviction.
type panicky struct{ engine.Visitor }

func (panicky) Meta(engine.Meta) error             { return nil }
func (panicky) Cluster(engine.LoadedCluster) error { return nil }
func (panicky) Node(*engine.NodeRecord) error      { return nil }
func (panicky) Reprieve(*engine.ReprieveRecord) error {
	return nil
}
func (panicky) Eviction(*engine.EvictionRecord) error { panic("visitor's own") }

// TestVisitorsPanic is the visitor's: it must not be taken for damage.
func TestVisitorsPanic(t *testing.T) {
	path := newFile(t)
	populate(t, path, 1)
	s := open(t, path)
	func() {
		defer func() {
			if p := recover(); p != "visitor's own" {
				t.Errorf("recovered %v", p)
			}
		}()
		s.Load(t.Context(), panicky{})
	}()
	if _, err := storetest.Load(t.Context(), s); err != nil {
		t.Errorf("load after that: %v", err)
	}
}
