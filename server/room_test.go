package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// fullStore is a store whose disk is full once it has started.
type fullStore struct {
	engine.Store
	commits int
}

func (s *fullStore) Commit(ctx context.Context, b *engine.Batch) error {
	if s.commits++; s.commits == 1 {
		return s.Store.Commit(ctx, b)
	}
	return fmt.Errorf("commit: %w", syscall.ENOSPC)
}

// After a full disk the store is asked for with room, so that the service does not
// come and go with each small commit that fits.
func TestFullDiskIsOpenedWithRoom(t *testing.T) {
	data := mem.New()
	var opened atomic.Int32
	rooms := make(chan uint64, 10)
	f := newFixtureAt(t, Deps{Clock: clock.NewReal(), OpenStore: func(ctx context.Context, s StoreSettings) (engine.Store, error) {
		rooms <- s.Room
		st, err := data.Open(context.Background())
		if opened.Add(1) == 1 && err == nil {
			return &fullStore{Store: st}, nil
		}
		return st, err
	}}, nil)
	if room := <-rooms; room != 0 {
		t.Errorf("the first opening asks for %d bytes", room)
	}
	_, _ = f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{Cluster: "c", Policy: &reprievev1.ClusterPolicy{Mode: reprievev1.Mode_MODE_ENFORCE.Enum()}})
	if room := <-rooms; room != roomAfterFull {
		t.Errorf("the opening after the full disk asks for %d bytes, want %d", room, uint64(roomAfterFull))
	}
}
