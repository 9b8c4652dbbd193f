package cli

import (
	"context"

	"google.golang.org/grpc"
)

// noOpts is a generated method without its call options.
func noOpts[Req, Resp any](f func(context.Context, Req, ...grpc.CallOption) (Resp, error)) func(context.Context, Req) (Resp, error) {
	return func(ctx context.Context, req Req) (Resp, error) { return f(ctx, req) }
}
