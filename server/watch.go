package server

import (
	"context"
	"strconv"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// watchPage is how many changes, or evictions of the initial list, are taken at a time.
const watchPage = 1000

// watchStream is one call of WatchEvictions.
type watchStream struct {
	engine *engine.Engine
	stream reprievev1.QueryService_WatchEvictionsServer
	req    *reprievev1.WatchEvictionsRequest
	access *access
	// contained are the revisions of evictions that the initial list had, by id:
	// a change no newer than that was seen already. Nil once all such are past.
	contained map[string]uint64
	// newest is the highest of them.
	newest uint64
}

// WatchEvictions implements the RPC.
func (s *queryService) WatchEvictions(r *reprievev1.WatchEvictionsRequest, stream reprievev1.QueryService_WatchEvictionsServer) error {
	ctx := stream.Context()
	w := &watchStream{engine: s.engine, stream: stream, req: r, access: accessFrom(ctx)}
	if r.GetCluster() != "" {
		if _, err := s.engine.Cluster(ctx, r.GetCluster()); err != nil {
			return err
		}
	}
	start, err := w.start()
	if err != nil {
		return err
	}
	// Taken before the list: what changes while it is read is sent after it.
	changes, err := s.engine.Watch(start)
	if err != nil {
		return err
	}
	if r.GetInitialList() {
		if err := w.list(ctx, start); err != nil {
			return err
		}
	}
	return w.follow(ctx, changes)
}

// start is the revision to begin after.
func (w *watchStream) start() (uint64, error) {
	if w.req.GetResumeRevision() == "" {
		return w.engine.Revision()
	}
	n, err := strconv.ParseUint(w.req.GetResumeRevision(), 10, 64)
	if err != nil {
		return 0, badField("resume_revision", "%q is not a revision of this service", w.req.GetResumeRevision())
	}
	return n, nil
}

// list sends the open evictions.
func (w *watchStream) list(ctx context.Context, start uint64) error {
	w.contained = map[string]uint64{}
	q := engine.ListQuery{
		Cluster: w.req.GetCluster(), Allowed: w.access.allows, Namespace: w.req.GetNamespace(), Node: w.req.GetNode(), Limit: watchPage,
	}
	for {
		page, err := w.engine.List(ctx, q)
		if err != nil {
			return err
		}
		for _, r := range page.Evictions {
			if r.Revision > start {
				w.contained[engine.EvictionID(r.Cluster, r.Seq)] = r.Revision
				w.newest = max(w.newest, r.Revision)
			}
			if err := w.send(start, r); err != nil {
				return err
			}
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	return w.stream.Send(&reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_InitialListEnd{
		InitialListEnd: &reprievev1.InitialListEnd{Revision: strconv.FormatUint(start, 10)},
	}})
}

// follow sends changes as they commit.
func (w *watchStream) follow(ctx context.Context, changes *engine.Watcher) error {
	for {
		list, complete, err := changes.Next(ctx, watchPage)
		if err != nil {
			return err
		}
		for i := range list {
			if err := w.change(&list[i], resumeAfter(list, i, complete)); err != nil {
				return err
			}
		}
	}
}

// resumeAfter is the revision after which a reader that has seen list up to i
// misses nothing: a revision may hold several changes.
func resumeAfter(list []engine.ChangeEvent, i int, complete uint64) uint64 {
	rev := list[i].Revision
	last := i+1 == len(list)
	if last && complete < rev || !last && list[i+1].Revision == rev {
		return rev - 1
	}
	return rev
}

func (w *watchStream) change(c *engine.ChangeEvent, resume uint64) error {
	r := c.Eviction
	if c.Revision > w.newest {
		w.contained = nil
	}
	if !w.selects(r) || c.Revision <= w.contained[engine.EvictionID(r.Cluster, r.Seq)] {
		return nil
	}
	return w.send(resume, r)
}

func (w *watchStream) selects(r *engine.EvictionRecord) bool {
	q := w.req
	return w.access.allows(r.Cluster) && (q.GetCluster() == "" || q.GetCluster() == r.Cluster) &&
		(q.GetNamespace() == "" || q.GetNamespace() == r.Namespace) && (q.GetNode() == "" || q.GetNode() == r.Node)
}

func (w *watchStream) send(revision uint64, r *engine.EvictionRecord) error {
	return w.stream.Send(&reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_Change{
		Change: &reprievev1.EvictionChange{Revision: strconv.FormatUint(revision, 10), Eviction: wire.Eviction(r)},
	}})
}
