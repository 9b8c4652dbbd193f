package cli

import (
	"context"
	"net"
	"net/netip"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
)

// Dialer connects to the service. It may return before the connection stands;
// the first call then waits for it or fails.
type Dialer func(ctx context.Context, conf client.Config) (*client.Conn, error)

// connect dials what the global flags name. Loopback is plaintext unless flags say otherwise.
func (a *app) connect(ctx context.Context) (*client.Conn, error) {
	g := &a.flags
	host, _, err := net.SplitHostPort(g.server)
	if err != nil {
		return nil, usagef("--server %q is no HOST:PORT, such as 127.0.0.1:7443", g.server)
	}
	conf := client.Config{
		Address:   g.server,
		TLS:       client.TLS{CAFile: g.ca, CertFile: g.cert, KeyFile: g.key},
		Token:     g.token,
		TokenFile: g.tokenFile,
		Plaintext: g.plaintext || (!g.plaintextSet && g.ca == "" && g.cert == "" && isLoopback(host)),
		UserAgent: "reprieve/" + buildinfo.Version(),
	}
	if conf.Plaintext && (conf.Token != "" || conf.TokenFile != "") && !isLoopback(host) {
		return nil, usagef("a token is not sent to %s without TLS; leave out --plaintext or the token", g.server)
	}
	conn, err := a.Dial(ctx, conf)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, usagef("%v", err)
	}
	return conn, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && addr.IsLoopback())
}
