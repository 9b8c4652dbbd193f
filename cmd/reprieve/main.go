// Command reprieve is the command line program of Reprieve. It holds no logic;
// see package internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/reprieve-dev/reprieve/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, cli.System(), os.Args[1:])
	stop()
	os.Exit(code)
}
