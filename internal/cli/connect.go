package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Target says where the service is and how to talk to it.
type Target struct {
	// Address is HOST:PORT.
	Address string
	// Plaintext means no TLS.
	Plaintext bool
	// CA, Cert and Key are PEM files; empty ones are not used.
	CA, Cert, Key string
	// Token is the bearer token, empty for none.
	Token string
}

// Conn is a connection to the service.
type Conn interface {
	grpc.ClientConnInterface
	Close() error
}

// Dialer connects to the service. It may return before the connection stands;
// the first call then waits for it or fails.
type Dialer func(ctx context.Context, t Target) (Conn, error)

// connect dials what the global flags name.
func (a *app) connect(ctx context.Context) (Conn, error) {
	t := Target{Address: a.flags.server, CA: a.flags.ca, Cert: a.flags.cert, Key: a.flags.key, Token: a.flags.token}
	host, _, err := net.SplitHostPort(t.Address)
	if err != nil {
		return nil, usagef("--server %q is no HOST:PORT, such as 127.0.0.1:7443", t.Address)
	}
	t.Plaintext = a.flags.plaintext || (!a.flags.plaintextSet && t.CA == "" && t.Cert == "" && isLoopback(host))
	if a.flags.tokenFile != "" && t.Token == "" {
		b, err := os.ReadFile(a.flags.tokenFile)
		if err != nil {
			return nil, usagef("--token-file cannot be read: %v", err)
		}
		if t.Token = strings.TrimSpace(string(b)); t.Token == "" {
			return nil, usagef("--token-file %s is empty", a.flags.tokenFile)
		}
	}
	if t.Token != "" && t.Plaintext && !isLoopback(host) {
		return nil, usagef("a token is not sent to %s without TLS; leave out --plaintext or the token", t.Address)
	}
	return a.Dial(ctx, t)
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && addr.IsLoopback())
}

// bearer is a token as per-call credentials. secure asks the transport for TLS.
type bearer struct {
	token  string
	secure bool
}

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (b bearer) RequireTransportSecurity() bool { return b.secure }

func dialService(_ context.Context, t Target) (Conn, error) {
	creds := insecure.NewCredentials()
	if !t.Plaintext {
		conf, err := tlsConfig(t)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(conf)
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(creds), grpc.WithUserAgent("reprieve/" + version())}
	if t.Token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{token: t.Token, secure: !t.Plaintext}))
	}
	return grpc.NewClient(t.Address, opts...)
}

func tlsConfig(t Target) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("--ca: " + t.CA + " holds no PEM certificate")
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}
