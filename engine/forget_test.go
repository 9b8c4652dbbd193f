package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// nowhere is a store that keeps nothing but the names of clusters.
type nowhere struct {
	Store
	names map[string]bool // read when the engine has stopped
}

func (nowhere) Load(context.Context, Visitor) error { return nil }
func (nowhere) Close() error                        { return nil }

func (s nowhere) Commit(_ context.Context, b *Batch) error {
	for _, c := range b.Changes {
		switch c.Kind {
		case ChangePutCluster:
			s.names[c.Cluster] = true
		case ChangeForgetCluster:
			delete(s.names, c.Cluster)
		}
	}
	return nil
}

// TestForgottenUnderACall forgets a cluster after a call has found it and before
// it has its lock: the call does not hang, and does not bring it back.
func TestForgottenUnderACall(t *testing.T) {
	store := nowhere{names: map[string]bool{}}
	g := New(Options{Clock: clock.NewVirtual(time.Unix(0, 0)), Open: func(context.Context) (Store, error) { return store, nil }, PruneEvery: -1})
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := g.Pause(ctx, "c", Pause{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	c, err := g.current()
	if err != nil {
		t.Fatal(err)
	}
	found := c.cluster("c")
	if err := g.ForgetCluster(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.status(ctx, found); !errors.Is(err, ErrClusterUnknown) {
		t.Errorf("status of a forgotten cluster: %v", err)
	}
	c.mu.Lock()
	c.clusters["c"] = found // As the call has it.
	c.mu.Unlock()
	if _, err := g.Pause(ctx, "c", Pause{Reason: "test"}); !errors.Is(err, ErrClusterUnknown) {
		t.Errorf("pause of a forgotten cluster: %v", err)
	}
	if list, err := g.Clusters(ctx, nil); err != nil || len(list) != 0 {
		t.Errorf("clusters: %v, %v", list, err)
	}
	g.Stop(context.Background())
	if len(store.names) != 0 {
		t.Errorf("on disk after the cluster was forgotten: %v", store.names)
	}
}
