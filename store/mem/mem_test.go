package mem_test

import (
	"context"
	"errors"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/mem"
	"github.com/reprieve-dev/reprieve/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) engine.StoreOpener { return mem.New().Open })
}

// TestTakeover plays a process that died without closing its store.
func TestTakeover(t *testing.T) {
	data := mem.New()
	first, err := data.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := data.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Commit(t.Context(), &engine.Batch{Revision: 1}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("commit through the older handle: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("close of the older handle: %v", err)
	}
	if err := second.Commit(t.Context(), &engine.Batch{Revision: 1}); err != nil {
		t.Errorf("commit through the newer handle: %v", err)
	}
}

func TestOpenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mem.New().Open(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("open with a cancelled context: %v", err)
	}
}
