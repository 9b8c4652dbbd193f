package cli

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
)

// refusal is an error as the service sends it.
func refusal(t *testing.T, code codes.Code, reason, message string, details ...protoadapt.MessageV1) error {
	t.Helper()
	st := status.New(code, message)
	if reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: reason, Domain: "reprieve.dev"})
	}
	st, err := st.WithDetails(details...)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestServiceErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		code int
		line string
	}{
		"not found": {refusal(t, codes.NotFound, "CLUSTER_UNKNOWN", `cluster "prod" is not known`), exitNotFound,
			"reprieve: get nodes: cluster \"prod\" is not known; `reprieve get clusters` lists those that are known"},
		"denied": {refusal(t, codes.PermissionDenied, "PERMISSION_DENIED", "role viewer may not call it"), exitDenied,
			"reprieve: get nodes: role viewer may not call it; these credentials have no role for it; ask the service's operator"},
		"unauthenticated": {refusal(t, codes.Unauthenticated, "UNAUTHENTICATED", "no credentials"), exitDenied,
			"reprieve: get nodes: no credentials; give --token-file or --cert and --key"},
		"deadline": {refusal(t, codes.DeadlineExceeded, "", "too slow"), exitUnavailable,
			"reprieve: get nodes: too slow; try again, or raise --timeout"},
		"own deadline": {refusal(t, codes.DeadlineExceeded, "", "context deadline exceeded while waiting for connections to become ready"), exitUnavailable,
			"reprieve: get nodes: no answer in time; try again, or raise --timeout"},
		"fields": {refusal(t, codes.InvalidArgument, "INVALID_ARGUMENT", "bad request", &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "cluster", Description: "must be a DNS label"}}}), exitUsage,
			"reprieve: get nodes: bad request (cluster: must be a DNS label)"},
		"fields in the message": {refusal(t, codes.InvalidArgument, "INVALID_ARGUMENT", "validation errors:\n - a.cluster: does not match regex pattern `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`\n - b: must be positive",
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "a.cluster", Description: "does not match regex pattern `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`"}, {Field: "b", Description: "must be positive"}}}), exitUsage,
			"reprieve: get nodes: a.cluster: must be a DNS label: a-z, 0-9 and -, such as prod-1, b: must be positive"},
		"control characters": {refusal(t, codes.Internal, "", "odd\x1b[2J\nthing"), exitFailure, "reprieve: get nodes: odd?[2J thing"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.fake.err = tc.err
			code, out, errs := h.run("get", "nodes", "--cluster", "prod")
			if code != tc.code || errs != tc.line+"\n" || out != "" {
				t.Errorf("exit %d, want %d\ngot  %q\nwant %q\noutput %q", code, tc.code, errs, tc.line+"\n", out)
			}
		})
	}
}

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"get pods":                             `reprieve: get: "pods" cannot be listed; use evictions, clusters, nodes, reprieves or pauses`,
		"fetch":                                "reprieve: \"fetch\" is no command; `reprieve --help` lists them",
		"get nodes":                            "reprieve: get nodes: say which cluster with --cluster or REPRIEVE_CLUSTER; `reprieve get clusters` lists them",
		"get nodes prod":                       `reprieve: get nodes: "prod" is an argument, and it takes none; see --help`,
		"get clusters -o xml":                  "reprieve: get clusters: -o xml is unknown; use table, wide, json or yaml",
		"get clusters --bogus":                 "reprieve: get clusters: unknown flag: --bogus",
		"get evictions --state odd":            `reprieve: get evictions: --state "odd" is unknown; use one of waiting, due, delivered, recalling, confirming, closed`,
		"get clusters --server x":              `reprieve: get clusters: --server "x" is no HOST:PORT, such as 127.0.0.1:7443`,
		"pause prod":                           `reprieve: pause: required flag(s) "reason" not set; see --help`,
		"grant web/p --cluster c --reason r":   "reprieve: grant: a reprieve needs an end: give --for or --until",
		"explain pod a/b/c --cluster c":        `reprieve: explain pod: "a/b/c" is no pod; write NAMESPACE/NAME, or NAME with -n`,
		"explain pod a/b -n c --cluster c":     "reprieve: explain pod: -n c and the pod a/b name two namespaces",
		"policy set --cluster c rate":          `reprieve: policy set: "rate" is no FIELD=VALUE`,
		"policy set --cluster c":               "reprieve: policy set: nothing to set: give FIELD=VALUE, --unset or -f",
		"policy set --cluster c mode=on":       "reprieve: policy set: mode=on: unknown value; use one of shadow, enforce",
		"policy set --cluster c rate=5":        "reprieve: policy set: rate=5: write ORDERS_A_SECOND/BURST, such as 50/100",
		"execute --answer no-answer":           "reprieve: execute: --answer no-answer: leave --answer out instead",
		"execute --answer evicted --exec true": "reprieve: execute: --answer and --exec exclude each other",
		"get clusters --server 10.0.0.1:7443 --plaintext --token abc": "reprieve: get clusters: a token is not sent to 10.0.0.1:7443 without TLS; leave out --plaintext or the token",
	} {
		t.Run(args, func(t *testing.T) {
			h := newHarness(t)
			code, out, errs := h.run(strings.Fields(args)...)
			if code != exitUsage || errs != want+"\n" || out != "" {
				t.Errorf("exit %d, want %d\ngot  %q\nwant %q\noutput %q", code, exitUsage, errs, want+"\n", out)
			}
		})
	}
}

// TestUnreachable checks the answer to an address where nothing listens.
func TestUnreachable(t *testing.T) {
	h := newHarness(t)
	h.lis.Close()
	code, _, errs := h.run("get", "clusters")
	if code != exitUnavailable || !strings.HasPrefix(errs, "reprieve: get clusters: cannot connect: ") || !strings.HasSuffix(errs, "; is reprieved running there? --server says where to look\n") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}

// TestUnreachedHints: what is wrong with a connection is seldom that nobody listens.
func TestUnreachedHints(t *testing.T) {
	for message, want := range map[string]string{
		"dial tcp 127.0.0.1:7443: connect: connection refused":                                    "is reprieved running",
		"error reading server preface: EOF":                                                       "--plaintext=false",
		"authentication handshake failed: tls: first record does not look like a TLS handshake":   "--plaintext turns it off",
		"authentication handshake failed: tls: failed to verify certificate: x509: no IP SANs":    "a name in it",
		"authentication handshake failed: tls: failed to verify certificate: x509: not yet valid": "--ca names",
	} {
		err := status.Error(codes.Unavailable, `connection error: desc = "transport: `+message+`"`)
		if _, why, hint := classify(err); !strings.Contains(hint, want) || why != "cannot connect: "+message {
			t.Errorf("%s: %s; %s", message, why, hint)
		}
	}
}

func TestEnvironment(t *testing.T) {
	h := newHarness(t)
	h.env["REPRIEVE_CLUSTER"] = "prod"
	h.fake.clusters = sampleClusters()
	if code, _, errs := h.run("get", "pauses"); code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	h.env["REPRIEVE_TOKEN_FILE"] = t.TempDir() + "/none"
	if code, _, errs := h.run("get", "pauses"); code != exitUsage || !strings.Contains(errs, "none") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}
