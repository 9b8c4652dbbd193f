package main

import (
	"context"

	"github.com/reprieve-dev/reprieve/engine"
)

// stormPods is how many pods each node of the row storm has.
const stormPods = 100

func stormMem(r *run1) (figures, error) { return storm(r, openMem()) }

func stormBolt(r *run1) (figures, error) { return onBolt(r, storm) }

// storm taints all nodes at once, and untaints them when every pod waits. It has
// settled when no pod waits, and that is acknowledged.
func storm(r *run1, open engine.StoreOpener) (figures, error) {
	o, err := start(r, open)
	if err != nil {
		return nil, err
	}
	defer o.stop()
	nodes := r.size / stormPods
	if err := o.list(r, nodes, stormPods); err != nil {
		return nil, err
	}
	on, off := nodeEvents(nodes, taint(waitKey)), nodeEvents(nodes)
	return settle(r, func(ctx context.Context) error {
		if err := o.batch(ctx, on); err != nil {
			return err
		}
		return o.expect(ctx, engine.StateWaiting, r.size)
	}, func(ctx context.Context) error {
		if err := o.batch(ctx, off); err != nil {
			return err
		}
		return o.expect(ctx, engine.StateWaiting, 0)
	})
}

func stormOriginal(r *run1) (figures, error) {
	o, err := startOriginal(r, r.size/stormPods, stormPods, nil)
	if err != nil {
		return nil, err
	}
	return settle(r, func(ctx context.Context) error {
		if err := o.taint(ctx, coreTaint(waitKey)); err != nil {
			return err
		}
		return o.until(ctx, r.size)
	}, func(ctx context.Context) error {
		if err := o.taint(ctx); err != nil {
			return err
		}
		return o.until(ctx, 0)
	})
}

// settle measures both halves of a storm: their time together and by how much
// the process grows at most.
func settle(r *run1, arm, cancel func(context.Context) error) (figures, error) {
	before, err := resetPeak()
	if err != nil {
		return nil, err
	}
	w := startWatch()
	if err := arm(r); err != nil {
		return nil, err
	}
	if err := cancel(r); err != nil {
		return nil, err
	}
	got := w.stop(2 * r.size)
	peak, err := memoryOf("VmHWM")
	got["peak"], got["growth"] = peak/(1<<20), (peak-before)/(1<<20)
	got["seconds"] = 2 * float64(r.size) / got["rate"]
	return got, err
}
