package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// maxTokenBytes bounds a token, which travels in a header.
const maxTokenBytes = 8 << 10

// bearer puts the token into every call's metadata.
type bearer struct {
	token, file string
	// plaintext: Config.Validate has allowed the token on an unencrypted connection.
	plaintext bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials. A file that cannot
// be read now was read by Dial, so it is being rotated: that is no bad
// credential, for which gRPC would take a plain error.
func (b *bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.read()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return !b.plaintext }

// read returns the token. Its errors never contain it.
func (b *bearer) read() (string, error) {
	token, from := b.token, "token"
	if b.file != "" {
		data, err := os.ReadFile(b.file)
		if err != nil {
			return "", fmt.Errorf("read token file: %w", err)
		}
		token, from = string(data), "token file "+b.file
	}
	token = strings.TrimSpace(token)
	switch {
	case token == "":
		return "", fmt.Errorf("%s is empty", from)
	case len(token) > maxTokenBytes:
		return "", fmt.Errorf("%s has more than %d bytes: it is no bearer token", from, maxTokenBytes)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s has characters that a bearer token cannot have: expected one line of printable ASCII", from)
	}
	return token, nil
}

// transport builds the transport credentials.
func (c *Config) transport() (credentials.TransportCredentials, error) {
	if c.Plaintext {
		return insecure.NewCredentials(), nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.TLS.ServerName}
	if c.TLS.CAFile != "" {
		pem, err := os.ReadFile(c.TLS.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("CA file " + c.TLS.CAFile + " has no PEM certificate")
		}
	}
	if c.TLS.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("load client certificate: %w", err)
			}
			return &cert, nil
		}
		// A bad file is told now, not at the first connection.
		if _, err := load(); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return credentials.NewTLS(conf), nil
}
