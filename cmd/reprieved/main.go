// Command reprieved is the service. It holds no logic; see package server.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/reprieve-dev/reprieve/client/agent"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/server"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

func main() {
	if code, asked := bolt.CheckMain(os.Args[1:], os.Stdout, os.Stderr); asked {
		os.Exit(code)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(server.Main(
		server.Process{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Signals: signals, Exit: os.Exit},
		server.Parts{OpenStore: openStore, NewAgent: newAgent},
	))
}

func openStore(ctx context.Context, s server.StoreSettings) (engine.Store, error) {
	check, err := bolt.SelfCheck()
	if err != nil {
		return nil, err
	}
	return bolt.Open(ctx, bolt.Options{
		Path: s.Path, Room: s.Room, Damaged: s.Damaged, CheckCommand: check, SetAside: s.SetAside, WasSetAside: s.WasSetAside, Migrated: s.Migrated,
	})
}

func newAgent(s server.AgentSettings) (server.Agent, error) {
	kube, err := agent.KubeConfig(s.Kubeconfig, "")
	if err != nil {
		return nil, err
	}
	agent.QuietKlog(s.Logger)
	return agent.New(agent.Config{
		Cluster: s.Cluster, Kube: kube, Conn: s.Conn, ID: agent.UniqueID(), Version: s.Version, Clock: s.Clock, Registry: s.Registry, Logger: s.Logger,
		Workers: s.Workers, QPS: s.KubeAPIQPS, Burst: s.KubeAPIBurst,
	})
}
