package replay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
)

const (
	// renewEvery is how often a kubelet renews its lease.
	renewEvery = 10 * time.Second
	// maxSilence is how long a supposed silence is looked at.
	maxSilence = 6 * time.Hour
)

// Silence runs node health over the nodes of dumps, of which those named in
// o.Silent send no heartbeat from now on while all others do, and returns what
// happens to these and to their clusters' node health, in order, also what keeps their
// NoExecute taints back. It ends when all of them have these, or nothing happens any more.
func Silence(ctx context.Context, o SimulateOptions, open engine.StoreOpener) ([]Event, error) {
	entries, err := readAll(o.Sources, o.Warn)
	if err != nil {
		return nil, err
	}
	nodes, _ := latest(entries)
	for _, name := range o.Silent {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(nodes)), func(k nodeKey) bool { return k.name == name }) {
			return nil, fmt.Errorf("no node %q in the dump", name)
		}
	}
	d, err := NewDriver(ctx, open, Epoch, 1)
	if err != nil {
		return nil, err
	}
	defer d.Close(context.WithoutCancel(ctx))
	d.NodeHealth, d.LeasesUntil, d.TellWaits = engine.NodeHealthEnforce, maxSilence, true
	var events []Event
	waiting := map[nodeKey]bool{}
	d.OnEvent = func(ev Event) {
		h := ev.Health
		if h == nil || h.Node != "" && !slices.Contains(o.Silent, h.Node) || ev.Kind == "blind-over" {
			return
		}
		events = append(events, ev)
		if ev.Kind == "tainted" && h.Taint == health.UnreachableNoExecute.String() {
			delete(waiting, nodeKey{h.Cluster, h.Node})
		}
	}
	keys := slices.SortedFunc(maps.Keys(nodes), func(a, b nodeKey) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.name, b.name))
	})
	heard := map[string][]string{}
	for _, k := range keys {
		if err := d.Apply(ctx, k.cluster, engine.Event{Type: engine.EventUpsert, Node: nodes[k]}); err != nil {
			return nil, err
		}
		names := heard[k.cluster]
		if slices.Contains(o.Silent, k.name) {
			waiting[k] = true
		} else {
			names = append(names, k.name)
		}
		heard[k.cluster] = names // Also of a cluster of which no node is heard.
	}
	for _, cluster := range slices.Sorted(maps.Keys(heard)) {
		if err := d.Synced(ctx, cluster); err != nil {
			return nil, err
		}
	}
	if err := d.renewWhile(ctx, heard, func() bool { return len(waiting) > 0 && !d.over() }); err != nil {
		return nil, err
	}
	return events, nil
}

// renewWhile has the nodes that are heard renew their leases, by cluster, for as
// long as there is more to see, and no longer than a silence is looked at.
func (d *Driver) renewWhile(ctx context.Context, heard map[string][]string, more func() bool) error {
	for at := time.Duration(0); at < maxSilence && more(); at += renewEvery {
		for _, cluster := range slices.Sorted(maps.Keys(heard)) {
			leases := &engine.LeaseRenewals{Nodes: heard[cluster]}
			if err := d.Apply(ctx, cluster, engine.Event{Type: engine.EventUpsert, Leases: leases}); err != nil {
				return err
			}
		}
		if err := d.RunUntil(ctx, at+renewEvery); err != nil {
			return err
		}
	}
	return nil
}

// silentFrom is when the pods' waits for the silence of nodes begin, by node: when
// they get their NoExecute taint.
func silentFrom(events []Event) map[nodeKey]time.Duration {
	from := map[nodeKey]time.Duration{}
	for _, ev := range events {
		if ev.Kind == "tainted" && ev.Health.Taint == health.UnreachableNoExecute.String() {
			from[nodeKey{ev.Health.Cluster, ev.Health.Node}] = ev.At
		}
	}
	return from
}
