package server

import (
	"context"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// defaultShadowTolerance and defaultMaxDifferences stand for what a request leaves out.
	defaultShadowTolerance = 2 * time.Second
	defaultMaxDifferences  = 1000
)

// GetShadowReport implements the RPC. One report is made at a time: each keeps
// many records in memory.
func (s *queryService) GetShadowReport(ctx context.Context, r *reprievev1.GetShadowReportRequest) (*reprievev1.GetShadowReportResponse, error) {
	select {
	case s.reports <- struct{}{}:
		defer func() { <-s.reports }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	q := engine.ShadowQuery{
		Cluster: r.GetCluster(), Since: wire.Time(r.GetSince()), Until: wire.Time(r.GetUntil()),
		Tolerance: defaultShadowTolerance, MaxDifferences: int(r.GetMaxDifferences()),
	}
	if r.GetTolerance() != nil {
		q.Tolerance = r.GetTolerance().AsDuration()
	}
	if q.MaxDifferences == 0 {
		q.MaxDifferences = defaultMaxDifferences
	}
	report, err := s.engine.ShadowReport(ctx, q)
	if err != nil {
		return nil, err
	}
	return &reprievev1.GetShadowReportResponse{Report: wire.ShadowReport(report)}, nil
}
