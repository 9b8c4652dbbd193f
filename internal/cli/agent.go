package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/reprieve-dev/reprieve/client/agent"
	"github.com/reprieve-dev/reprieve/internal/adminhttp"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
)

// agentFlags say how `agent` reaches its cluster and works there.
type agentFlags struct {
	kubeconfig, context string
	id, lease           string
	leaderElect         bool
	workers             int
	qps                 float64
	burst               int
	adminListen         string
	logLevel, logFormat string
}

func newAgent(a *app) *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent --cluster NAME",
		Short: "Join a Kubernetes cluster to the service: feed it and execute in it",
		Long: `Watches the cluster's nodes and pods and feeds them to the service, and carries out the
service's orders there: it deletes or evicts pods by UID, after a look at their node as it
is now, and writes the events TaintManagerEviction on them. Whether anything is evicted is
the cluster's policy with the service: a new cluster is in shadow mode.
Where the policy's node_health is not OFF it watches the nodes' Leases too, and for
ENFORCE it sets nodes' conditions and taints, and the readiness of their pods.

Without --kubeconfig it runs in a pod and uses the pod's service account. Several agents
of one cluster elect a leader by the lease --lease in the namespace -n (default
reprieve-system); the others wait. The cluster's identity is the UID of its namespace
kube-system, to which the service binds the name at the first feed.

An interrupt takes no more orders, waits up to 10 s for those that are out, gives the
lease back, and ends; a second one ends at once.`,
		Example: `  reprieve agent --cluster prod --server reprieve.example:7443 --ca ca.pem --token-file token
  reprieve agent --cluster lab --kubeconfig ~/.kube/config --leader-elect=false`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.agent(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default: the pod's service account)")
	fl.StringVar(&f.context, "context", "", "context of the kubeconfig (default: its current one)")
	fl.StringVar(&f.id, "id", "", "names this agent among the cluster's, uniquely in each run (default: HOST_RANDOM)")
	fl.BoolVar(&f.leaderElect, "leader-elect", true, "share the cluster with other agents; off: this is the only one")
	fl.StringVar(&f.lease, "lease", agent.DefaultLeaseName, "name of the leader's lease")
	fl.IntVar(&f.workers, "workers", agent.DefaultWorkers, "most orders at once, 1 to 10000")
	fl.Float64Var(&f.qps, "kube-api-qps", agent.DefaultQPS, "calls a second for orders; watches, lease and events do not count; 0: no bound")
	fl.IntVar(&f.burst, "kube-api-burst", agent.DefaultBurst, "calls at once for orders")
	fl.StringVar(&f.adminListen, "admin-listen", "127.0.0.1:7481", "address of metrics and health over HTTP; empty: none")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug (every order), info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", "text", "text or json; logs go to standard error")
	return cmd
}

func (a *app) agent(ctx context.Context, f agentFlags) error {
	cluster, err := a.flags.needCluster()
	if err != nil {
		return err
	}
	log, err := newLogger(a.Err, f.logLevel, f.logFormat)
	if err != nil {
		return err
	}
	agent.QuietKlog(log)
	kube, err := agent.KubeConfig(f.kubeconfig, f.context)
	if err != nil {
		return usagef("%v", err)
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	run, err := agent.New(agent.Config{
		Cluster: cluster, Kube: kube, Conn: conn, ID: cmp.Or(f.id, agent.UniqueID()), Version: buildinfo.Version(),
		LeaderElect: f.leaderElect, Namespace: cmp.Or(a.flags.namespace, agent.DefaultNamespace), LeaseName: f.lease,
		Workers: f.workers, QPS: f.qps, Burst: f.burst, Clock: a.Clock, Registry: reg, Logger: log,
	})
	if err != nil {
		return usagef("%v", err)
	}
	return a.runAgent(ctx, run, f.adminListen, adminhttp.Config{Registry: reg, Ready: run.Ready, Logger: log})
}

// runAgent runs the agent and its HTTP side until one of them ends.
func (a *app) runAgent(ctx context.Context, run *agent.Agent, adminListen string, admin adminhttp.Config) error {
	group, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if adminListen != "" {
		lis, err := net.Listen("tcp", adminListen)
		if err != nil {
			return fmt.Errorf("--admin-listen: %w", err)
		}
		srv := adminhttp.NewServer(admin)
		group.Go(func() error {
			if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve admin HTTP: %w", err)
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			return srv.Close()
		})
	}
	group.Go(func() error {
		defer cancel()
		return run.Run(ctx)
	})
	return group.Wait()
}

// newLogger is the log of a program that runs for long.
func newLogger(out io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level %s is unknown; use debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(out, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(out, opts)), nil
	}
	return nil, usagef("--log-format %s is unknown; use text or json", format)
}
