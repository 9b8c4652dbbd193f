package server

import (
	"context"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// RequestEviction implements the RPC.
func (s *evictionService) RequestEviction(ctx context.Context, r *reprievev1.RequestEvictionRequest) (*reprievev1.RequestEvictionResponse, error) {
	rec, err := s.engine.RequestEviction(ctx, engine.EvictionRequest{
		Cluster: r.GetCluster(), ID: r.GetRequestId(), Requester: r.GetRequester(), Reason: r.GetReason(),
		Pod: podRef(r.GetPod()), NotBefore: wire.Time(r.GetNotBefore()),
	})
	if err != nil {
		return nil, err
	}
	return &reprievev1.RequestEvictionResponse{Eviction: wire.Eviction(rec)}, nil
}

// WithdrawEviction implements the RPC.
func (s *evictionService) WithdrawEviction(ctx context.Context, r *reprievev1.WithdrawEvictionRequest) (*reprievev1.WithdrawEvictionResponse, error) {
	rec, err := s.engine.WithdrawEviction(ctx, r.GetCluster(), r.GetRequester(), r.GetRequestId())
	if err != nil {
		return nil, err
	}
	return &reprievev1.WithdrawEvictionResponse{Eviction: wire.Eviction(rec)}, nil
}

func podRef(p *reprievev1.PodRef) engine.PodRef {
	return engine.PodRef{UID: p.GetUid(), Namespace: p.GetNamespace(), Name: p.GetName()}
}
