package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// listenerTLS is the listener's side of TLS. Its certificate and authorities can
// be replaced while connections stand. Client certificates are checked here and
// not by the handshake, so that a caller whose certificate is bad is told so by
// the code of its call instead of a connection that breaks.
type listenerTLS struct {
	credentials.TransportCredentials
	cert atomic.Pointer[tls.Certificate]
	// clients are the authorities of client certificates; nil asks for none.
	clients atomic.Pointer[x509.CertPool]
	// wall is the wall clock, by which certificates are valid.
	wall func() time.Time
	// log is told of bad dates; nil where the files are only checked.
	log *slog.Logger

	mu sync.Mutex // guards conns
	// conns are the connections with a client certificate that was valid.
	conns map[*certifiedConn]struct{}
}

// newListenerTLS offers HTTP/2 over TLS 1.2 or newer. Its files have yet to be read.
func newListenerTLS(wall func() time.Time, log *slog.Logger) *listenerTLS {
	t := &listenerTLS{wall: wall, log: log, conns: map[*certifiedConn]struct{}{}}
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Time: wall,
		// A resumed session would bring back a certificate that was believed once.
		SessionTicketsDisabled: true,
	}
	conf.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.cert.Load(), nil }
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool := t.clients.Load()
		if pool == nil {
			return nil, nil
		}
		c := conf.Clone()
		// Not required: health is open, and a token may stand for a certificate.
		c.GetConfigForClient, c.ClientAuth, c.ClientCAs = nil, tls.RequestClientCert, pool
		return c, nil
	}
	t.TransportCredentials = credentials.NewTLS(conf)
	return t
}

// files are those that it is made of.
func (t *listenerTLS) files(conf *TLS) []reloadable {
	list := []reloadable{{
		name: fileCertificate, paths: []string{conf.CertFile, conf.KeyFile},
		apply: func(contents [][]byte) error {
			cert, err := tls.X509KeyPair(contents[0], contents[1])
			if err != nil {
				return fmt.Errorf("cert_file %s and key_file %s: %w", conf.CertFile, conf.KeyFile, err)
			}
			t.cert.Store(&cert)
			t.warnOfDates(conf.CertFile, cert.Leaf)
			return nil
		},
	}}
	if conf.ClientCAFile == "" {
		return list
	}
	return append(list, reloadable{
		name: fileClientCA, paths: []string{conf.ClientCAFile},
		apply: func(contents [][]byte) error {
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(contents[0]) {
				return fmt.Errorf("client_ca_file %s has no certificate in PEM", conf.ClientCAFile)
			}
			t.clients.Store(pool)
			return nil
		},
	})
}

// warnOfDates tells of a certificate that clients refuse today. It is in force
// nevertheless: the one before is no better, and clocks may differ.
func (t *listenerTLS) warnOfDates(file string, c *x509.Certificate) {
	if t.log == nil {
		return
	}
	if now := t.wall(); now.Before(c.NotBefore) || now.After(c.NotAfter) {
		t.log.Warn("the service's certificate is not valid now, clients will refuse it; put another in its place", "cert_file", file,
			"not_before", c.NotBefore, "not_after", c.NotAfter)
	}
}

// certifiedPeer is a connection with a client certificate.
type certifiedPeer struct {
	credentials.TLSInfo
	// who is what a valid certificate says; fault is why it is not valid.
	who   *caller
	fault error
}

// certifiedConn is a connection that counts for as long as its certificate does.
type certifiedConn struct {
	net.Conn
	raw   net.Conn
	chain []*x509.Certificate
	owner *listenerTLS
}

// Close implements net.Conn.
func (c *certifiedConn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.conns, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// ServerHandshake implements credentials.TransportCredentials.
func (t *listenerTLS) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	own, ok := info.(credentials.TLSInfo)
	if !ok || len(own.State.PeerCertificates) == 0 {
		return conn, info, nil
	}
	chain := own.State.PeerCertificates
	c := &certifiedConn{Conn: conn, raw: raw, chain: chain, owner: t}
	peer := t.certify(c, own)
	if peer.who == nil {
		return conn, peer, nil
	}
	return c, peer, nil
}

// certify checks a connection's client certificate, and keeps it in mind if it is valid.
func (t *listenerTLS) certify(c *certifiedConn, info credentials.TLSInfo) *certifiedPeer {
	// Noted before it is checked: authorities that change in between are seen by
	// one or the other.
	t.mu.Lock()
	t.conns[c] = struct{}{}
	t.mu.Unlock()
	fault := t.verify(c.chain)
	if fault == nil {
		return &certifiedPeer{TLSInfo: info, who: certificateCaller(c.chain[0])}
	}
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	return &certifiedPeer{TLSInfo: info, fault: fault}
}

// Clone implements credentials.TransportCredentials. All state is shared.
func (t *listenerTLS) Clone() credentials.TransportCredentials { return t }

// verify checks a client's certificates against the authorities and the clock.
func (t *listenerTLS) verify(chain []*x509.Certificate) error {
	roots := t.clients.Load()
	if roots == nil {
		return errors.New("this service takes no client certificates")
	}
	opts := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: t.wall(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(opts)
	return err
}

// sweep closes the connections whose certificates are no longer valid: their
// clients connect anew with what their own files have then. It returns how many.
func (t *listenerTLS) sweep() int {
	t.mu.Lock()
	conns := make([]*certifiedConn, 0, len(t.conns))
	for c := range t.conns {
		conns = append(conns, c)
	}
	t.mu.Unlock()
	closed := 0
	for _, c := range conns {
		if t.verify(c.chain) == nil {
			continue
		}
		closed++
		// Not the TLS connection, whose goodbye may wait for a peer that reads nothing.
		_ = c.raw.Close()
		t.mu.Lock()
		delete(t.conns, c)
		t.mu.Unlock()
	}
	return closed
}

// readFiles reads files; an error names the one that cannot be read.
func readFiles(paths []string) ([][]byte, error) {
	out := make([][]byte, len(paths))
	for i, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", p, err)
		}
		out[i] = data
	}
	return out, nil
}
