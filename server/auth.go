package server

import (
	"context"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// authorizer decides who may call what, and counts and logs what it refuses.
type authorizer struct {
	creds  *credentialChecker
	denied func(method string)
	logger *slog.Logger
}

type accessKey struct{}

// accessFrom returns the access that authenticate put into a call's context. A
// context without one has no access to anything.
func accessFrom(ctx context.Context) *access {
	if a, ok := ctx.Value(accessKey{}).(*access); ok {
		return a
	}
	return &access{caller: &caller{}}
}

// authenticate says who calls and refuses callers without a role for the RPC.
func (z *authorizer) authenticate(ctx context.Context) (context.Context, error) {
	method, _ := grpc.Method(ctx)
	who, err := z.creds.caller(ctx)
	if err != nil {
		z.logger.Warn("call refused", "method", method, "error", err)
		return nil, err
	}
	a := &access{caller: who, roles: rolesOf[method]}
	if !a.role() {
		return nil, z.refuse(method, who, "", fmt.Errorf("%w: %s needs one of the roles %v", errDenied, method, a.roles))
	}
	return context.WithValue(ctx, accessKey{}, a), nil
}

func (z *authorizer) refuse(method string, who *caller, cluster string, err error) error {
	z.denied(method)
	z.logger.Warn("permission denied", "method", method, "caller", who.name, "cluster", cluster)
	return err
}

// authorize checks a message's clusters against the caller's. A message that
// names none asks for all that the caller may see, which its handler filters.
func (z *authorizer) authorize(ctx context.Context, method string, msg any) error {
	clusters, err := clustersOf(msg)
	if err != nil {
		return err
	}
	a := accessFrom(ctx)
	for _, c := range clusters {
		if !a.allows(c) {
			return z.refuse(method, a.caller, c, fmt.Errorf("%w: %q has no role for %s in cluster %q", errDenied, a.caller.name, method, c))
		}
	}
	return nil
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
	case interface{ GetCluster() string }:
		if m.GetCluster() != "" {
			return []string{m.GetCluster()}, nil
		}
	}
	return nil, nil
}

// unary authorizes the request of a unary call.
func (z *authorizer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := z.authorize(ctx, info.FullMethod, req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// stream authorizes each message that a stream receives.
func (z *authorizer) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &authorizedStream{ServerStream: ss, z: z, method: info.FullMethod})
}

type authorizedStream struct {
	grpc.ServerStream
	z      *authorizer
	method string
}

// RecvMsg implements grpc.ServerStream.
func (s *authorizedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.z.authorize(s.Context(), s.method, m)
}
