package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// authorizer decides who may call what, and counts what it refuses.
type authorizer struct {
	creds  *credentialChecker
	denied func(method string)
	live   *liveStreams
	// limits is nil for the agent of this process.
	limits *limiter
}

type accessKey struct{}

// accessFrom returns the access that authenticate put into a call's context. A
// context without one has no access to anything.
func accessFrom(ctx context.Context) *access {
	if a, ok := ctx.Value(accessKey{}).(*access); ok {
		return a
	}
	return newAccess(&caller{}, nil, nil)
}

// authenticate says who calls and refuses callers without a role for the RPC.
func (z *authorizer) authenticate(ctx context.Context) (context.Context, error) {
	method, _ := grpc.Method(ctx)
	who, sum, err := z.creds.caller(ctx)
	if err != nil {
		return nil, err
	}
	auditedFrom(ctx).from(who)
	if err := z.limits.call(who); err != nil {
		return nil, err
	}
	a := newAccess(who, sum, rolesOf[method])
	if !a.role() {
		return nil, z.noRole(method, a)
	}
	return context.WithValue(ctx, accessKey{}, a), nil
}

func (z *authorizer) noRole(method string, a *access) error {
	z.denied(method)
	return fmt.Errorf("%w: %s needs one of the roles %v", errDenied, method, a.roles)
}

// allow checks one cluster of a call.
func (z *authorizer) allow(method string, a *access, cluster string) error {
	if a.allows(cluster) {
		return nil
	}
	z.denied(method)
	return fmt.Errorf("%w: %q has no role for %s in cluster %q", errDenied, a.caller().name, method, cluster)
}

// authorize checks a message's clusters, which it returns, against the caller's.
// A message that names none asks for all that the caller may see, which its
// handler filters.
func (z *authorizer) authorize(ctx context.Context, method string, msg any) ([]string, error) {
	clusters, err := clustersOf(msg)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		auditedFrom(ctx).about(c)
		if err := z.allow(method, accessFrom(ctx), c); err != nil {
			return nil, err
		}
	}
	return clusters, nil
}

// clustersOf returns the clusters that a message is about.
func clustersOf(msg any) ([]string, error) {
	switch m := msg.(type) {
	case *reprievev1.FeedRequest:
		if m.GetHello() != nil {
			return []string{m.GetHello().GetCluster()}, nil
		}
	case *reprievev1.EvictRequest:
		var named []string
		for _, c := range m.GetHello().GetClusters() {
			// "*" asks for what the credentials allow, which may be nothing.
			if c != everyCluster {
				named = append(named, c)
			}
		}
		return named, nil
	case *reprievev1.GetEvictionRequest:
		cluster, _, err := engine.ParseEvictionID(m.GetId())
		if err != nil {
			return nil, &fieldError{field: "id", err: err}
		}
		return []string{cluster}, nil
	case *reprievev1.BackupStoreRequest:
		// The file has the records of all.
		return []string{everyCluster}, nil
	case interface{ GetCluster() string }:
		if m.GetCluster() != "" {
			return []string{m.GetCluster()}, nil
		}
	}
	return nil, nil
}

// unary authorizes the request of a unary call.
func (z *authorizer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, err := z.authorize(ctx, info.FullMethod, req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}
