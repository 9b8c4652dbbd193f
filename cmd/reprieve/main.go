// Command reprieve is the command line program of Reprieve. It holds no logic;
// see package internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/reprieve-dev/reprieve/internal/cli"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

func main() {
	if code, asked := bolt.CheckMain(os.Args[1:], os.Stdout, os.Stderr); asked {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.
	code := cli.Main(ctx, cli.System(), os.Args[1:])
	stop()
	os.Exit(code)
}
