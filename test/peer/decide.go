package main

import "github.com/reprieve-dev/reprieve/engine"

// perNode is how many pods a node has, where a row does not say otherwise.
const perNode = 500

func decideMem(r *run1) (figures, error) { return decide(r, openMem()) }

// decide taints all nodes at once and waits until every wait is armed and acknowledged.
func decide(r *run1, open engine.StoreOpener) (figures, error) {
	o, err := start(r, open)
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
	got := w.stop(r.size)
	return got, o.expect(r, engine.StateWaiting, r.size)
}

func decideOriginal(r *run1) (figures, error) {
	nodes := r.size / perNode
	o, err := startOriginal(r, nodes, perNode, nil)
	if err != nil {
		return nil, err
	}
	w := startWatch()
	if err := o.taint(r, coreTaint(waitKey)); err != nil {
		return nil, err
	}
	if err := o.until(r, r.size); err != nil {
		return nil, err
	}
	return w.stop(r.size), nil
}
