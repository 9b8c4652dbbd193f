package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// inProcessBuffer is how much may be on its way between the agent and the service.
const inProcessBuffer = 1 << 20

// InProcess says which cluster the service itself joins, if any. It runs an agent
// then, so that one cluster needs one program.
type InProcess struct {
	// Workers, KubeAPIQPS and KubeAPIBurst are the agent's.
	Workers      int     `yaml:"workers"`
	KubeAPIQPS   float64 `yaml:"kube_api_qps"`
	KubeAPIBurst int     `yaml:"kube_api_burst"`
}

// AgentSettings are what an agent in this process gets.
type AgentSettings struct {
	// Cluster is the cluster's name with the service.
	Cluster string
	// Kubeconfig is empty for the pod's service account.
	Kubeconfig string
	InProcess
	// Conn reaches the service with the role agent for the cluster.
	Conn     grpc.ClientConnInterface
	Clock    clock.Clock
	Registry prometheus.Registerer
	Logger   *slog.Logger
	Version  string
}

// NewAgent makes an agent for this process.
type NewAgent func(AgentSettings) (Agent, error)

// Agent is an agent in this process.
type Agent interface {
	// Run serves the cluster until ctx is done, and then returns nil. Its error is
	// one that needs a person. It may be called again.
	Run(ctx context.Context) error
	// Ready says why the agent, which runs, does not do its part; nil if it does.
	Ready() error
}

// agentRetry is the pause before an agent is run again that had given up.
const agentRetry = 30 * time.Second

// inProcess is the agent in this process and its way to the service.
type inProcess struct {
	lis    *bufconn.Listener
	grpc   *grpc.Server
	conn   *grpc.ClientConn
	agent  Agent
	clock  clock.Clock
	logger *slog.Logger
	// fault is why the agent gave up; nil while it runs.
	fault atomic.Pointer[error]
}

// joins reports whether the service joins a cluster itself.
func (c *Config) joins() bool { return c.Kubeconfig != "" || c.InCluster }

// joinCluster builds the agent of this process. It calls the service as any agent
// does, through the interceptors, but over memory and with a role of its own.
func (s *Service) joinCluster(chain *chain, newAgent NewAgent) error {
	if newAgent == nil {
		return errors.New("this program was built without an agent: run `reprieve agent` instead of kubeconfig or in_cluster")
	}
	local := *chain.auth
	local.limits = nil
	local.creds = &credentialChecker{anonymous: &caller{
		name: "the agent in this process", kind: byProcess, grants: []grant{{role: RoleAgent, clusters: []string{s.conf.Cluster}}},
	}}
	inner := *chain
	inner.auth = &local
	// Its Stop waits for the handlers, as a graceful one does: the engine is closed after
	// it. They end because the engine has stopped before.
	opts := append(inner.options(), s.transport()...)
	opts = append(opts, grpc.WaitForHandlers(true))
	a := &inProcess{
		lis: bufconn.Listen(inProcessBuffer), grpc: grpc.NewServer(opts...),
		clock: s.deps.Clock, logger: s.deps.Logger,
	}
	s.register(a.grpc)
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return a.lis.DialContext(ctx) }
	var err error
	a.conn, err = grpc.NewClient("passthrough:in-process", grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect the agent in this process: %w", err)
	}
	a.agent, err = newAgent(AgentSettings{
		Cluster: s.conf.Cluster, Kubeconfig: s.conf.Kubeconfig, InProcess: s.conf.Agent, Conn: a.conn, Clock: s.deps.Clock,
		Registry: s.deps.Registry, Logger: s.deps.Logger, Version: buildinfo.Version(),
	})
	if err != nil {
		a.stop()
		return fmt.Errorf("the agent in this process: %w", err)
	}
	s.agent = a
	return nil
}

// run runs the agent until ctx ends. One that gives up does not end the service:
// other clusters may be joined to it, and what mends the fault, such as `reprieve
// forget` for a cluster that was made anew, is a call of it.
func (a *inProcess) run(ctx context.Context) {
	told := ""
	for {
		a.fault.Store(nil)
		err := a.agent.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it has ended")
		}
		err = fmt.Errorf("the agent in this process: %w", err)
		a.fault.Store(&err)
		if text := err.Error(); text != told {
			told = text
			a.logger.Error("the agent in this process gave up; its cluster is not served until this is mended; it is tried again", "error", err, "every", agentRetry)
		}
		if !a.pause(ctx, agentRetry) {
			return
		}
	}
}

// pause waits and reports whether ctx still stands.
func (a *inProcess) pause(ctx context.Context, d time.Duration) bool {
	over := make(chan struct{})
	timer := a.clock.NewTimer(func() { close(over) })
	defer timer.Stop()
	timer.Reset(a.clock.Now().Add(d))
	select {
	case <-over:
		return true
	case <-ctx.Done():
		return false
	}
}

// ready says why the agent does not do its part. Nobody may call the service less
// for that: people ask it what is wrong.
func (a *inProcess) ready() error {
	if err := a.fault.Load(); err != nil {
		return *err
	}
	return a.agent.Ready()
}

// serve answers the agent's calls until stop.
func (a *inProcess) serve() error {
	if err := a.grpc.Serve(a.lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the agent in this process: %w", err)
	}
	return nil
}

// stop ends the calls that are left once the agent has ended.
func (a *inProcess) stop() {
	_ = a.conn.Close()
	a.grpc.Stop()
}
