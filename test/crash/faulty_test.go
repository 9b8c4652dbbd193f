//go:build crash

package crash

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/server"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/fault"
)

// faultyVariable has this test binary be the service, with a store that fails at one commit: EFFECT:N.
const faultyVariable = "REPRIEVE_TEST_FAULTY_STORE"

// TestMain is the tests, or the service with a store that fails. No unprivileged way makes a real file fail with EIO, so
// the failure is put between engine and store.
func TestMain(m *testing.M) {
	spec := os.Getenv(faultyVariable)
	if spec == "" {
		os.Exit(m.Run())
	}
	var effect fault.Effect
	var at int64
	if _, err := fmt.Sscanf(spec, "%d:%d", &effect, &at); err != nil {
		fmt.Fprintln(os.Stderr, faultyVariable, spec, err)
		os.Exit(2)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	os.Exit(server.Main(server.Process{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Signals: signals, Exit: os.Exit},
		server.Parts{OpenStore: failOnce(effect, at)}))
}

// oneFault fails one commit.
type oneFault struct {
	effect fault.Effect
	left   atomic.Int64
}

// Next implements [fault.Plan].
func (p *oneFault) Next(op fault.Op) fault.Fault {
	if op != fault.Commit || p.left.Add(-1) != 0 {
		return fault.Fault{}
	}
	return fault.Fault{Effect: p.effect, Part: 0.5}
}

// failOnce opens real files whose nth commit fails.
func failOnce(effect fault.Effect, at int64) server.OpenStore {
	plan := &oneFault{effect: effect}
	plan.left.Store(at)
	return func(ctx context.Context, s server.StoreSettings) (engine.Store, error) {
		return fault.New(func(context.Context) (engine.Store, error) {
			return bolt.Open(ctx, bolt.Options{Path: s.Path, Damaged: s.Damaged})
		}, plan)(context.Background())
	}
}
