package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reprieve-dev/reprieve/engine"
)

// Factory gives an opener over fresh, empty data. The opener is called again
// after a Close and must find what was committed.
type Factory func(t *testing.T) engine.StoreOpener

// Run runs the suite, each case on data of its own.
func Run(t *testing.T, factory Factory) {
	for _, group := range [][]suiteCase{loadCases, commitCases, historyCases, pruneCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.run(newHarness(t, factory)) })
		}
	}
	t.Run("agrees with a model", func(t *testing.T) { checkModel(t, factory) })
}

type suiteCase struct {
	name string
	run  func(h *harness)
}

// epoch is when the cases play.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at is an instant some seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// harness is one case's store.
type harness struct {
	*testing.T
	ctx      context.Context
	open     engine.StoreOpener
	store    engine.Store
	revision uint64
}

func newHarness(t *testing.T, factory Factory) *harness {
	h := &harness{T: t, ctx: t.Context(), open: factory(t)}
	h.reopen()
	t.Cleanup(func() { _ = h.store.Close() })
	return h
}

// reopen plays a restart.
func (h *harness) reopen() {
	h.Helper()
	if h.store != nil {
		if err := h.store.Close(); err != nil {
			h.Fatalf("close: %v", err)
		}
	}
	s, err := h.open(h.ctx)
	if err != nil {
		h.Fatalf("open: %v", err)
	}
	h.store = s
}

// batch makes a batch of the next revision.
func (h *harness) batch(changes ...engine.Change) *engine.Batch {
	h.revision++
	return &engine.Batch{Now: at(int(h.revision)), Revision: h.revision, Changes: changes}
}

func (h *harness) commit(changes ...engine.Change) {
	h.Helper()
	if err := h.store.Commit(h.ctx, h.batch(changes...)); err != nil {
		h.Fatalf("commit: %v", err)
	}
}

// load reads what is open.
func (h *harness) load() *Contents {
	h.Helper()
	c, err := Load(h.ctx, h.store)
	if err != nil {
		h.Fatalf("load: %v", err)
	}
	for _, d := range c.Aside {
		h.Errorf("load reports damage: %s", d)
	}
	return c
}

// wantLoad compares what is open, now and after a restart.
func (h *harness) wantLoad(want ...ClusterContents) {
	h.Helper()
	for _, when := range []string{"before", "after"} {
		if diff := Diff(want, h.load().Clusters); diff != "" {
			h.Errorf("load %s a restart (-want +got):\n%s", when, diff)
		}
		h.reopen()
	}
}

// history reads all pages of a query.
func (h *harness) history(q engine.HistoryQuery) []*engine.EvictionRecord {
	h.Helper()
	all, err := History(h.ctx, h.store, q)
	if err != nil {
		h.Fatalf("history: %v", err)
	}
	return all
}

