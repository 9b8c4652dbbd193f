package cli

import (
	"context"
	"slices"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func (f *fakeService) ask(req any) error {
	f.asked = append(f.asked, req)
	return f.err
}

// ListEvictions pages through the evictions two at a time, whatever was asked.
func (f *fakeService) ListEvictions(_ context.Context, r *reprievev1.ListEvictionsRequest) (*reprievev1.ListEvictionsResponse, error) {
	if err := f.ask(r); err != nil {
		return nil, err
	}
	from, _ := strconv.Atoi(r.GetPageToken())
	to := min(from+2, len(f.evictions))
	resp := &reprievev1.ListEvictionsResponse{Evictions: f.evictions[from:to]}
	if to < len(f.evictions) {
		resp.NextPageToken = strconv.Itoa(to)
	}
	return resp, nil
}

func (f *fakeService) GetEviction(_ context.Context, r *reprievev1.GetEvictionRequest) (*reprievev1.GetEvictionResponse, error) {
	for _, e := range f.evictions {
		if e.GetId() == r.GetId() {
			return &reprievev1.GetEvictionResponse{Eviction: e}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no eviction %q", r.GetId())
}

func (f *fakeService) WatchEvictions(r *reprievev1.WatchEvictionsRequest, s grpc.ServerStreamingServer[reprievev1.WatchEvictionsResponse]) error {
	if err := f.ask(r); err != nil {
		return err
	}
	for _, c := range f.changes {
		if err := s.Send(c); err != nil {
			return err
		}
	}
	if f.live {
		<-s.Context().Done()
	}
	return status.Error(codes.PermissionDenied, "the token was taken back")
}

func (f *fakeService) ListClusters(_ context.Context, r *reprievev1.ListClustersRequest) (*reprievev1.ListClustersResponse, error) {
	return &reprievev1.ListClustersResponse{Clusters: f.clusters}, f.ask(r)
}

func (f *fakeService) GetCluster(_ context.Context, r *reprievev1.GetClusterRequest) (*reprievev1.GetClusterResponse, error) {
	if err := f.ask(r); err != nil {
		return nil, err
	}
	if f.unseen {
		return nil, status.Error(codes.PermissionDenied, "no role")
	}
	for _, c := range f.clusters {
		if c.GetName() == r.GetCluster() {
			return &reprievev1.GetClusterResponse{Cluster: c}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no cluster %q", r.GetCluster())
}

func (f *fakeService) ListNodes(_ context.Context, r *reprievev1.ListNodesRequest) (*reprievev1.ListNodesResponse, error) {
	return &reprievev1.ListNodesResponse{Nodes: f.nodes}, f.ask(r)
}

func (f *fakeService) ListReprieves(_ context.Context, r *reprievev1.ListReprievesRequest) (*reprievev1.ListReprievesResponse, error) {
	return &reprievev1.ListReprievesResponse{Reprieves: f.reprieves}, f.ask(r)
}

func (f *fakeService) ExplainPod(_ context.Context, r *reprievev1.ExplainPodRequest) (*reprievev1.ExplainPodResponse, error) {
	return f.explain, f.ask(r)
}

func (f *fakeService) ExplainNode(_ context.Context, r *reprievev1.ExplainNodeRequest) (*reprievev1.ExplainNodeResponse, error) {
	return f.explainNode, f.ask(r)
}

func (f *fakeService) GetShadowReport(_ context.Context, r *reprievev1.GetShadowReportRequest) (*reprievev1.GetShadowReportResponse, error) {
	return &reprievev1.GetShadowReportResponse{Report: f.shadow}, f.ask(r)
}

func (f *fakeService) PauseEvictions(_ context.Context, r *reprievev1.PauseEvictionsRequest) (*reprievev1.PauseEvictionsResponse, error) {
	return &reprievev1.PauseEvictionsResponse{Pause: &reprievev1.Pause{Id: "p1", Cluster: r.GetCluster(), Node: r.GetNode(), Namespace: r.GetNamespace(), Reason: r.GetReason(), EndTime: r.GetEndTime()}}, f.ask(r)
}

func (f *fakeService) ResumeEvictions(_ context.Context, r *reprievev1.ResumeEvictionsRequest) (*reprievev1.ResumeEvictionsResponse, error) {
	return &reprievev1.ResumeEvictionsResponse{Released: f.impact}, f.ask(r)
}

func unknownCluster(name string) error {
	st, err := status.Newf(codes.NotFound, "cluster not found: %q", name).WithDetails(&errdetails.ErrorInfo{Reason: "CLUSTER_UNKNOWN", Domain: "reprieve.dev"})
	if err != nil {
		return err
	}
	return st.Err()
}

func (f *fakeService) GetPolicy(_ context.Context, r *reprievev1.GetPolicyRequest) (*reprievev1.GetPolicyResponse, error) {
	return &reprievev1.GetPolicyResponse{Policy: f.policy, Stored: &reprievev1.ClusterPolicy{Rate: f.policy.GetRate()}, Etag: "e7"}, f.ask(r)
}

// SetPolicy knows no impact on a cluster that it does not know.
func (f *fakeService) SetPolicy(_ context.Context, r *reprievev1.SetPolicyRequest) (*reprievev1.SetPolicyResponse, error) {
	if r.GetValidateOnly() && !slices.ContainsFunc(f.clusters, func(c *reprievev1.Cluster) bool { return c.GetName() == r.GetCluster() }) {
		return nil, unknownCluster(r.GetCluster())
	}
	return &reprievev1.SetPolicyResponse{Policy: r.GetPolicy(), Stored: r.GetPolicy(), Etag: "e8", WouldBecomeDue: f.impact, Warnings: f.warnings}, f.ask(r)
}

func (f *fakeService) GrantReprieve(_ context.Context, r *reprievev1.GrantReprieveRequest) (*reprievev1.GrantReprieveResponse, error) {
	return &reprievev1.GrantReprieveResponse{Reprieve: &reprievev1.Reprieve{Cluster: r.GetCluster(), Namespace: r.GetPod().GetNamespace(), Pod: r.GetPod().GetName(), Uid: "uid-1", Reason: r.GetReason(), EndTime: r.GetEndTime()}}, f.ask(r)
}

func (f *fakeService) RevokeReprieve(_ context.Context, r *reprievev1.RevokeReprieveRequest) (*reprievev1.RevokeReprieveResponse, error) {
	return &reprievev1.RevokeReprieveResponse{}, f.ask(r)
}

func (f *fakeService) ListBlastRadiusTrips(_ context.Context, r *reprievev1.ListBlastRadiusTripsRequest) (*reprievev1.ListBlastRadiusTripsResponse, error) {
	return &reprievev1.ListBlastRadiusTripsResponse{Trips: f.trips}, f.ask(r)
}

func (f *fakeService) ReleaseBlastRadius(_ context.Context, r *reprievev1.ReleaseBlastRadiusRequest) (*reprievev1.ReleaseBlastRadiusResponse, error) {
	trips := slices.DeleteFunc(slices.Clone(f.trips), func(t *reprievev1.BlastRadiusTrip) bool {
		return t.GetTripTime() == nil || r.GetKey() != "" && t.GetKey() != r.GetKey()
	})
	if r.GetKey() != "" && r.GetKey() == f.stuckKey {
		return nil, status.Error(codes.Unavailable, "starting")
	}
	return &reprievev1.ReleaseBlastRadiusResponse{Trips: trips, Released: f.impact}, f.ask(proto.Clone(r))
}

func (f *fakeService) RejectBlastRadius(_ context.Context, r *reprievev1.RejectBlastRadiusRequest) (*reprievev1.RejectBlastRadiusResponse, error) {
	return &reprievev1.RejectBlastRadiusResponse{Trips: f.trips[:1], Rejected: f.impact}, f.ask(proto.Clone(r))
}

func (f *fakeService) ForgetCluster(_ context.Context, r *reprievev1.ForgetClusterRequest) (*reprievev1.ForgetClusterResponse, error) {
	return &reprievev1.ForgetClusterResponse{}, f.ask(r)
}

func (f *fakeService) RequestEviction(_ context.Context, r *reprievev1.RequestEvictionRequest) (*reprievev1.RequestEvictionResponse, error) {
	return &reprievev1.RequestEvictionResponse{Eviction: f.evictions[0]}, f.ask(r)
}

func (f *fakeService) WithdrawEviction(_ context.Context, r *reprievev1.WithdrawEvictionRequest) (*reprievev1.WithdrawEvictionResponse, error) {
	return &reprievev1.WithdrawEvictionResponse{Eviction: f.evictions[len(f.evictions)-1]}, f.ask(r)
}

func (f *fakeService) Evict(s grpc.BidiStreamingServer[reprievev1.EvictRequest, reprievev1.EvictResponse]) error {
	return f.evict(s)
}

func (f *fakeService) Feed(s grpc.BidiStreamingServer[reprievev1.FeedRequest, reprievev1.FeedResponse]) error {
	return f.feed(s)
}

func (f *fakeService) BackupStore(_ *reprievev1.BackupStoreRequest, s grpc.ServerStreamingServer[reprievev1.BackupStoreResponse]) error {
	for _, m := range f.backup {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return f.err
}
