package main

import (
	"fmt"

	"github.com/reprieve-dev/reprieve/engine"
)

// growthWork is the least number of items that a figure of the row growth is of:
// the work at a small size is done anew as often as it takes.
const growthWork = 100_000

// growthLeast is the size that the others are held against.
const growthLeast = 10_000

// growth measures the same work at the row's size divided by something.
func growth(by int) func(*run1) (figures, error) {
	return func(r *run1) (figures, error) {
		small := *r
		small.size = max(r.size/by, growthLeast)
		var all []figures
		for done := 0; done < growthWork; done += small.size {
			got, err := growOnce(&small)
			if err != nil {
				return nil, err
			}
			all = append(all, got)
		}
		sum := figures{}
		for _, got := range all {
			for name, v := range got {
				sum[name] += v / float64(len(all))
			}
		}
		return sum, nil
	}
}

// growOnce returns what a decision, an arming and a listed eviction take, in ns.
func growOnce(r *run1) (figures, error) {
	o, err := start(r, openMem())
	if err != nil {
		return nil, err
	}
	defer o.stop()
	nodes := r.size / perNode
	if err := o.list(r, nodes, perNode); err != nil {
		return nil, err
	}
	events := nodeEvents(nodes, taint(waitKey))
	w := startWatch()
	if err := o.batch(r, events); err != nil {
		return nil, err
	}
	decided := w.stop(r.size)
	if err := o.expect(r, engine.StateWaiting, r.size); err != nil {
		return nil, err
	}
	listed, err := o.listAll(r)
	if err != nil {
		return nil, err
	}
	armed, err := armOurs(r)
	if err != nil {
		return nil, err
	}
	return figures{
		"decide": 1e9 / decided["rate"], "arm": armed["cost"], "list": 1e9 / listed["rate"],
		"decide cpu": decided["cpu"], "arm cpu": armed["cpu"], "list cpu": listed["cpu"],
	}, nil
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
