package server

import (
	"context"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// adminService implements reprieve.v1.AdminService.
type adminService struct {
	reprievev1.UnimplementedAdminServiceServer
	engine *engine.Engine
	// dataDir is where copies of the data file are made, backups has room for one.
	dataDir string
	backups chan struct{}
}

// PauseEvictions implements the RPC.
func (s *adminService) PauseEvictions(ctx context.Context, r *reprievev1.PauseEvictionsRequest) (*reprievev1.PauseEvictionsResponse, error) {
	p, err := s.engine.Pause(ctx, r.GetCluster(), engine.Pause{
		Node: r.GetNode(), Namespace: r.GetNamespace(), Reason: r.GetReason(), Actor: actor(ctx), Until: wire.Time(r.GetEndTime()),
	})
	if err != nil {
		return nil, err
	}
	return &reprievev1.PauseEvictionsResponse{Pause: wire.Pause(r.GetCluster(), &p)}, nil
}

// actor names the caller in records.
func actor(ctx context.Context) string { return accessFrom(ctx).caller().name }

// ResumeEvictions implements the RPC.
func (s *adminService) ResumeEvictions(ctx context.Context, r *reprievev1.ResumeEvictionsRequest) (*reprievev1.ResumeEvictionsResponse, error) {
	released, err := s.engine.Resume(ctx, engine.PauseScope{
		Cluster: r.GetCluster(), Node: r.GetNode(), Namespace: r.GetNamespace(), ID: r.GetPauseId(),
	}, r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	return &reprievev1.ResumeEvictionsResponse{Released: uint64(released)}, nil
}

// GetPolicy implements the RPC.
func (s *adminService) GetPolicy(ctx context.Context, r *reprievev1.GetPolicyRequest) (*reprievev1.GetPolicyResponse, error) {
	st, err := s.engine.Policy(ctx, r.GetCluster())
	if err != nil {
		return nil, err
	}
	return &reprievev1.GetPolicyResponse{
		Policy: wire.Policy(st.Effective, engine.PolicyAllFields), Stored: wire.Policy(st.Stored.Policy, st.Stored.Fields), Etag: st.Etag,
	}, nil
}

// SetPolicy implements the RPC.
func (s *adminService) SetPolicy(ctx context.Context, r *reprievev1.SetPolicyRequest) (*reprievev1.SetPolicyResponse, error) {
	if err := wire.CheckPolicy(r.GetPolicy()); err != nil {
		return nil, &fieldError{field: "policy.rate", err: err}
	}
	update, err := masked(r)
	if err != nil {
		return nil, &fieldError{field: "update_mask", err: err}
	}
	st, err := s.engine.SetPolicy(ctx, r.GetCluster(), update)
	if err != nil {
		return nil, err
	}
	return &reprievev1.SetPolicyResponse{
		Policy: wire.Policy(st.Effective, engine.PolicyAllFields), Stored: wire.Policy(st.Stored.Policy, st.Stored.Fields),
		Etag: st.Etag, WouldBecomeDue: uint64(st.Impact.BecomeDue), Warnings: st.Warnings,
	}, nil
}

// masked takes a request's fields apart into those to store and those to go
// back to the configuration's. Without a mask the fields that are there count.
func masked(r *reprievev1.SetPolicyRequest) (engine.PolicyUpdate, error) {
	u := engine.PolicyUpdate{Patch: wire.PolicyPatch(r.GetPolicy(), 0), Etag: r.GetEtag(), ValidateOnly: r.GetValidateOnly(), Force: r.GetForce()}
	paths := r.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		return u, nil
	}
	mask, err := wire.PolicyFields(paths)
	if err != nil {
		return u, err
	}
	u.Clear = mask &^ u.Patch.Fields
	u.Patch.Fields &= mask
	return u, nil
}

// GrantReprieve implements the RPC.
func (s *adminService) GrantReprieve(ctx context.Context, r *reprievev1.GrantReprieveRequest) (*reprievev1.GrantReprieveResponse, error) {
	granted, err := s.engine.GrantReprieve(ctx, r.GetCluster(), podRef(r.GetPod()), engine.ReprieveRecord{
		Reason: r.GetReason(), Actor: actor(ctx), Until: wire.Time(r.GetEndTime()),
	})
	if err != nil {
		return nil, err
	}
	return &reprievev1.GrantReprieveResponse{Reprieve: wire.Reprieve(&granted)}, nil
}

// RevokeReprieve implements the RPC.
func (s *adminService) RevokeReprieve(ctx context.Context, r *reprievev1.RevokeReprieveRequest) (*reprievev1.RevokeReprieveResponse, error) {
	if err := s.engine.RevokeReprieve(ctx, r.GetCluster(), podRef(r.GetPod())); err != nil {
		return nil, err
	}
	return &reprievev1.RevokeReprieveResponse{}, nil
}

// ListBlastRadiusTrips implements the RPC.
func (s *adminService) ListBlastRadiusTrips(ctx context.Context, r *reprievev1.ListBlastRadiusTripsRequest) (*reprievev1.ListBlastRadiusTripsResponse, error) {
	trips, err := s.engine.BlastTrips(ctx, r.GetCluster())
	if err != nil {
		return nil, err
	}
	return &reprievev1.ListBlastRadiusTripsResponse{Trips: wire.BlastTrips(r.GetCluster(), trips)}, nil
}

// ReleaseBlastRadius implements the RPC.
func (s *adminService) ReleaseBlastRadius(ctx context.Context, r *reprievev1.ReleaseBlastRadiusRequest) (*reprievev1.ReleaseBlastRadiusResponse, error) {
	trips, n, err := s.engine.DecideBlast(ctx, engine.BlastVerdict{
		Cluster: r.GetCluster(), Key: r.GetKey(), Actor: actor(ctx), ValidateOnly: r.GetValidateOnly(),
	})
	if err != nil {
		return nil, err
	}
	return &reprievev1.ReleaseBlastRadiusResponse{Trips: wire.BlastTrips(r.GetCluster(), trips), Released: uint64(n)}, nil
}

// RejectBlastRadius implements the RPC.
func (s *adminService) RejectBlastRadius(ctx context.Context, r *reprievev1.RejectBlastRadiusRequest) (*reprievev1.RejectBlastRadiusResponse, error) {
	trips, n, err := s.engine.DecideBlast(ctx, engine.BlastVerdict{
		Cluster: r.GetCluster(), Key: r.GetKey(), Reject: true, Actor: actor(ctx), Reason: r.GetReason(), ValidateOnly: r.GetValidateOnly(),
	})
	if err != nil {
		return nil, err
	}
	return &reprievev1.RejectBlastRadiusResponse{Trips: wire.BlastTrips(r.GetCluster(), trips), Rejected: uint64(n)}, nil
}

// ForgetCluster implements the RPC.
func (s *adminService) ForgetCluster(ctx context.Context, r *reprievev1.ForgetClusterRequest) (*reprievev1.ForgetClusterResponse, error) {
	if err := s.engine.ForgetCluster(ctx, r.GetCluster()); err != nil {
		return nil, err
	}
	return &reprievev1.ForgetClusterResponse{}, nil
}