// wantHistory compares the sequences that a query finds, newest first.
func (h *harness) wantHistory(q engine.HistoryQuery, want ...uint64) {
	h.Helper()
	if q.Cluster == "" {
		q.Cluster = "a"
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	if diff := cmp.Diff(want, seqs(h.history(q)), cmpopts.EquateEmpty()); diff != "" {
		h.Errorf("history by %+v (-want +got):\n%s", q, diff)
	}
}

func seqs(rs []*engine.EvictionRecord) (out []uint64) {
	for _, r := range rs {
		out = append(out, r.Seq)
	}
	return out
}

// Contents is all that a load visits.
type Contents struct {
	Meta     engine.Meta
	Clusters []ClusterContents
	// Aside has where what was reported as damaged had been.
	Aside []string
}

// ClusterContents is what a load visits of one cluster, in the order of the visits.
type ClusterContents struct {
	engine.LoadedCluster
	Nodes     []*engine.NodeRecord
	Healths   []*engine.NodeHealthRecord
	Reprieves []*engine.ReprieveRecord
	Evictions []*engine.EvictionRecord
}

// Load reads everything and checks the order of the visits.
func Load(ctx context.Context, s engine.Store) (*Contents, error) {
	v := &visitor{}
	if err := s.Load(ctx, v); err != nil {
		return nil, err
	}
	if v.metas != 1 {
		return nil, fmt.Errorf("load visited Meta %d times", v.metas)
	}
	return &v.Contents, nil
}

// History reads all pages of a query.
func History(ctx context.Context, s engine.Store, q engine.HistoryQuery) ([]*engine.EvictionRecord, error) {
	var all []*engine.EvictionRecord
	for {
		page, err := s.History(ctx, q)
		if err != nil {
			return nil, err
		}
		if len(page.Evictions) > q.Limit {
			return nil, fmt.Errorf("page of %d with limit %d", len(page.Evictions), q.Limit)
		}
		all = append(all, page.Evictions...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all, nil
		}
	}
}

// Diff compares records; times are equal if they are the same instant, and an
// empty list is none.
func Diff(want, got any) string { return cmp.Diff(want, got, cmpopts.EquateEmpty()) }

var errOrder = errors.New("load visits out of order")

// visitor collects what a load visits.
type visitor struct {
	Contents
	// metas counts the visits to Meta, which must be one and the first.
	metas int
}

// Meta implements [engine.Visitor].
func (v *visitor) Meta(m engine.Meta) error {
	if len(v.Clusters) > 0 {
		return fmt.Errorf("%w: meta after a cluster", errOrder)
	}
	v.metas++
	v.Contents.Meta = m
	return nil
}

// Cluster implements [engine.Visitor].
func (v *visitor) Cluster(lc engine.LoadedCluster) error {
	if n := len(v.Clusters); v.metas == 0 || n > 0 && v.Clusters[n-1].Record.Name >= lc.Record.Name {
		return fmt.Errorf("%w: cluster %q", errOrder, lc.Record.Name)
	}
	v.Clusters = append(v.Clusters, ClusterContents{LoadedCluster: lc})
	return nil
}

// current is the cluster being visited, if it is of that name.
func (v *visitor) current(name string) (*ClusterContents, error) {
	if n := len(v.Clusters); n > 0 && v.Clusters[n-1].Record.Name == name {
		return &v.Clusters[n-1], nil
	}
	return nil, fmt.Errorf("%w: record of cluster %q outside of it", errOrder, name)
}

// Node implements [engine.Visitor].
func (v *visitor) Node(r *engine.NodeRecord) error {
	cur, err := v.current(r.Cluster)
	if err != nil {
		return err
	}
	if n := len(cur.Nodes); len(cur.Healths)+len(cur.Reprieves)+len(cur.Evictions) > 0 || n > 0 && cur.Nodes[n-1].Name >= r.Name {
		return fmt.Errorf("%w: node %q", errOrder, r.Name)
	}
	cur.Nodes = append(cur.Nodes, r)
	return nil
}

// Health implements [engine.Visitor].
func (v *visitor) Health(r *engine.NodeHealthRecord) error {
	cur, err := v.current(r.Cluster)
	if err != nil {
		return err
	}
	if n := len(cur.Healths); len(cur.Reprieves)+len(cur.Evictions) > 0 || n > 0 && cur.Healths[n-1].Name >= r.Name {
		return fmt.Errorf("%w: health of node %q", errOrder, r.Name)
	}
	cur.Healths = append(cur.Healths, r)
	return nil
}

// Reprieve implements [engine.Visitor].
func (v *visitor) Reprieve(r *engine.ReprieveRecord) error {
	cur, err := v.current(r.Cluster)
	if err != nil {
		return err
	}
	if n := len(cur.Reprieves); len(cur.Evictions) > 0 || n > 0 && cur.Reprieves[n-1].UID >= r.UID {
		return fmt.Errorf("%w: reprieve of %q", errOrder, r.UID)
	}
	cur.Reprieves = append(cur.Reprieves, r)
	return nil
}

// Eviction implements [engine.Visitor].
func (v *visitor) Eviction(r *engine.EvictionRecord) error {
	cur, err := v.current(r.Cluster)
	if err != nil {
		return err
	}
	if n := len(cur.Evictions); n > 0 && cur.Evictions[n-1].Seq >= r.Seq {
		return fmt.Errorf("%w: eviction %d", errOrder, r.Seq)
	}
	cur.Evictions = append(cur.Evictions, r)
	return nil
}

// Damaged implements [engine.Visitor].
func (v *visitor) Damaged(where string, _ error) {
	v.Aside = append(v.Aside, where)
}
