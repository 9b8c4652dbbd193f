package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// auditFile makes a configuration write its audit log to a file.
func auditFile(t *testing.T, path *string) func(*Config) {
	*path = filepath.Join(t.TempDir(), "audit.jsonl")
	return func(c *Config) { c.Audit.File = *path }
}

// audited reads an audit log but for its beginning.
func audited(t *testing.T, path string) (lines []auditLine) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var l auditLine
		dec := json.NewDecoder(bytes.NewReader(s.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&l); err != nil {
			t.Fatalf("line %q: %v", s.Text(), err)
		}
		if l.Kind != auditStart {
			lines = append(lines, l)
		}
	}
	return lines
}

// TestRefusedStrangers has each kind of stranger call: each is refused with the
// right code, and leaves exactly one line, which holds no secret.
func TestRefusedStrangers(t *testing.T) {
	r, path := newAuditedRotation(t)
	secret := "east-agent"
	oneBitOff := string(append([]byte{secret[0] ^ 1}, secret[1:]...))
	other := newAuthority(t)
	expired := newExpired(t, r.ca)
	for _, tc := range []struct {
		name   string
		call   func() error
		code   codes.Code
		want   auditLine
		reason string
	}{
		{"a certificate of another authority", func() error { return r.withCertificate(other.client("stranger", "reprieve:operator:*")) },
			codes.Unauthenticated, auditLine{Method: reprievev1.QueryService_GetCluster_FullMethodName, Cluster: "east"}, "UNAUTHENTICATED"},
		{"an expired certificate", func() error { return r.withCertificate(expired) },
			codes.Unauthenticated, auditLine{Method: reprievev1.QueryService_GetCluster_FullMethodName, Cluster: "east"}, "UNAUTHENTICATED"},
		{"a token with one bit changed", func() error {
			_, err := r.query().GetCluster(r.as(oneBitOff), &reprievev1.GetClusterRequest{Cluster: "east"})
			return err
		}, codes.Unauthenticated, auditLine{Method: reprievev1.QueryService_GetCluster_FullMethodName, Cluster: "east"}, "UNAUTHENTICATED"},
		{"no credentials", func() error {
			_, err := r.admin().PauseEvictions(r.ctx, &reprievev1.PauseEvictionsRequest{Cluster: "east", Reason: "x"})
			return err
		}, codes.Unauthenticated, auditLine{Method: reprievev1.AdminService_PauseEvictions_FullMethodName, Cluster: "east"}, "UNAUTHENTICATED"},
		{"a feeder naming another cluster", func() error {
			_, err := r.feed(r.as(secret), hello("west")).stream.Recv()
			return err
		}, codes.PermissionDenied, auditLine{Identity: secret, IdentityKind: byToken, Method: reprievev1.FeedService_Feed_FullMethodName, Cluster: "west"}, "PERMISSION_DENIED"},
		{"an executor asking for another cluster", func() error { return r.executes(secret, "east", "west").err() },
			codes.PermissionDenied, auditLine{Identity: secret, IdentityKind: byToken, Method: reprievev1.EvictionService_Evict_FullMethodName, Cluster: "west"}, "PERMISSION_DENIED"},
		{"a viewer who acts", func() error {
			_, err := r.admin().PauseEvictions(r.as("viewer"), &reprievev1.PauseEvictionsRequest{Cluster: "east", Reason: "mine"})
			return err
		}, codes.PermissionDenied, auditLine{Identity: "viewer", IdentityKind: byToken, Method: reprievev1.AdminService_PauseEvictions_FullMethodName, Cluster: "east"}, "PERMISSION_DENIED"},
	} {
		before := len(audited(t, path))
		wantError(t, tc.call(), tc.code, tc.reason)
		lines := audited(t, path)[before:]
		if len(lines) != 1 {
			t.Fatalf("%s: lines %+v; want one", tc.name, lines)
		}
		l := lines[0]
		if l.Kind != auditRefusal || l.Code != tc.code.String() || l.Reason != tc.reason || l.Peer == "" || l.Time.IsZero() || l.Message == "" ||
			l.Identity != tc.want.Identity || l.IdentityKind != tc.want.IdentityKind || l.Method != tc.want.Method || l.Cluster != tc.want.Cluster {
			t.Errorf("%s: line %+v", tc.name, l)
		}
	}
	// The name of a token is its secret in these tests, so what must not be there is the changed one and the hashes.
	text, _ := os.ReadFile(path)
	for _, never := range []string{oneBitOff, "Bearer", string(r.files["tokens.yaml"][30:60])} {
		if bytes.Contains(text, []byte(never)) {
			t.Errorf("the audit log has %q", never)
		}
	}
}

