package main

import (
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
)

const (
	// growthLeast is the size that the others are held against.
	growthLeast = 10_000
	// growthWork is the least number of items that a figure of the row growth is of:
	// the work at a small size is done over and over.
	growthWork = 200_000
)

// growth returns what a decision, an arming and a listed eviction take, in ns, at
// the row's size divided by something. Nodes are tainted and untainted in
// cycles, of which the first does not count: at every size it is what goes on in a
// service that runs, with the garbage that it makes.
func growth(by int) func(*run1) (figures, error) {
	return func(r *run1) (figures, error) {
		r.size = max(r.size/by, growthLeast)
		got := figures{}
		err := cycled(r, openMem(), func(o *ours, on, _ figures) error {
			got["decide"], got["decide cpu"] = 1e9/on["rate"], on["cpu"]
			if err := o.batch(r, nodeEvents(r.size/perNode, taint(waitKey))); err != nil {
				return err
			}
			listed, err := o.listAll(r)
			if err != nil {
				return err
			}
			got["list"], got["list cpu"] = 1e9/listed["rate"], listed["cpu"]
			return nil
		})
		if err != nil {
			return nil, err
		}
		return got, cycled(r, openDiscard, func(_ *ours, on, off figures) error {
			got["arm"], got["arm cpu"] = (1e9/on["rate"]+1e9/off["rate"])/2, (on["cpu"]+off["cpu"])/2
			return nil
		})
	}
}

// cycled taints and untaints all nodes of an engine and tells what each took a pod.
func cycled(r *run1, open engine.StoreOpener, then func(o *ours, on, off figures) error) error {
	o, err := start(r, open)
	if err != nil {
		return err
	}
	defer o.stop()
	nodes := r.size / perNode
	if err := o.list(r, nodes, perNode); err != nil {
		return err
	}
	var on, off stopwatch
	for i := range 1 + max(1, growthWork/r.size) {
		if i == 1 {
			on, off = stopwatch{}, stopwatch{}
		}
		for _, half := range []struct {
			w      *stopwatch
			events []engine.Event
			want   int
		}{{&on, nodeEvents(nodes, taint(waitKey)), r.size}, {&off, nodeEvents(nodes), 0}} {
			half.w.resume()
			if err := o.batch(r, half.events); err != nil {
				return err
			}
			half.w.pause(r.size)
			if err := o.expect(r, engine.StateWaiting, half.want); err != nil {
				return err
			}
		}
	}
	return then(o, on.figures(), off.figures())
}

// listAll reads the open evictions a page at a time, anew until enough were read
// that their garbage is part of it.
func (o *ours) listAll(r *run1) (figures, error) {
	w, read := startWatch(), 0
	for read < growthWork {
		q, n := engine.ListQuery{Cluster: clusterName, Limit: pageSize}, 0
		for {
			p, err := o.eng.List(r, q)
			if err != nil {
				return nil, err
			}
			n += len(p.Evictions)
			if q.Cursor = p.Cursor; q.Cursor == "" {
				break
			}
		}
		if n != r.size {
			return nil, fmt.Errorf("the pages have %d evictions, want %d", n, r.size)
		}
		read += n
	}
	return w.stop(read), nil
}
