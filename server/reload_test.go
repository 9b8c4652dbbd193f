package server

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// secretVolume is a folder of files that change all at once, as a mounted secret does:
// the names are links into a link to a folder, and that link is swapped.
type secretVolume struct {
	t   *testing.T
	dir string
}

func newSecretVolume(t *testing.T) *secretVolume { return &secretVolume{t: t, dir: t.TempDir()} }

func (v *secretVolume) path(name string) string { return filepath.Join(v.dir, name) }

func (v *secretVolume) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

// put swaps the volume's content for files.
func (v *secretVolume) put(files map[string][]byte) {
	v.t.Helper()
	data, err := os.MkdirTemp(v.dir, "..v")
	v.must(err)
	for name, content := range files {
		v.must(os.WriteFile(filepath.Join(data, name), content, 0o600))
		if _, err := os.Lstat(v.path(name)); err != nil {
			v.must(os.Symlink(filepath.Join("..data", name), v.path(name)))
		}
	}
	v.must(os.Symlink(filepath.Base(data), v.path("..next")))
	v.must(os.Rename(v.path("..next"), v.path("..data")))
}

func (v *secretVolume) read(path string) []byte {
	v.t.Helper()
	data, err := os.ReadFile(path)
	v.must(err)
	return data
}

// tokenFile is a tokens file in which each entry's token is its name.
func tokenFile(t *testing.T, entries ...tokenEntry) []byte {
	t.Helper()
	for i := range entries {
		sum := sha256.Sum256([]byte(entries[i].Name))
		entries[i].SHA256 = hex.EncodeToString(sum[:])
	}
	data, err := yaml.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// rotation is a service whose files are in a volume, on a clock that the test moves.
type rotation struct {
	*fixture
	clock *clock.Virtual
	ca    *authority
	vol   *secretVolume
	files map[string][]byte
}

func newRotation(t *testing.T) *rotation {
	r, _ := newAuditedRotation(t)
	return r
}

// newAuditedRotation is newRotation, and the path of its audit log.
func newAuditedRotation(t *testing.T) (r *rotation, audit string) {
	ca := newAuthority(t)
	r = &rotation{clock: clock.NewVirtual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), ca: ca, vol: newSecretVolume(t)}
	cert, key := ca.issue("server")
	r.files = map[string][]byte{
		"tls.crt": r.vol.read(cert), "tls.key": r.vol.read(key), "ca.crt": r.vol.read(filepath.Join(ca.dir, "ca.pem")),
		"tokens.yaml": tokenFile(t, rotating()...),
	}
	r.vol.put(r.files)
	r.fixture = newFixtureAt(t, Deps{Clock: r.clock, OpenStore: memory()}, func(c *Config) {
		c.Listen = "0.0.0.0:7443"
		c.TLS = TLS{CertFile: r.vol.path("tls.crt"), KeyFile: r.vol.path("tls.key"), ClientCAFile: r.vol.path("ca.crt")}
		c.Auth.TokensFile = r.vol.path("tokens.yaml")
		auditFile(t, &audit)(c)
	})
	r.conn = r.dial(credentials.NewTLS(ca.client("")))
	return r, audit
}

// rotating are the tokens before anything is rotated.
func rotating() []tokenEntry {
	return []tokenEntry{
		{Name: "east-agent", Role: "agent", Clusters: []string{"east"}},
		{Name: "both-executor", Role: "executor", Clusters: []string{"east", "west"}},
		{Name: "viewer", Role: "viewer", Clusters: []string{"east", "west"}},
	}
}

// change swaps files of the volume.
func (r *rotation) change(files map[string][]byte) {
	for name, content := range files {
		r.files[name] = content
	}
	r.vol.put(r.files)
}

// look lets the service look at its files n times.
func (r *rotation) look(n int) {
	for range n {
		r.clock.Set(r.clock.Now().Add(reloadEvery))
		r.clock.Fire()
	}
}

// counted wants metrics to have lines.
func (r *rotation) counted(lines ...string) {
	r.t.Helper()
	wantMetric(r.t, r.fixture, lines...)
}

// wantMetric wants metrics to have lines.
func wantMetric(t *testing.T, f *fixture, lines ...string) {
	t.Helper()
	_, text := f.get("/metrics")
	for _, l := range lines {
		if !strings.Contains(text, l+"\n") {
			t.Errorf("metrics have no %q", l)
		}
	}
}

// lives are streams of each kind, one of them by certificate.
type lives struct {
	east, west *feed
	exec       *executor
	watch      reprievev1.QueryService_WatchEvictionsClient
	pods       int
}

