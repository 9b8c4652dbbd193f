package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// credentialChecker knows who is who.
type credentialChecker struct {
	tokens []bearerToken
	// anonymous is who calls without credentials; nil refuses them.
	anonymous *caller
}

// bearerToken is a bearer token, of which only the hash is known.
type bearerToken struct {
	sum [sha256.Size]byte
	who *caller
}

// anonymousCaller may do everything: it exists only where nobody but the
// machine's own users can connect, unless the configuration says otherwise.
func anonymousCaller() *caller {
	who := &caller{name: "anonymous"}
	for _, r := range allRoles {
		who.grants = append(who.grants, grant{role: r, clusters: []string{everyCluster}})
	}
	return who
}

// caller says who calls: a bearer token counts before a certificate, either
// before nothing. A token that is not known is refused, whatever else is there.
func (c *credentialChecker) caller(ctx context.Context) (*caller, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("authorization")) > 0 {
		secret, err := auth.AuthFromMD(ctx, "bearer")
		if err != nil {
			return nil, fmt.Errorf("%w: send the header \"authorization: Bearer TOKEN\"", errUnauthenticated)
		}
		return c.bearer(secret)
	}
	if cert := clientCertificate(ctx); cert != nil {
		return certificateCaller(cert), nil
	}
	if c.anonymous != nil {
		return c.anonymous, nil
	}
	return nil, fmt.Errorf("%w: send a bearer token or a client certificate", errUnauthenticated)
}

func (c *credentialChecker) bearer(secret string) (*caller, error) {
	sum := sha256.Sum256([]byte(secret))
	var who *caller
	for i := range c.tokens {
		// All are compared, so that the time tells nothing.
		if subtle.ConstantTimeCompare(sum[:], c.tokens[i].sum[:]) == 1 {
			who = c.tokens[i].who
		}
	}
	if who == nil {
		return nil, fmt.Errorf("%w: the bearer token is not known", errUnauthenticated)
	}
	return who, nil
}

// clientCertificate is the verified certificate of the connection, if there is one.
func clientCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// certificateCaller reads the URI SANs reprieve:<role>:<cluster>. Others say nothing.
func certificateCaller(cert *x509.Certificate) *caller {
	who := &caller{name: cert.Subject.CommonName}
	for _, u := range cert.URIs {
		g, ok := parseIdentity(u)
		if !ok {
			continue
		}
		who.grants = append(who.grants, g)
		if who.name == "" {
			who.name = u.String()
		}
	}
	return who
}

func parseIdentity(u *url.URL) (grant, bool) {
	if u.Scheme != "reprieve" {
		return grant{}, false
	}
	name, cluster, ok := strings.Cut(u.Opaque, ":")
	role, err := parseRole(name)
	if !ok || err != nil || cluster == "" {
		return grant{}, false
	}
	return grant{role: role, clusters: []string{cluster}}, true
}

// tokenEntry is one token of the tokens file.
type tokenEntry struct {
	Name string `yaml:"name"`
	// SHA256 is the token's hash in hexadecimal.
	SHA256   string   `yaml:"sha256"`
	Role     string   `yaml:"role"`
	Clusters []string `yaml:"clusters"`
}

// readTokens reads a tokens file: a YAML list of name, sha256, role and clusters.
func readTokens(path string) ([]bearerToken, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokens file: %w", err)
	}
	var entries []tokenEntry
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&entries); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tokens file %s: %w", path, err)
	}
	out := make([]bearerToken, len(entries))
	var faults []error
	for i := range entries {
		t, err := entries[i].token()
		if err != nil {
			faults = append(faults, fmt.Errorf("tokens file %s: entry %d (%s): %w", path, i+1, entries[i].Name, err))
		}
		out[i] = t
	}
	return out, errors.Join(faults...)
}

func (e *tokenEntry) token() (t bearerToken, err error) {
	if e.Name == "" {
		return t, errors.New("name is empty")
	}
	sum, err := hex.DecodeString(e.SHA256)
	if err != nil || len(sum) != len(t.sum) {
		return t, errors.New("sha256 must be the 64 hexadecimal digits that `printf %s TOKEN | sha256sum` prints")
	}
	role, err := parseRole(e.Role)
	if err != nil {
		return t, err
	}
	if len(e.Clusters) == 0 {
		return t, errors.New(`clusters is empty: name clusters, or "*" for all`)
	}
	copy(t.sum[:], sum)
	t.who = &caller{name: e.Name, grants: []grant{{role: role, clusters: e.Clusters}}}
	return t, nil
}
