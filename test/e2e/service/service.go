package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

// readyWithin bounds a start on a busy machine.
const readyWithin = 60 * time.Second

// Options say how the service runs.
type Options struct {
	// Clusters are those that agents may join: each gets an agent's token.
	Clusters []string
	// Anonymous lets everyone on this machine do everything, as without a configuration; there are no tokens then.
	Anonymous bool
	// Config is YAML added to the configuration, such as "adopt: enforce".
	Config string
	// Flags are added to the command line.
	Flags []string
}

// Service is a reprieved that runs.
type Service struct {
	*process.Process
	// Addr is the gRPC address, AdminAddr that of metrics and health.
	Addr, AdminAddr string
	// Conn is an operator's connection, allowed everything an operator is, in all clusters.
	Conn *client.Conn

	t   testing.TB
	dir string
	// operator is the file of the operator's token; empty if everyone may do everything.
	operator string
}

// operator is the name of the operator's token.
const operator = "operator"

// Start runs the service and returns when it is ready. It ends with the test; its data outlives Kill and Start.
func Start(t testing.TB, o Options) *Service {
	t.Helper()
	s := &Service{t: t, dir: t.TempDir(), Addr: loopback(process.FreePort(t)), AdminAddr: loopback(process.FreePort(t))}
	s.configure(o)
	s.Process = process.Start(t, process.Spec{
		Name: "reprieved", Path: process.Bin(t, "reprieved"), Args: append([]string{"--config", s.path("reprieved.yaml")}, o.Flags...),
	})
	conn, err := client.Dial(t.Context(), client.Config{Address: s.Addr, Plaintext: true, TokenFile: s.operator, UserAgent: "e2e"})
	if err != nil {
		t.Fatalf("connect to the service: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.Conn = conn
	s.WaitReady()
	return s
}

// configure writes the configuration and, unless everyone may do everything, the tokens.
func (s *Service) configure(o Options) {
	s.t.Helper()
	auth := "anonymous: true"
	if !o.Anonymous {
		tokens := []string{s.token(operator, "operator", "*")}
		for _, cluster := range o.Clusters {
			tokens = append(tokens, s.token(agentToken(cluster), "agent", cluster))
		}
		s.write("tokens.yaml", strings.Join(tokens, ""))
		s.operator = s.TokenFile(operator)
		auth = "tokens_file: " + s.path("tokens.yaml")
	}
	s.write("reprieved.yaml", fmt.Sprintf("data_dir: %s\nlisten: %s\nadmin_listen: %s\nauth:\n  %s\n%s\n",
		s.path("data"), s.Addr, s.AdminAddr, auth, o.Config))
}

// WaitReady waits until the service says that it is ready, as after Start.
func (s *Service) WaitReady() {
	s.t.Helper()
	waitReady(s.t, s.Process, "reprieved", s.AdminAddr)
	// The connection has to find that out too.
	await.Until(s.t, readyWithin, "the connection to the service", func(ctx context.Context) error {
		_, err := s.Conn.Query().ListClusters(ctx, &reprievev1.ListClustersRequest{})
		return err
	})
}

// TokenFile is the file of a token: operator's, or the agent's of a cluster.
func (s *Service) TokenFile(name string) string { return s.path(name + ".token") }

// AgentTokenFile is the file of the token of a cluster's agents.
func (s *Service) AgentTokenFile(cluster string) string { return s.TokenFile(agentToken(cluster)) }

// DataDir is the folder of the service's data.
func (s *Service) DataDir() string { return s.path("data") }

// Env is the environment in which the command line finds the service as an operator.
func (s *Service) Env() []string {
	return []string{"REPRIEVE_SERVER=" + s.Addr, "REPRIEVE_TOKEN_FILE=" + s.operator}
}

func agentToken(cluster string) string { return "agent-" + cluster }

// token writes a token's file and returns its entry in the tokens file, which has the hash alone.
func (s *Service) token(name, role, cluster string) string {
	s.t.Helper()
	secret := fmt.Sprintf("%s-%s", name, filepath.Base(s.dir))
	s.write(name+".token", secret)
	sum := sha256.Sum256([]byte(secret))
	return fmt.Sprintf("- {name: %s, sha256: %s, role: %s, clusters: [%q]}\n", name, hex.EncodeToString(sum[:]), role, cluster)
}

func (s *Service) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Service) write(name, content string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// waitReady waits for a program's /readyz and fails the test if it ends before.
func waitReady(t testing.TB, p *process.Process, name, addr string) {
	t.Helper()
	await.Until(t, readyWithin, name+" to be ready", func(ctx context.Context) error {
		if err, ended := p.Ended(); ended {
			t.Fatalf("%s did not start: it ended: %v", name, err)
		}
		body, err := get(ctx, addr, "/readyz")
		if err != nil {
			return fmt.Errorf("%w %s", err, body)
		}
		return nil
	})
}

// get reads a path of a program's admin address.
func get(ctx context.Context, addr, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s", path, resp.Status)
	}
	return body, err
}