func (r *rotation) lives() *lives {
	r.t.Helper()
	certified := *r.fixture
	certified.conn = r.dial(credentials.NewTLS(r.ca.client("west-agent", "reprieve:agent:west")))
	l := &lives{east: r.feed(r.as("east-agent"), hello("east")), west: certified.feed(r.ctx, hello("west"))}
	for _, x := range []*feed{l.east, l.west} {
		x.recv()
		x.list(upsertNode("n1", "k"))
	}
	l.exec = r.executes("both-executor", "west")
	if l.exec.recv().GetWelcome() == nil {
		r.t.Fatal("no welcome")
	}
	var err error
	if l.watch, err = r.query().WatchEvictions(r.as("viewer"), &reprievev1.WatchEvictionsRequest{InitialList: true}); err != nil {
		r.t.Fatal(err)
	}
	if m, err := l.watch.Recv(); err != nil || m.GetInitialListEnd() == nil {
		r.t.Fatalf("initial list %v, %v", m, err)
	}
	return l
}

func (r *rotation) executes(token string, clusters ...string) *executor {
	r.t.Helper()
	stream, err := r.evictions().Evict(r.as(token))
	if err != nil {
		r.t.Fatal(err)
	}
	x := &executor{t: r.t, stream: stream}
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: &reprievev1.ExecutorHello{
		ExecutorId: token + strings.Join(clusters, ""), Clusters: clusters, Capacity: 1,
	}}})
	return x
}

// feeds shows that a feed and the watch work.
func (l *lives) feeds(t *testing.T, x *feed, cluster string) {
	t.Helper()
	l.pods++
	name := cluster + string(rune('a'+l.pods))
	x.acked(x.batch(upsertPod(name, "n1", waits("k"))), false)
	if m, err := l.watch.Recv(); err != nil || m.GetChange().GetEviction().GetPod() != name {
		t.Fatalf("watched %v, %v; want a change of %s", m, err, name)
	}
}

// executes shows that the executor's stream is there.
func (l *lives) executes(t *testing.T) {
	t.Helper()
	l.exec.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Extend{Extend: &reprievev1.Extend{Token: "none"}}})
	if m := l.exec.recv(); m.GetExtended().GetToken() != "none" {
		t.Fatalf("answer %v", m)
	}
}

// all shows that all of them work.
func (l *lives) all(t *testing.T) {
	t.Helper()
	l.feeds(t, l.east, "east")
	l.feeds(t, l.west, "west")
	l.executes(t)
}

