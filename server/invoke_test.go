package server

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// invoke calls any RPC with an empty request and returns how it ended. A server
// stream that begins is let through, and ended.
func (f *fixture) invoke(ctx context.Context, name string, m protoreflect.MethodDescriptor) error {
	req, resp := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return f.conn.Invoke(ctx, name, req, resp)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if m.IsStreamingServer() && !m.IsStreamingClient() {
		// An initial list makes a watch answer at once.
		if list := m.Input().Fields().ByName("initial_list"); list != nil {
			req.Set(list, protoreflect.ValueOfBool(true))
		}
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return stream.RecvMsg(resp)
}

// withTokens writes a tokens file in which each entry's token is its name.
func withTokens(t *testing.T, entries []tokenEntry) func(*Config) {
	t.Helper()
	path := writeFile(t, "tokens.yaml", string(tokenFile(t, entries...)))
	return func(c *Config) { c.Auth.TokensFile = path }
}
