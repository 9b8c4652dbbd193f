package fault_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStore runs the suite through a wrapper that never fails.
func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) engine.StoreOpener { return fault.New(mem.New().Open, fault.NewScript()) })
}

func open(t *testing.T, o engine.StoreOpener) engine.Store {
	t.Helper()
	s, err := o(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// batch puts n evictions.
func batch(revision uint64, n int) *engine.Batch {
	b := &engine.Batch{Revision: revision}
	for i := range n {
		r := storetest.Eviction("a", uint64(i+1))
		b.Changes = append(b.Changes, engine.Change{Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(r)})
	}
	return b
}

// stored is how many evictions are in the data, and its revision.
func stored(t *testing.T, data *mem.Data) (int, uint64) {
	t.Helper()
	c, err := storetest.Load(t.Context(), open(t, data.Open))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, cl := range c.Clusters {
		n += len(cl.Evictions)
	}
	return n, c.Meta.Revision
}

func TestCommitEffects(t *testing.T) {
	for _, c := range []struct {
		fault    fault.Fault
		is       error
		want     int
		revision uint64
	}{
		{fault.Fault{Effect: fault.Before}, fault.ErrInjected, 0, 0},
		{fault.Fault{Effect: fault.After}, fault.ErrInjected, 4, 1},
		{fault.Fault{Effect: fault.Torn, Part: 0.5}, fault.ErrInjected, 2, 1},
		{fault.Fault{Effect: fault.Torn}, fault.ErrInjected, 0, 1},
		{fault.Fault{Effect: fault.NoSpace}, syscall.ENOSPC, 0, 0},
	} {
		t.Run(fmt.Sprint(c.fault.Effect), func(t *testing.T) {
			data := mem.New()
			s := open(t, fault.New(data.Open, fault.NewScript(fault.Step{Op: fault.Commit, Fault: c.fault})))
			if err := s.Commit(t.Context(), batch(1, 4)); !errors.Is(err, c.is) || !errors.Is(err, fault.ErrInjected) {
				t.Errorf("commit: %v", err)
			}
			wantBroken(t, s)
			if n, rev := stored(t, data); n != c.want || rev != c.revision {
				t.Errorf("stored %d evictions at revision %d, want %d at %d", n, rev, c.want, c.revision)
			}
		})
	}
}

// wantBroken checks that the handle refuses every call but Size and Close.
func wantBroken(t *testing.T, s engine.Store) {
	t.Helper()
	ctx := t.Context()
	_, historyErr := s.History(ctx, engine.HistoryQuery{Cluster: "a", Limit: 1})
	_, oneErr := s.HistoryEviction(ctx, "a", 1)
	_, pruneErr := s.Prune(ctx, "a", time.Time{}, engine.HistoryQuotas{}, 1)
	_, loadErr := storetest.Load(ctx, s)
	for call, err := range map[string]error{
		"commit": s.Commit(ctx, batch(2, 1)), "load": loadErr, "history": historyErr, "history of one": oneErr, "prune": pruneErr,
	} {
		if !errors.Is(err, store.ErrBroken) {
			t.Errorf("%s after a failure: %v", call, err)
		}
	}
	if s.Size() != 0 {
		t.Errorf("size is %d", s.Size())
	}
}

func TestPruneAndLoadFail(t *testing.T) {
	data := mem.New()
	o := fault.New(data.Open, fault.NewScript(
		fault.Step{Op: fault.Prune, Fault: fault.Fault{Effect: fault.After}},
		fault.Step{Op: fault.Load, Fault: fault.Fault{Effect: fault.Torn}},
	))
	s := open(t, o)
	closed := storetest.Closed("a", 1, time.Unix(10, 0), false)
	if err := s.Commit(t.Context(), &engine.Batch{Revision: 1, Changes: []engine.Change{{Kind: engine.ChangeCloseEviction, Cluster: "a", Eviction: storetest.VersionOf(closed)}}}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Prune(t.Context(), "a", time.Unix(20, 0), engine.HistoryQuotas{}, 9); n != 0 || !errors.Is(err, fault.ErrInjected) {
		t.Errorf("pruned %d, error %v", n, err)
	}
	wantBroken(t, s)
	s = open(t, o)
	if _, err := storetest.Load(t.Context(), s); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("load: %v", err)
	}
	wantBroken(t, s)
	s = open(t, o)
	if _, err := storetest.Load(t.Context(), s); err != nil {
		t.Errorf("load after the script: %v", err)
	}
	if page, err := s.History(t.Context(), engine.HistoryQuery{Cluster: "a", Limit: 1}); err != nil || len(page.Evictions) != 0 {
		t.Errorf("history after a prune that was reported as failed: %v, error %v", page, err)
	}
}

func TestScriptSkipsAndRepeats(t *testing.T) {
	data := mem.New()
	script := fault.NewScript(fault.Step{Op: fault.Commit, Skip: 2, Fault: fault.Fault{Effect: fault.Before}})
	script.Add(
		fault.Step{Op: fault.Open, Times: 2, Fault: fault.Fault{Effect: fault.Before}},
		fault.Step{Op: fault.Open, Fault: fault.Fault{Effect: fault.After}},
	)
	for i := range 3 {
		if _, err := fault.New(data.Open, script)(t.Context()); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("open %d: %v", i, err)
		}
	}
	s := open(t, fault.New(data.Open, script))
	for i := range uint64(2) {
		if err := s.Commit(t.Context(), batch(i+1, 1)); err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	if script.Left() != 1 {
		t.Errorf("%d steps left, want 1", script.Left())
	}
	if err := s.Commit(t.Context(), batch(3, 1)); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("third commit: %v", err)
	}
	if script.Left() != 0 {
		t.Errorf("%d steps left, want none", script.Left())
	}
	if n, rev := stored(t, data); n != 1 || rev != 2 {
		t.Errorf("stored %d evictions at revision %d", n, rev)
	}
}

func TestBlock(t *testing.T) {
	data, gate := mem.New(), fault.NewGate()
	s := open(t, fault.New(data.Open, fault.NewScript(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: gate}})))
	done := make(chan error, 1)
	go func() { done <- s.Commit(t.Context(), batch(1, 1)) }()
	<-gate.Reached()
	select {
	case err := <-done:
		t.Fatalf("commit went through a closed gate: %v", err)
	default:
	}
	gate.Release()
	gate.Release()
	if err := <-done; err != nil {
		t.Errorf("commit after the gate opened: %v", err)
	}
	if n, _ := stored(t, data); n != 1 {
		t.Errorf("stored %d evictions, want 1", n)
	}
}

