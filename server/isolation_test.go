package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// tenants are callers of two clusters, and one of both.
func tenants(t *testing.T) func(*Config) {
	return withTokens(t, []tokenEntry{
		{Name: "east-agent", Role: "agent", Clusters: []string{"east"}},
		{Name: "west-agent", Role: "agent", Clusters: []string{"west"}},
		{Name: "east-operator", Role: "operator", Clusters: []string{"east"}},
		{Name: "all-operator", Role: "operator", Clusters: []string{everyCluster}},
	})
}

// TestI9 shows that credentials of one cluster neither feed, read, execute for
// nor change another.
func TestI9(t *testing.T) {
	f := newFixture(t, memory(), func(c *Config) { enforce(c); tenants(t)(c) })
	for _, cluster := range []string{"east", "west"} {
		x := f.feed(f.as(cluster+"-agent"), hello(cluster))
		x.recv()
		x.list(upsertNode("n-"+cluster, "k"), upsertPod("p-"+cluster, "n-"+cluster))
	}
	_, err := f.feed(f.as("east-agent"), hello("west")).stream.Recv()
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")

	f.ownOrdersOnly(t)
	f.ownReadsOnly(t)

	east := f.as("east-operator")
	_, err = f.admin().PauseEvictions(east, &reprievev1.PauseEvictionsRequest{Cluster: "west", Reason: "no"})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	_, err = f.admin().ForgetCluster(east, &reprievev1.ForgetClusterRequest{Cluster: "west", Confirm: "west"})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	if n := testutil.CollectAndCount(f.svc.metrics.denied); n == 0 {
		t.Error("refusals were not counted")
	}
}

func (f *fixture) ownOrdersOnly(t *testing.T) {
	attach := func(clusters ...string) *executor {
		stream, err := f.evictions().Evict(f.as("east-agent"))
		if err != nil {
			t.Fatal(err)
		}
		x := &executor{t: t, stream: stream}
		x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: &reprievev1.ExecutorHello{
			ExecutorId: "x", Clusters: clusters, Capacity: 10,
		}}})
		return x
	}
	wantError(t, attach("east", "west").err(), codes.PermissionDenied, "PERMISSION_DENIED")
	x := attach("*")
	x.recv()
	if o := x.order(); o.GetEvictPod().GetCluster() != "east" {
		t.Fatalf("I9: order %v for east's agent", o)
	}
	c, err := f.query().GetCluster(f.as("all-operator"), &reprievev1.GetClusterRequest{Cluster: "west"})
	if err != nil || len(c.GetCluster().GetExecutors()) != 0 {
		t.Fatalf("I9: west has executors %v, %v", c.GetCluster().GetExecutors(), err)
	}
}

func (f *fixture) ownReadsOnly(t *testing.T) {
	east := f.as("east-operator")
	list, err := f.query().ListEvictions(east, &reprievev1.ListEvictionsRequest{})
	if err != nil || len(list.GetEvictions()) != 1 || list.GetEvictions()[0].GetCluster() != "east" {
		t.Fatalf("I9: east's operator lists %v, %v", list, err)
	}
	all, err := f.query().ListEvictions(f.as("all-operator"), &reprievev1.ListEvictionsRequest{})
	if err != nil || len(all.GetEvictions()) != 2 {
		t.Fatalf("the operator of all lists %v, %v", all, err)
	}
	clusters, err := f.query().ListClusters(east, &reprievev1.ListClustersRequest{})
	if err != nil || len(clusters.GetClusters()) != 1 {
		t.Fatalf("I9: east's operator sees clusters %v, %v", clusters, err)
	}
	for _, e := range all.GetEvictions() {
		if e.GetCluster() == "west" {
			_, err = f.query().GetEviction(east, &reprievev1.GetEvictionRequest{Id: e.GetId()})
			wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
		}
	}
	if c, err := f.query().GetCluster(f.as("east-agent"), &reprievev1.GetClusterRequest{Cluster: "east"}); err != nil || c.GetCluster().GetName() != "east" {
		t.Fatalf("east's agent reads its cluster: %v, %v", c, err)
	}
	_, err = f.query().GetCluster(f.as("east-agent"), &reprievev1.GetClusterRequest{Cluster: "west"})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	// What does not exist is refused like what does, so that nothing is learned.
	_, err = f.query().GetCluster(east, &reprievev1.GetClusterRequest{Cluster: "nowhere"})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	watch, err := f.query().WatchEvictions(east, &reprievev1.WatchEvictionsRequest{InitialList: true})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetInitialListEnd() != nil {
			return
		}
		if m.GetChange().GetEviction().GetCluster() != "east" {
			t.Fatalf("I9: east's operator watches %v", m)
		}
	}
}

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	// notAfter is when certificates that it issues end.
	notAfter time.Time
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir(), notAfter: farFuture}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: farFuture}
	a.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

var farFuture = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue makes a certificate for a server or a client with identities.
func (a *authority) issue(name string, identities ...string) (certFile, keyFile string) {
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"reprieve"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, NotAfter: a.notAfter}
	for _, id := range identities {
		u, err := url.Parse(id)
		if err != nil {
			a.t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", keyDER)
}

// client is a client's TLS configuration, without a certificate if name is empty.
func (a *authority) client(name string, identities ...string) *tls.Config {
	conf := &tls.Config{ServerName: "reprieve", RootCAs: x509.NewCertPool()}
	conf.RootCAs.AddCert(a.cert)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.issue(name, identities...))
		if err != nil {
			a.t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf
}

func TestMutualTLS(t *testing.T) {
	a := newAuthority(t)
	certFile, keyFile := a.issue("server")
	f := newFixture(t, memory(), func(c *Config) {
		c.Listen = "0.0.0.0:7443"
		c.TLS = TLS{CertFile: certFile, KeyFile: keyFile, ClientCAFile: filepath.Join(a.dir, "ca.pem")}
	})
	get := func(conf *tls.Config, cluster string) error {
		_, err := reprievev1.NewQueryServiceClient(f.dial(credentials.NewTLS(conf))).GetCluster(f.ctx, &reprievev1.GetClusterRequest{Cluster: cluster})
		return err
	}
	viewer := a.client("viewer", "reprieve:viewer:east", "https://example.com/other")
	wantError(t, get(viewer, "east"), codes.NotFound, "CLUSTER_UNKNOWN")
	wantError(t, get(viewer, "west"), codes.PermissionDenied, "PERMISSION_DENIED")
	wantError(t, get(a.client("all", "reprieve:operator:*"), "west"), codes.NotFound, "CLUSTER_UNKNOWN")
	wantError(t, get(a.client("norole", "reprieve:king:*"), "west"), codes.PermissionDenied, "PERMISSION_DENIED")
	wantError(t, get(a.client(""), "east"), codes.Unauthenticated, "UNAUTHENTICATED")

	old := a.client("old", "reprieve:viewer:east")
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if err := get(old, "east"); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v", err)
	}
	stranger := newAuthority(t).client("stranger", "reprieve:operator:*")
	stranger.RootCAs = viewer.RootCAs
	wantError(t, get(stranger, "east"), codes.Unauthenticated, "UNAUTHENTICATED")
}
