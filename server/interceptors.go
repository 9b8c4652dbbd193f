package server

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"buf.build/go/protovalidate"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	validating "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/reprieve-dev/reprieve/engine"
)

// chain is what every call goes through.
type chain struct {
	metrics *grpcprom.ServerMetrics
	auth    *authorizer
	audit   *auditor
	logger  *slog.Logger
	// stopping refuses new calls; every chain of the service has the same.
	stopping *atomic.Bool
}

// options are the chain's, outermost first: measured, logged and audited is what
// the caller sees, so the errors are translated within that.
func (c *chain) options() []grpc.ServerOption {
	logger := logging.LoggerFunc(func(ctx context.Context, lvl logging.Level, msg string, fields ...any) {
		c.logger.Log(ctx, slog.Level(lvl), msg, fields...)
	})
	opts := []logging.Option{logging.WithLogOnEvents(logging.FinishCall), logging.WithLevels(callLevel)}
	recovered := recovery.WithRecoveryHandler(func(p any) error { return panicError(p) })
	guarded := selector.MatchFunc(func(_ context.Context, m interceptors.CallMeta) bool { return !open(m.Service) })
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(
			c.metrics.UnaryServerInterceptor(), logging.UnaryServerInterceptor(logger, opts...), c.audit.unary, c.unaryErrors,
			recovery.UnaryServerInterceptor(recovered),
			selector.UnaryServerInterceptor(auth.UnaryServerInterceptor(c.admit), guarded),
			validating.UnaryServerInterceptor(contractValidator{protovalidate.GlobalValidator}), c.auth.unary,
		),
		grpc.ChainStreamInterceptor(
			c.metrics.StreamServerInterceptor(), logging.StreamServerInterceptor(logger, opts...), c.audit.stream, c.streamErrors,
			recovery.StreamServerInterceptor(recovered),
			selector.StreamServerInterceptor(auth.StreamServerInterceptor(c.admit), guarded),
			validating.StreamServerInterceptor(contractValidator{protovalidate.GlobalValidator}), c.auth.stream,
		),
	}
}

// open reports whether a service is for everyone.
func open(service string) bool {
	return service == "grpc.health.v1.Health" || strings.HasPrefix(service, "grpc.reflection.")
}

// callLevel makes a call that went well no news.
func callLevel(code codes.Code) logging.Level {
	switch code {
	case codes.OK, codes.Canceled:
		return logging.LevelDebug
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unimplemented:
		return logging.LevelError
	}
	return logging.LevelInfo
}

// admit refuses calls of a service that stops, and else says who calls.
func (c *chain) admit(ctx context.Context) (context.Context, error) {
	if c.stopping.Load() {
		return nil, engine.ErrStopped
	}
	return c.auth.authenticate(ctx)
}

// panicError is what a panic of a handler becomes; its text is for the log.
func panicError(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

// guard runs a goroutine's function, whose panic becomes its error.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	return f()
}

func (c *chain) unaryErrors(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	return resp, c.translate(info.FullMethod, err)
}

func (c *chain) streamErrors(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return c.translate(info.FullMethod, handler(srv, ss))
}

func (c *chain) translate(method string, err error) error {
	if err == nil {
		return nil
	}
	st, known := statusOf(err)
	if !known {
		c.logger.Error("call failed", "method", method, "error", err)
	}
	return st.Err()
}
