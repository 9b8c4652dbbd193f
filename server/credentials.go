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
	"sync/atomic"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// credentialChecker knows who is who.
type credentialChecker struct {
	// tokens are those in force; a reload replaces all of them.
	tokens atomic.Pointer[[]bearerToken]
	// anonymous is who calls without credentials; nil refuses them.
	anonymous *caller
}

// tokenSum is the hash of a bearer token, which is all that is kept of it.
type tokenSum [sha256.Size]byte

// bearerToken is a bearer token, of which only the hash is known.
type bearerToken struct {
	sum tokenSum
	who *caller
}

// anonymousCaller may do everything: it exists only where nobody but the
// machine's own users can connect, unless the configuration says otherwise.
func anonymousCaller() *caller {
	who := &caller{name: "anonymous", kind: byNothing}
	for _, r := range allRoles {
		who.grants = append(who.grants, grant{role: r, clusters: []string{everyCluster}})
	}
	return who
}

// caller says who calls: a bearer token counts before a certificate, either
// before nothing. A token that is not known is refused, whatever else is there,
// and so is a certificate that is not valid. sum is the token's, if there was one.
func (c *credentialChecker) caller(ctx context.Context) (who *caller, sum *tokenSum, err error) {
	cert := certified(ctx)
	if cert != nil && cert.fault != nil {
		return nil, nil, fmt.Errorf("%w: the client certificate is not valid: %w", errUnauthenticated, cert.fault)
	}
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("authorization")) > 0 {
		secret, err := auth.AuthFromMD(ctx, "bearer")
		if err != nil {
			return nil, nil, fmt.Errorf("%w: send the header \"authorization: Bearer TOKEN\"", errUnauthenticated)
		}
		sum := tokenSum(sha256.Sum256([]byte(secret)))
		who, err := c.bearer(sum)
		return who, &sum, err
	}
	if cert != nil {
		return cert.who, nil, nil
	}
	if c.anonymous != nil {
		return c.anonymous, nil, nil
	}
	return nil, nil, fmt.Errorf("%w: send a bearer token or a client certificate", errUnauthenticated)
}

func (c *credentialChecker) bearer(sum tokenSum) (*caller, error) {
	var who *caller
	if list := c.tokens.Load(); list != nil {
		for i := range *list {
			// All are compared, so that the time tells nothing.
			if t := &(*list)[i]; subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 {
				who = t.who
			}
		}
	}
	if who == nil {
		return nil, fmt.Errorf("%w: the bearer token is not known", errUnauthenticated)
	}
	return who, nil
}

// again says who a caller that was let in is now. What comes with a connection
// stays what it was: a certificate that is no longer valid ends its connection.
func (c *credentialChecker) again(a *access) (*caller, error) {
	if a.sum == nil {
		return a.caller(), nil
	}
	return c.bearer(*a.sum)
}

// certified is what the connection's client certificate says, if there is one.
func certified(ctx context.Context) *certifiedPeer {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	cert, _ := p.AuthInfo.(*certifiedPeer)
	return cert
}

// certificateCaller reads the URI SANs reprieve:<role>:<cluster>. Others say nothing.
func certificateCaller(cert *x509.Certificate) *caller {
	who := &caller{name: cert.Subject.CommonName, kind: byCertificate}
	for _, u := range cert.URIs {
		g, ok := parseIdentity(u)
		if !ok {
			continue
		}
		who.grants = append(who.grants, g)
		who.uris = append(who.uris, u.String())
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
	return parseTokens(path, data)
}

// parseTokens reads the content of the tokens file at a path.
func parseTokens(path string, data []byte) ([]bearerToken, error) {
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
	t.who = &caller{name: e.Name, kind: byToken, grants: []grant{{role: role, clusters: e.Clusters}}}
	return t, nil
}
