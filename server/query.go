package server

import (
	"context"
	"slices"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// defaultPageSize is that of a list whose caller names none.
const defaultPageSize = 100

// queryService implements reprieve.v1.QueryService.
type queryService struct {
	reprievev1.UnimplementedQueryServiceServer
	engine *engine.Engine
	// maxPage bounds the pages of lists.
	maxPage int
	// reports has room for the shadow reports that may be made at a time.
	reports chan struct{}
}

// ListEvictions implements the RPC.
func (s *queryService) ListEvictions(ctx context.Context, r *reprievev1.ListEvictionsRequest) (*reprievev1.ListEvictionsResponse, error) {
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultPageSize
	}
	size = min(size, s.maxPage)
	if slices.Contains(r.GetStates(), reprievev1.EvictionState_EVICTION_STATE_CLOSED) {
		return s.listClosed(ctx, r, size)
	}
	if r.GetClosedAfter() != nil || r.GetClosedBefore() != nil {
		return nil, badField("states", "closed_after and closed_before select closed evictions; set states to EVICTION_STATE_CLOSED")
	}
	q := engine.ListQuery{
		Cluster: r.GetCluster(), Allowed: accessFrom(ctx).allows, Namespace: r.GetNamespace(), Pod: r.GetPod(), UID: r.GetUid(),
		Node: r.GetNode(), Requester: r.GetRequester(), DueBefore: wire.Time(r.GetDueBefore()), Limit: size, Cursor: r.GetPageToken(),
	}
	for _, st := range r.GetStates() {
		q.States = append(q.States, engine.State(st))
	}
	for _, h := range r.GetHolds() {
		q.Holds = append(q.Holds, engine.Hold(h))
	}
	page, err := s.engine.List(ctx, q)
	if err != nil {
		return nil, err
	}
	return listed(page.Evictions, page.Cursor), nil
}

// listClosed reads history, which is kept by cluster.
func (s *queryService) listClosed(ctx context.Context, r *reprievev1.ListEvictionsRequest, size int) (*reprievev1.ListEvictionsResponse, error) {
	switch {
	case len(r.GetStates()) > 1:
		return nil, badField("states", "EVICTION_STATE_CLOSED stands alone: open and closed evictions are two lists")
	case r.GetCluster() == "":
		return nil, badField("cluster", "closed evictions are listed by cluster; name one")
	case len(r.GetHolds()) > 0:
		return nil, badField("holds", "closed evictions have no hold")
	case r.GetDueBefore() != nil:
		return nil, badField("due_before", "selects open evictions; closed ones have closed_after and closed_before")
	}
	page, err := s.engine.History(ctx, engine.HistoryQuery{
		Cluster: r.GetCluster(), Namespace: r.GetNamespace(), Pod: r.GetPod(), UID: r.GetUid(), Node: r.GetNode(),
		Requester: r.GetRequester(), After: wire.Time(r.GetClosedAfter()), Before: wire.Time(r.GetClosedBefore()),
		Limit: size, Cursor: r.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	return listed(page.Evictions, page.Cursor), nil
}

func listed(list []*engine.EvictionRecord, cursor string) *reprievev1.ListEvictionsResponse {
	out := &reprievev1.ListEvictionsResponse{NextPageToken: cursor}
	for _, r := range list {
		out.Evictions = append(out.Evictions, wire.Eviction(r))
	}
	return out
}

// GetEviction implements the RPC.
func (s *queryService) GetEviction(ctx context.Context, r *reprievev1.GetEvictionRequest) (*reprievev1.GetEvictionResponse, error) {
	rec, err := s.engine.Get(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	return &reprievev1.GetEvictionResponse{Eviction: wire.Eviction(rec)}, nil
}

// ListClusters implements the RPC.
func (s *queryService) ListClusters(ctx context.Context, _ *reprievev1.ListClustersRequest) (*reprievev1.ListClustersResponse, error) {
	list, err := s.engine.Clusters(ctx, accessFrom(ctx).allows)
	if err != nil {
		return nil, err
	}
	out := &reprievev1.ListClustersResponse{}
	for _, st := range list {
		out.Clusters = append(out.Clusters, wire.Cluster(st))
	}
	return out, nil
}

// GetCluster implements the RPC.
func (s *queryService) GetCluster(ctx context.Context, r *reprievev1.GetClusterRequest) (*reprievev1.GetClusterResponse, error) {
	st, err := s.engine.Cluster(ctx, r.GetCluster())
	if err != nil {
		return nil, err
	}
	return &reprievev1.GetClusterResponse{Cluster: wire.Cluster(st)}, nil
}

// ListNodes implements the RPC.
func (s *queryService) ListNodes(ctx context.Context, r *reprievev1.ListNodesRequest) (*reprievev1.ListNodesResponse, error) {
	nodes, err := s.engine.Nodes(ctx, r.GetCluster(), r.GetAll())
	if err != nil {
		return nil, err
	}
	out := &reprievev1.ListNodesResponse{}
	for i := range nodes {
		out.Nodes = append(out.Nodes, wire.NodeView(&nodes[i]))
	}
	return out, nil
}

// ListReprieves implements the RPC.
func (s *queryService) ListReprieves(ctx context.Context, r *reprievev1.ListReprievesRequest) (*reprievev1.ListReprievesResponse, error) {
	list, err := s.engine.Reprieves(ctx, r.GetCluster())
	if err != nil {
		return nil, err
	}
	out := &reprievev1.ListReprievesResponse{}
	for i := range list {
		out.Reprieves = append(out.Reprieves, wire.Reprieve(&list[i]))
	}
	return out, nil
}

// ExplainPod implements the RPC.
func (s *queryService) ExplainPod(ctx context.Context, r *reprievev1.ExplainPodRequest) (*reprievev1.ExplainPodResponse, error) {
	x, err := s.engine.Explain(ctx, r.GetCluster(), podRef(r.GetPod()))
	if err != nil {
		return nil, err
	}
	return wire.Explanation(x), nil
}

// ExplainNode implements the RPC.
func (s *queryService) ExplainNode(ctx context.Context, r *reprievev1.ExplainNodeRequest) (*reprievev1.ExplainNodeResponse, error) {
	x, err := s.engine.ExplainNode(ctx, r.GetCluster(), r.GetNode())
	if err != nil {
		return nil, err
	}
	return wire.NodeExplanation(x), nil
}

// Simulate implements the RPC.
func (s *queryService) Simulate(ctx context.Context, r *reprievev1.SimulateRequest) (*reprievev1.SimulateResponse, error) {
	taints := make([]engine.HypotheticalTaint, len(r.GetTaints()))
	for i, t := range r.GetTaints() {
		taints[i] = engine.HypotheticalTaint{Node: t.GetNode(), Key: t.GetKey(), Value: t.GetValue()}
	}
	pods, now, err := s.engine.Simulate(ctx, r.GetCluster(), taints, r.GetNamespace())
	if err != nil {
		return nil, err
	}
	out := &reprievev1.SimulateResponse{}
	for i := range pods {
		out.Pods = append(out.Pods, wire.Simulated(&pods[i], now))
	}
	return out, nil
}