// withCertificate calls as a client that shows its certificate whatever authorities the service names.
func (r *rotation) withCertificate(conf *tls.Config) error {
	conf = conf.Clone()
	conf.RootCAs = r.ca.client("").RootCAs
	pair := conf.Certificates[0]
	conf.Certificates, conf.GetClientCertificate = nil, func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	_, err := reprievev1.NewQueryServiceClient(r.dial(credentials.NewTLS(conf))).GetCluster(r.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
	return err
}

func newExpired(t *testing.T, ca *authority) *tls.Config {
	t.Helper()
	keep := ca.notAfter
	defer func() { ca.notAfter = keep }()
	ca.notAfter = time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC)
	return ca.client("expired", "reprieve:operator:*")
}

// TestEveryActIsAudited calls every RPC that only operators and requesters may
// call: each leaves one line, reads leave none.
func TestEveryActIsAudited(t *testing.T) {
	var path string
	f := newFixture(t, memory(), func(c *Config) { tenants(t)(c); auditFile(t, &path)(c) })
	for name, m := range methods() {
		roles := rolesOf[name]
		act := slices.Contains(roles, RoleOperator) && !slices.Contains(roles, RoleViewer)
		if act != acts[name] {
			t.Errorf("%s: an act of operators %v, audited %v", name, act, acts[name])
		}
		before := len(audited(t, path))
		_ = f.call(name, m, "all-operator")
		n := len(audited(t, path)) - before
		if want := act || !slices.Contains(roles, RoleOperator); want != (n == 1) || n > 1 {
			t.Errorf("%s as operator left %d lines", name, n)
		}
	}
}

// TestAuditedActs reads the lines of acts that were done.
func TestAuditedActs(t *testing.T) {
	var path string
	f := newFixture(t, memory(), func(c *Config) { tenants(t)(c); auditFile(t, &path)(c) })
	x := f.feed(f.as("east-agent"), hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")))
	ctx := metadata.AppendToOutgoingContext(f.as("all-operator"), "x-secret", "hidden")
	shadow := reprievev1.Mode_MODE_SHADOW
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.admin().SetPolicy(ctx, &reprievev1.SetPolicyRequest{
		Cluster: "east", Policy: &reprievev1.ClusterPolicy{Mode: &shadow}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"mode"}},
	})
	must(err)
	_, err = f.admin().PauseEvictions(ctx, &reprievev1.PauseEvictionsRequest{Cluster: "east", Node: "n1", Reason: "line\nbreak \x1b[31m"})
	must(err)
	_, err = f.evictions().RequestEviction(ctx, &reprievev1.RequestEvictionRequest{
		Cluster: "east", RequestId: "r1", Requester: "me", Reason: "because", Pod: &reprievev1.PodRef{Namespace: "default", Name: "p1", Uid: "uid-p1"},
	})
	must(err)
	_, err = f.admin().ForgetCluster(ctx, &reprievev1.ForgetClusterRequest{Cluster: "east", Confirm: strings.Repeat("x", 5000)})
	wantCode(t, err, codes.InvalidArgument)
	lines := audited(t, path)
	for i, want := range [][]string{
		{"SetPolicy", "OK", `"updateMask":"mode"`, `"MODE_SHADOW"`}, {"PauseEvictions", "OK", `"node":"n1"`, `"line\nbreak \u001b[31m"`},
		{"RequestEviction", "OK", `"requestId":"r1"`, `"because"`}, {"ForgetCluster", "InvalidArgument", `"fields"`, `"confirm"`},
	} {
		l := lines[i]
		if l.Kind != auditAct || l.Identity != "all-operator" || l.IdentityKind != byToken || l.Cluster != "east" || l.Code != want[1] ||
			!strings.HasSuffix(l.Method, "/"+want[0]) || !strings.Contains(string(l.Request), want[2]) || !strings.Contains(string(l.Request), want[3]) ||
			len(l.Request) > maxAuditRequest {
			t.Errorf("%s: line %+v", want[0], l)
		}
	}
	if len(lines) != 4 || lines[2].Revision == "" {
		t.Errorf("%d lines; the request's: %+v", len(lines), lines[2])
	}
}

