package server

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// Exit codes of the program.
const (
	exitOK     = 0
	exitFailed = 1
	// exitUsage means that the command line or the configuration is bad.
	exitUsage = 2
	// exitForced means that a second signal ended the program at once.
	exitForced = 130
)

// Parts are what the program is put together from besides this package.
type Parts struct {
	OpenStore OpenStore
	NewAgent  NewAgent
}

// Process is what the program gets from its surroundings.
type Process struct {
	// Args are the command line's, without the program's name.
	Args           []string
	Stdout, Stderr io.Writer
	// Signals ask the program to end, and SIGHUP to read the files of certificates
	// and tokens again; nil: none come.
	Signals <-chan os.Signal
	// Exit ends the process at once.
	Exit func(code int)
}

// Main is the program: it reads the command line, runs the service until the
// first signal, and returns the exit code. A second signal exits at once.
func Main(p Process, parts Parts) int {
	inv, err := ParseArgs(p.Args, p.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return fail(p.Stderr, exitUsage, err)
	case inv.ShowVersion:
		// Whoever does not read it does not want it.
		_, _ = fmt.Fprintln(p.Stdout, "reprieved", buildinfo.Version())
		return exitOK
	}
	if err := inv.Config.Validate(); err != nil {
		return fail(p.Stderr, exitUsage, fmt.Errorf("the configuration is not valid:\n%w", err))
	}
	if inv.ValidateOnly {
		for _, w := range inv.Config.Warnings() {
			_, _ = fmt.Fprintln(p.Stdout, "warning:", w)
		}
		_, _ = fmt.Fprintln(p.Stdout, "the configuration is valid")
		return exitOK
	}
	svc, err := New(inv.Config, Deps{
		Clock: clock.NewReal(), OpenStore: parts.OpenStore, NewAgent: parts.NewAgent, Logger: newLogger(&inv.Config, p.Stderr), Registry: newRegistry(),
		CommitRest: CommitRest,
	})
	if err != nil {
		return fail(p.Stderr, exitUsage, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() { obey(p.Signals, done, svc.Reload, []func(){cancel, func() { p.Exit(exitForced) }}) })
	defer func() {
		// What comes after the end is no longer this run's to take.
		close(done)
		signals.Wait()
	}()
	if err := svc.Run(ctx); err != nil {
		return fail(p.Stderr, exitFailed, err)
	}
	return exitOK
}

// obey reloads at each SIGHUP, and does what any other signal asks for: the first
// act at the first, the next at the second.
func obey(signals <-chan os.Signal, done <-chan struct{}, reload func(), acts []func()) {
	// Apart, because a file may take for ever: the signals after it count all the same.
	wanted := make(chan struct{}, 1)
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for range wanted {
			reload()
		}
	})
	defer reloads.Wait()
	defer close(wanted)
	for len(acts) > 0 {
		select {
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				select {
				case wanted <- struct{}{}:
				default: // One is to come, and reads the files as they are then.
				}
				continue
			}
			acts[0]()
			acts = acts[1:]
		case <-done:
			return
		}
	}
}

func fail(stderr io.Writer, code int, err error) int {
	_, _ = fmt.Fprintln(stderr, "reprieved:", err)
	return code
}

func newLogger(c *Config, out io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.logLevel()}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, opts))
	}
	return slog.New(slog.NewTextHandler(out, opts))
}

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	return reg
}