// served is the serial number of the certificate that new connections are shown.
func (r *rotation) served() string {
	r.t.Helper()
	raw, err := r.lis.Dial()
	if err != nil {
		r.t.Fatal(err)
	}
	defer raw.Close()
	conf := r.ca.client("")
	conf.NextProtos = []string{"h2"}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestRotateServerCertificate(t *testing.T) {
	r := newRotation(t)
	l := r.lives()
	cert, key := r.ca.issue("second")
	r.change(map[string][]byte{"tls.crt": r.vol.read(cert)})
	r.look(3)
	// The key is the old one's still.
	if got := r.served(); got != "server" {
		t.Errorf("half a pair was taken: %s", got)
	}
	r.counted(`reprieve_reload_errors_total{file="certificate"} 2`, `reprieve_reloads_total{file="certificate"} 0`)
	r.change(map[string][]byte{"tls.key": r.vol.read(key)})
	r.look(1)
	if got := r.served(); got != "server" {
		t.Errorf("what was seen once was taken: %s", got)
	}
	r.look(1)
	if got := r.served(); got != "second" {
		t.Errorf("new connections are shown %s", got)
	}
	r.counted(`reprieve_reload_errors_total{file="certificate"} 2`, `reprieve_reloads_total{file="certificate"} 1`)
	l.all(t)
	// A signal takes it at once.
	third, key3 := r.ca.issue("third")
	r.change(map[string][]byte{"tls.crt": r.vol.read(third), "tls.key": r.vol.read(key3)})
	r.svc.Reload()
	if got := r.served(); got != "third" {
		t.Errorf("after a signal new connections are shown %s", got)
	}
	l.all(t)
}

func TestRotateClientAuthorities(t *testing.T) {
	r := newRotation(t)
	l := r.lives()
	next := newAuthority(t)
	nextPEM := r.vol.read(filepath.Join(next.dir, "ca.pem"))
	viewer := next.client("next", "reprieve:viewer:east")
	viewer.RootCAs = r.ca.client("").RootCAs
	get := func() error {
		_, err := reprievev1.NewQueryServiceClient(r.dial(credentials.NewTLS(viewer))).GetCluster(r.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
		return err
	}
	wantError(t, get(), codes.Unauthenticated, "UNAUTHENTICATED")
	r.change(map[string][]byte{"ca.crt": append(r.files["ca.crt"], nextPEM...)})
	r.look(2)
	if err := get(); err != nil {
		t.Errorf("a certificate of the added authority: %v", err)
	}
	l.all(t)
	r.change(map[string][]byte{"ca.crt": []byte("no certificate")})
	r.look(2)
	r.counted(`reprieve_reload_errors_total{file="client_ca"} 1`, `reprieve_reloads_total{file="client_ca"} 1`)
	l.all(t)
	// Without its authority the certificate's connection ends; its client connects anew and is told.
	r.change(map[string][]byte{"ca.crt": nextPEM})
	r.look(2)
	if _, err := l.west.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream of a certificate that is no longer believed: %v", err)
	}
	if err := get(); err != nil {
		t.Errorf("a certificate of the authority that stays: %v", err)
	}
	l.feeds(t, l.east, "east")
	l.executes(t)
}

func TestRotateTokens(t *testing.T) {
	r := newRotation(t)
	l := r.lives()
	every := r.executes("both-executor", "*")
	every.recv()
	entries := rotating()
	// Another token, another name and another order take nothing away.
	more := append([]tokenEntry{{Name: "new", Role: "viewer", Clusters: []string{"*"}}}, entries...)
	r.change(map[string][]byte{"tokens.yaml": tokenFile(t, more...)})
	r.look(2)
	l.all(t)
	if _, err := r.query().ListClusters(r.as("new"), &reprievev1.ListClustersRequest{}); err != nil {
		t.Errorf("a new token: %v", err)
	}
	for _, broken := range []string{"", "- {name: x", "- {name: x, sha256: 1, role: viewer, clusters: [east]}"} {
		r.change(map[string][]byte{"tokens.yaml": []byte(broken)})
		r.look(2)
	}
	r.counted(`reprieve_reload_errors_total{file="tokens"} 3`, `reprieve_reloads_total{file="tokens"} 1`)
	l.all(t)
	// One has a cluster fewer: its stream for the other goes on, the one for all begins anew.
	entries[1].Clusters = []string{"west"}
	r.change(map[string][]byte{"tokens.yaml": tokenFile(t, entries...)})
	r.look(2)
	wantError(t, every.err(), codes.Unavailable, "GRANTS_CHANGED")
	l.all(t)
	entries[1].Clusters = []string{"east"}
	r.change(map[string][]byte{"tokens.yaml": tokenFile(t, entries...)})
	r.look(2)
	wantError(t, l.exec.err(), codes.PermissionDenied, "PERMISSION_DENIED")
	l.feeds(t, l.east, "east")
	l.feeds(t, l.west, "west")
	r.change(map[string][]byte{"tokens.yaml": tokenFile(t, entries[1:]...)})
	r.look(2)
	_, err := l.east.stream.Recv()
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	l.feeds(t, l.west, "west")
	_, err = r.query().GetCluster(r.as("east-agent"), &reprievev1.GetClusterRequest{Cluster: "east"})
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
}

// TestRevokedReaderOfNothing has a watcher that reads nothing lose its token: its call ends all the same.
func TestRevokedReaderOfNothing(t *testing.T) {
	r := newRotation(t)
	l := r.lives()
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(credentials.NewTLS(r.ca.client(""))),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithContextDialer(r.dialLocal))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	slow, err := reprievev1.NewQueryServiceClient(conn).WatchEvictions(r.as("viewer"), &reprievev1.WatchEvictionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var pods []*reprievev1.Event
	for range 2000 {
		l.pods++
		pods = append(pods, upsertPod(hex.EncodeToString([]byte{byte(l.pods >> 8), byte(l.pods)}), "n1", waits("k")))
	}
	l.east.acked(l.east.batch(pods...), false)
	r.change(map[string][]byte{"tokens.yaml": tokenFile(t, rotating()[:2]...)})
	r.look(2)
	for {
		if _, err := slow.Recv(); err != nil {
			wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
			break
		}
	}
	// The other watcher has lost its token too, and its stream may end later.
	for err = nil; err == nil; {
		_, err = l.watch.Recv()
	}
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	if n := len(r.svc.chain.auth.live.list()); n != 3 {
		t.Errorf("%d streams are left, want the two feeds and the executor", n)
	}
}

// TestExpiredCertificateEndsItsConnection moves the clock past a certificate's end, and not as far as a feed may be silent.
func TestExpiredCertificateEndsItsConnection(t *testing.T) {
	r := newRotation(t)
	l := r.lives()
	r.ca.notAfter = r.clock.Now().Add(10 * time.Second)
	conf := r.ca.client("short", "reprieve:agent:north")
	short := *r.fixture
	short.conn = r.dial(credentials.NewTLS(conf))
	x := short.feed(r.ctx, hello("north"))
	x.recv()
	r.look(1)
	x.acked(x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}), false)
	r.clock.Set(r.clock.Now().Add(20 * time.Second))
	r.look(1)
	if _, err := x.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream of an expired certificate: %v", err)
	}
	_, err := reprievev1.NewQueryServiceClient(short.conn).GetCluster(r.ctx, &reprievev1.GetClusterRequest{Cluster: "north"}, grpc.WaitForReady(true))
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	l.executes(t)
}
