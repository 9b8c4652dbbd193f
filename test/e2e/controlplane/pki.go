package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// certAge is how long the certificates hold.
const certAge = 24 * time.Hour

// pki is the authority of one control plane: it signs the API server's certificate and those of its users, so that a
// user can be made at any time. Its files lie in dir.
type pki struct {
	t    testing.TB
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newPKI(t testing.TB, dir string) *pki {
	t.Helper()
	p := &pki{t: t, dir: dir}
	p.key = p.newKey()
	p.cert = p.template("e2e authority")
	p.cert.IsCA, p.cert.BasicConstraintsValid = true, true
	p.cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	p.sign("ca", p.cert, p.key.Public())
	p.issue("apiserver", func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	account := p.newKey()
	p.writeKey("service-account.key", account)
	public, err := x509.MarshalPKIXPublicKey(account.Public())
	p.check(err)
	p.write("service-account.pub", "PUBLIC KEY", public)
	return p
}

// user signs a certificate that makes its holder the user of that name in those groups.
func (p *pki) user(name string, groups []string) {
	p.issue(userFile(name), func(c *x509.Certificate) {
		c.Subject.CommonName, c.Subject.Organization = name, groups
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	})
}

func userFile(name string) string { return "user-" + filepath.Base(name) }

// issue makes a key and a certificate in the files name.key and name.crt.
func (p *pki) issue(name string, shape func(*x509.Certificate)) {
	p.t.Helper()
	key := p.newKey()
	cert := p.template(name)
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	shape(cert)
	p.writeKey(name+".key", key)
	p.sign(name, cert, key.Public())
}

func (p *pki) template(name string) *x509.Certificate {
	p.t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	p.check(err)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: await.Now().Add(-time.Hour), NotAfter: await.Now().Add(certAge),
	}
}

func (p *pki) sign(name string, cert *x509.Certificate, key crypto.PublicKey) {
	p.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, p.cert, key, p.key)
	p.check(err)
	p.write(name+".crt", "CERTIFICATE", der)
}

func (p *pki) newKey() *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p.check(err)
	return key
}

func (p *pki) writeKey(name string, key *ecdsa.PrivateKey) {
	p.t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	p.check(err)
	p.write(name, "EC PRIVATE KEY", der)
}

func (p *pki) write(name, kind string, der []byte) {
	p.t.Helper()
	p.check(os.WriteFile(p.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("certificates of the control plane: %v", err)
	}
}
