package service

import (
	"context"
	"fmt"
	"testing"

	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

// AgentOptions say how an agent runs.
type AgentOptions struct {
	// Cluster is the name that the service knows the cluster by. Required.
	Cluster string
	// Kubeconfig is the file that reaches the cluster. Required.
	Kubeconfig string
	// Server is the service's address; empty is the service's own. A proxy that can be cut off stands here.
	Server string
	// LeaderElect makes it one of several.
	LeaderElect bool
	// Workers, QPS and Burst are the program's defaults if 0.
	Workers, QPS, Burst int
	// Name tells agents of one cluster apart in logs.
	Name string
	// Flags are added to the command line.
	Flags []string
}

// Agent is a `reprieve agent` that runs.
type Agent struct {
	*process.Process
	// AdminAddr is the address of its metrics and health.
	AdminAddr string

	t    testing.TB
	name string
}

// StartAgent runs an agent of a cluster. It does not wait for it to be ready: see [Agent.WaitReady] and
// [Service.WaitSynced].
func (s *Service) StartAgent(o AgentOptions) *Agent {
	s.t.Helper()
	a := &Agent{t: s.t, AdminAddr: loopback(process.FreePort(s.t)), name: o.Name}
	if a.name == "" {
		a.name = "agent-" + o.Cluster
	}
	server := o.Server
	if server == "" {
		server = s.Addr
	}
	args := []string{
		"agent", "--cluster", o.Cluster, "--server", server, "--plaintext", "--token-file", s.AgentTokenFile(o.Cluster),
		"--kubeconfig", o.Kubeconfig, "--namespace", "default", fmt.Sprintf("--leader-elect=%t", o.LeaderElect),
		"--admin-listen", a.AdminAddr,
	}
	if o.Workers > 0 {
		args = append(args, fmt.Sprintf("--workers=%d", o.Workers))
	}
	if o.QPS > 0 {
		args = append(args, fmt.Sprintf("--kube-api-qps=%d", o.QPS), fmt.Sprintf("--kube-api-burst=%d", o.Burst))
	}
	a.Process = process.Start(s.t, process.Spec{Name: a.name, Path: process.Bin(s.t, "reprieve"), Args: append(args, o.Flags...)})
	return a
}

// WaitReady waits until the agent says that it is ready.
func (a *Agent) WaitReady() {
	a.t.Helper()
	waitReady(a.t, a.Process, a.name, a.AdminAddr)
}

// AgentReady says why the agent in the service's own process does not do its part; nil if it does.
func (s *Service) AgentReady(ctx context.Context) error {
	body, err := get(ctx, s.AdminAddr, "/readyz/agent")
	if err != nil {
		return fmt.Errorf("%w: %s", err, body)
	}
	return nil
}
