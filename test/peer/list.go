package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// pageSize is the largest page of a list, and how many pods a node has in the row list.
	pageSize = 1000
	// listCalls is how often each page is asked for.
	listCalls = 100
	// While lists are read, churnEvents events come every churnEvery: pods that begin
	// a wait, and the last ones' end.
	churnEvents = 500
	churnEvery  = 50 * time.Millisecond
)

func listMany(r *run1) (figures, error) { return list(r, r.size) }
func listFew(r *run1) (figures, error)  { return list(r, r.size/100) }

// list measures pages of so many waits through the service, while events come.
func list(r *run1, waits int) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "list-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := startService(r, dir, openMem())
	if err != nil {
		return nil, err
	}
	f, err := openTainted(r, s.conn, waits/pageSize, pageSize, waitKey)
	if err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(r)
	ctx, stop := context.WithCancel(ctx)
	var came atomic.Int64
	g.Go(func() error { return f.churn(ctx, waits, &came) })
	l := &lister{query: reprievev1.NewQueryServiceClient(s.conn), waits: waits}
	began := time.Now()
	if err := l.read(ctx); err != nil {
		stop()
		return nil, cmp.Or(g.Wait(), err)
	}
	rate := float64(came.Load()) / time.Since(began).Seconds()
	stop()
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if want := churnEvents / churnEvery.Seconds(); rate < want/2 {
		return nil, fmt.Errorf("%.0f events a second were acknowledged beside the lists, want about %.0f", rate, want)
	}
	got := l.figures()
	got["events"] = rate
	return got, s.stop()
}

// churn feeds until ctx ends: each batch has new pods of node 0, and the end of the batch's before.
func (f *wireFeed) churn(ctx context.Context, from int, came *atomic.Int64) error {
	tick := time.NewTicker(churnEvery)
	defer tick.Stop()
	var gone []*reprievev1.Event
	for {
		events := gone
		gone = nil
		for range churnEvents / 2 {
			p := wirePod(from, 0)
			from++
			events = append(events, &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: p}})
			gone = append(gone, &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: &reprievev1.Event_Pod{
				Pod: &reprievev1.Pod{Namespace: p.GetNamespace(), Name: p.GetName(), Uid: p.GetUid()},
			}})
		}
		if err := f.events(events...); err != nil {
			return err
		}
		if err := f.acked(f.seq); err != nil {
			return err
		}
		came.Add(int64(len(events)))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// lister reads pages and keeps how long each took.
type lister struct {
	query             reprievev1.QueryServiceClient
	waits             int
	first, next, node []time.Duration
}

// read asks for each page in turn, and checks that it is whole and the one asked for.
func (l *lister) read(ctx context.Context) error {
	for i := range listCalls {
		first, err := l.page(ctx, &l.first, &reprievev1.ListEvictionsRequest{Cluster: clusterName, PageSize: pageSize})
		if err != nil {
			return err
		}
		next, err := l.page(ctx, &l.next, &reprievev1.ListEvictionsRequest{Cluster: clusterName, PageSize: pageSize, PageToken: first.GetNextPageToken()})
		if err != nil {
			return err
		}
		if err := follows(first.GetEvictions()[pageSize-1], next.GetEvictions()[0]); err != nil {
			return err
		}
		name := nodeName(i%(l.waits/pageSize-1) + 1) // not the one whose pods come and go
		of, err := l.page(ctx, &l.node, &reprievev1.ListEvictionsRequest{Cluster: clusterName, PageSize: pageSize, Node: name})
		if err != nil {
			return err
		}
		for _, e := range of.GetEvictions() {
			if e.GetNode() != name {
				return fmt.Errorf("the page of node %s has a pod of %s", name, e.GetNode())
			}
		}
	}
	return nil
}

// follows checks that a page goes on where the last one ended. All are due at one
// instant, so that their numbers are their order.
func follows(last, next *reprievev1.Eviction) error {
	_, a, err := engine.ParseEvictionID(last.GetId())
	if err != nil {
		return err
	}
	_, b, err := engine.ParseEvictionID(next.GetId())
	if err == nil && a >= b {
		err = fmt.Errorf("a page begins with %s, the last one ended with %s", next.GetId(), last.GetId())
	}
	return err
}

func (l *lister) page(ctx context.Context, took *[]time.Duration, q *reprievev1.ListEvictionsRequest) (*reprievev1.ListEvictionsResponse, error) {
	began := time.Now()
	p, err := l.query.ListEvictions(ctx, q)
	*took = append(*took, time.Since(began))
	if err == nil && len(p.GetEvictions()) != pageSize {
		err = fmt.Errorf("a page has %d evictions, want %d: %v", len(p.GetEvictions()), pageSize, q)
	}
	return p, err
}

func (l *lister) figures() figures {
	return figures{"first": ms(percentile(l.first, 50)), "next": ms(percentile(l.next, 50)), "node": ms(percentile(l.node, 50))}
}