func wantCode(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("%v; want %s", err, code)
	}
}

// TestRefusalsDoNotFloodTheLog has a stranger call more often than the log has room for.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	r, path := newAuditedRotation(t)
	for range refusalsBurst + 50 {
		_, err := r.query().GetCluster(r.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
		wantCode(t, err, codes.Unauthenticated)
	}
	if n := len(audited(t, path)); n != refusalsBurst {
		t.Errorf("%d lines; want %d", n, refusalsBurst)
	}
	r.clock.Set(r.clock.Now().Add(time.Second))
	_, err := r.query().GetCluster(r.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
	wantCode(t, err, codes.Unauthenticated)
	lines := audited(t, path)
	if l := lines[len(lines)-1]; l.Suppressed != 50 {
		t.Errorf("the next line tells of %d", l.Suppressed)
	}
	wantMetric(t, r.fixture, "reprieve_audit_suppressed_total 50")
}

// TestAuditFileThatFails: acts are done all the same, the log has their lines, and it is counted.
func TestAuditFileThatFails(t *testing.T) {
	var path string
	out := newLog()
	f := newFixture(t, memory(), func(c *Config) { auditFile(t, &path)(c); c.LogFormat = "json" })
	f.svc.audit.logger = newLogger(&f.svc.conf, out)
	pause := func() {
		t.Helper()
		if _, err := f.admin().PauseEvictions(f.ctx, &reprievev1.PauseEvictionsRequest{Cluster: "east", Reason: "disk"}); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Dir(path)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.svc.Reload()
	pause()
	for _, want := range []string{"the audit file cannot be written", `"msg":"audit"`, `"identity":"anonymous"`, `\"reason\":`, `disk`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %q: %s", want, out)
		}
	}
	wantMetric(t, f, "reprieve_audit_errors_total 1")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	pause()
	if lines := audited(t, path); len(lines) != 1 || lines[0].Code != "OK" {
		t.Errorf("once it can be written again: %+v", lines)
	}
	nowhere := DefaultConfig().Audit
	nowhere.File = "/dev/null/audit"
	if _, err := newAuditor(nowhere, f.svc.deps.Clock, f.svc.metrics, f.svc.deps.Logger); err == nil || !strings.Contains(err.Error(), "audit.file") {
		t.Errorf("a file that cannot be there: %v", err)
	}
}

// TestAuditWithoutAFile writes to the service's log.
func TestAuditWithoutAFile(t *testing.T) {
	out := newLog()
	f := newFixture(t, memory(), tenants(t))
	f.svc.audit.logger = newLogger(&f.svc.conf, out)
	_, err := f.query().ListClusters(context.WithoutCancel(f.ctx), &reprievev1.ListClustersRequest{})
	wantCode(t, err, codes.Unauthenticated)
	if !strings.Contains(out.String(), "msg=audit kind=refusal") || !strings.Contains(out.String(), "code=Unauthenticated") {
		t.Errorf("log: %s", out)
	}
}

// TestAuditFilesRotate writes more than a file may hold.
func TestAuditFilesRotate(t *testing.T) {
	var path string
	f := newFixture(t, memory(), func(c *Config) { auditFile(t, &path)(c); c.Audit.MaxSizeMB, c.Audit.KeepFiles = 1, 2 })
	l := auditLine{Kind: auditAct, Message: strings.Repeat("x", 10_000)}
	for range 500 {
		f.svc.audit.write(&l)
	}
	f.svc.audit.reopen()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(files) != 3 {
		t.Errorf("files %v, %v; want the file and two before it", files, err)
	}
	for _, name := range files {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 || info.Size() > 1<<20 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
