package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	keepAliveTimeout = 10 * time.Second
	connectTimeout   = 10 * time.Second
	// connectMaxDelay bounds the pause between attempts to connect, so that
	// streams, which have a back-off of their own, find a restarted service soon.
	connectMaxDelay = 3 * time.Second
)

// retryPolicy repeats the calls that only read, when the service cannot take
// them just now. Streams and calls that change something are their callers'.
const retryPolicy = `{"methodConfig": [{
	"name": [
		{"service": "reprieve.v1.QueryService", "method": "ListEvictions"},
		{"service": "reprieve.v1.QueryService", "method": "GetEviction"},
		{"service": "reprieve.v1.QueryService", "method": "ListClusters"},
		{"service": "reprieve.v1.QueryService", "method": "GetCluster"},
		{"service": "reprieve.v1.QueryService", "method": "ListNodes"},
		{"service": "reprieve.v1.QueryService", "method": "ListReprieves"},
		{"service": "reprieve.v1.QueryService", "method": "ExplainPod"},
		{"service": "reprieve.v1.QueryService", "method": "ExplainNode"},
		{"service": "reprieve.v1.QueryService", "method": "Simulate"},
		{"service": "reprieve.v1.QueryService", "method": "GetShadowReport"},
		{"service": "reprieve.v1.AdminService", "method": "GetPolicy"},
		{"service": "reprieve.v1.AdminService", "method": "ListBlastRadiusTrips"}
	],
	"retryPolicy": {
		"maxAttempts": 4,
		"initialBackoff": "0.1s",
		"maxBackoff": "1s",
		"backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// Conn is a connection to the service. It may be used by any number of
// goroutines; its calls return [*Error] for the service's errors.
type Conn struct {
	*grpc.ClientConn
}

// Dial prepares a connection. It connects in the background and again whenever
// the connection is lost, so that an unreachable service shows at the first
// call, as UNAVAILABLE. It fails if ctx is done, the configuration is bad or one
// of its files cannot be read. Close the connection after use.
func Dial(ctx context.Context, conf Config) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := conf.Validate(); err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	opts, err := conf.options()
	if err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	target := conf.Address
	if conf.Dialer != nil {
		target = "passthrough:///" + target
	}
	cc, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", conf.Address, err)
	}
	cc.Connect()
	return &Conn{ClientConn: cc}, nil
}

func (c *Config) options() ([]grpc.DialOption, error) {
	transport, err := c.transport()
	if err != nil {
		return nil, err
	}
	interval := c.KeepAlive
	if interval == 0 {
		interval = DefaultKeepAlive
	}
	delays := grpcbackoff.DefaultConfig
	delays.BaseDelay, delays.MaxDelay = backoffMin, connectMaxDelay
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: interval, Timeout: keepAliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: delays, MinConnectTimeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxReceiveBytes), grpc.MaxCallSendMsgSize(MaxSendBytes)),
		grpc.WithDefaultServiceConfig(retryPolicy),
		// Nobody but this library's caller decides what is retried.
		grpc.WithDisableServiceConfig(),
		grpc.WithUnaryInterceptor(typedUnary),
		grpc.WithStreamInterceptor(typedStream),
	}
	if c.UserAgent != "" {
		opts = append(opts, grpc.WithUserAgent(c.UserAgent))
	}
	if c.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(c.Dialer))
	}
	if c.Token != "" || c.TokenFile != "" {
		b := &bearer{token: c.Token, file: c.TokenFile, plaintext: c.Plaintext}
		if _, err := b.read(); err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithPerRPCCredentials(b))
	}
	return opts, nil
}

// Feed is the feed service's stub; see [Feeder] for the stream's whole protocol.
func (c *Conn) Feed() reprievev1.FeedServiceClient { return reprievev1.NewFeedServiceClient(c) }

// Evictions is the eviction service's stub; see [Executor] for the Evict stream.
func (c *Conn) Evictions() reprievev1.EvictionServiceClient {
	return reprievev1.NewEvictionServiceClient(c)
}

// Query is the query service's stub; see [Watch] for the watch's resumption.
func (c *Conn) Query() reprievev1.QueryServiceClient { return reprievev1.NewQueryServiceClient(c) }

// Admin is the admin service's stub.
func (c *Conn) Admin() reprievev1.AdminServiceClient { return reprievev1.NewAdminServiceClient(c) }

func typedUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for attempt := 1; ; attempt++ {
		err := typed(invoke(ctx, method, req, reply, cc, opts...))
		if !IsLimited(err) || attempt == limitedAttempts || !waitWithin(ctx, retryAfter(err)) {
			return err
		}
	}
}

// limitedAttempts is how often a call is made that is refused because its caller
// calls too often. Nothing was done by it, so that any call may be made again.
const limitedAttempts = 5

// waitWithin waits for d. It reports false if ctx ends before, at once if that is known.
func waitWithin(ctx context.Context, d time.Duration) bool {
	if d > backoffMax {
		return false
	}
	timer, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	end, _ := timer.Deadline()
	if last, ok := ctx.Deadline(); ok && !end.Before(last) {
		return false
	}
	<-timer.Done()
	return ctx.Err() == nil
}

func typedStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, typed(err)
	}
	return &typedClientStream{ClientStream: s}, nil
}

// typedClientStream gives a stream's errors as [*Error]; io.EOF stays itself.
type typedClientStream struct{ grpc.ClientStream }

func (s *typedClientStream) SendMsg(m any) error { return typed(s.ClientStream.SendMsg(m)) }

func (s *typedClientStream) RecvMsg(m any) error { return typed(s.ClientStream.RecvMsg(m)) }
