// Command reprieved is the service. It holds no logic; see package server.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/server"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(server.Main(os.Args[1:], os.Stdout, os.Stderr, openStore, signals, os.Exit))
}

func openStore(path string, damaged func(where string, err error)) (engine.Store, error) {
	return bolt.Open(bolt.Options{Path: path, Damaged: damaged})
}
