package fault

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
)

// ErrInjected is in the error of every call that was made to fail.
var ErrInjected = errors.New("injected fault")

// New returns an opener of stores that fail as the plan says. The plan goes on
// over the stores that are opened one after the other.
func New(open engine.StoreOpener, plan Plan) engine.StoreOpener {
	return func(ctx context.Context) (engine.Store, error) {
		var opened engine.Store
		err := meet(ctx, plan, call{op: Open, do: func() (err error) {
			opened, err = open(ctx)
			return err
		}})
		if err != nil {
			if opened != nil {
				err = errors.Join(err, opened.Close())
			}
			return nil, err
		}
		return &handle{Store: opened, plan: plan}, nil
	}
}

// handle is an open store with failures in front. Size, Free and Close pass.
type handle struct {
	engine.Store
	plan Plan
	// broken is set by the first injected failure of Load, Commit or Prune; the
	// store behind knows of its own.
	broken atomic.Bool
}

// call is one call on its way to the store; part makes a share of it.
type call struct {
	op   Op
	do   func() error
	part func(share float64) error
}

// meet makes the call as the plan says.
func meet(ctx context.Context, plan Plan, c call) error {
	f := plan.Next(c.op)
	switch f.Effect {
	case Pass:
		return c.do()
	case Block:
		f.Gate.reachedOnce.Do(func() { close(f.Gate.reached) })
		select {
		case <-f.Gate.released:
			return c.do()
		case <-ctx.Done():
			return fmt.Errorf("%w: blocked: %w", ErrInjected, ctx.Err())
		}
	case After:
		return errors.Join(fmt.Errorf("%w: done, but reported as failed", ErrInjected), c.do())
	case NoSpace:
		return fmt.Errorf("%w: %w", ErrInjected, syscall.ENOSPC)
	case Torn:
		if c.part != nil {
			return errors.Join(fmt.Errorf("%w: done in part", ErrInjected), c.part(f.Part))
		}
	}
	return fmt.Errorf("%w: not done", ErrInjected)
}

// through makes a call that breaks the handle when it is made to fail.
func (h *handle) through(ctx context.Context, c call) error {
	if h.broken.Load() {
		return store.ErrBroken
	}
	err := meet(ctx, h.plan, c)
	if errors.Is(err, ErrInjected) {
		h.broken.Store(true)
	}
	return err
}

// Load implements [engine.Store].
func (h *handle) Load(ctx context.Context, v engine.Visitor) error {
	return h.through(ctx, call{op: Load, do: func() error { return h.Store.Load(ctx, v) }})
}

// Commit implements [engine.Store].
func (h *handle) Commit(ctx context.Context, b *engine.Batch) error {
	return h.through(ctx, call{
		op: Commit,
		do: func() error { return h.Store.Commit(ctx, b) },
		part: func(share float64) error {
			cut := *b
			cut.Changes = b.Changes[:int(share*float64(len(b.Changes)))]
			return h.Store.Commit(ctx, &cut)
		},
	})
}

// Prune implements [engine.Store].
func (h *handle) Prune(ctx context.Context, cluster string, now time.Time, q engine.HistoryQuotas, limit int) (n int, err error) {
	err = h.through(ctx, call{op: Prune, do: func() (err error) {
		n, err = h.Store.Prune(ctx, cluster, now, q, limit)
		return err
	}})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// History implements [engine.Store].
func (h *handle) History(ctx context.Context, q engine.HistoryQuery) (engine.HistoryPage, error) {
	if h.broken.Load() {
		return engine.HistoryPage{}, store.ErrBroken
	}
	return h.Store.History(ctx, q)
}

// HistoryEviction implements [engine.Store].
func (h *handle) HistoryEviction(ctx context.Context, cluster string, seq uint64) (*engine.EvictionRecord, error) {
	if h.broken.Load() {
		return nil, store.ErrBroken
	}
	return h.Store.HistoryEviction(ctx, cluster, seq)
}