func TestBlockEndsWithItsContext(t *testing.T) {
	data, gate := mem.New(), fault.NewGate()
	s := open(t, fault.New(data.Open, fault.NewScript(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: gate}})))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Commit(ctx, batch(1, 1)) }()
	<-gate.Reached()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	wantBroken(t, s)
	if n, _ := stored(t, data); n != 0 {
		t.Errorf("stored %d evictions, want none", n)
	}
}

// TestSeeded checks that a seed gives one row of faults, in about the odds that were asked for.
func TestSeeded(t *testing.T) {
	odds := map[fault.Op]fault.Odds{fault.Commit: {Before: 0.1, After: 0.2, Torn: 0.3, NoSpace: 0.05}}
	const calls = 10_000
	a, b := fault.NewSeeded(7, odds), fault.NewSeeded(7, odds)
	counts := map[fault.Effect]int{}
	for i := range calls {
		x, y := a.Next(fault.Commit), b.Next(fault.Commit)
		if x != y {
			t.Fatalf("call %d: %v and %v with one seed", i, x, y)
		}
		if x.Part < 0 || x.Part >= 1 || x.Part != 0 && x.Effect != fault.Torn {
			t.Fatalf("call %d: part %v of effect %v", i, x.Part, x.Effect)
		}
		counts[x.Effect]++
		if f := a.Next(fault.Load); f != (fault.Fault{}) {
			t.Fatalf("a call without odds fails: %v", f)
		}
	}
	for effect, want := range map[fault.Effect]int{fault.Pass: 3500, fault.Before: 1000, fault.After: 2000, fault.Torn: 3000, fault.NoSpace: 500} {
		if got := counts[effect]; got < want-300 || got > want+300 {
			t.Errorf("effect %d came %d times, want about %d", effect, got, want)
		}
	}
	other := fault.NewSeeded(8, odds)
	same := 0
	for range 100 {
		if other.Next(fault.Commit) == b.Next(fault.Commit) {
			same++
		}
	}
	if same == 100 {
		t.Error("another seed gives the same faults")
	}
}
