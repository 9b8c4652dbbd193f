package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// executeFlags say what `execute` does with orders.
type executeFlags struct {
	id              string
	clusters        []string
	capacity        uint32
	answer, command string
	count           int
}

func newExecute(a *app) *cobra.Command {
	var f executeFlags
	cmd := &cobra.Command{
		Use:   "execute",
		Short: "Be an executor: print orders, and answer them or run a command for each",
		Long: `Attaches as an executor through the Evict RPC, as every executor does, and prints
orders and recalls as they come. Without --answer and --exec nothing is answered: each
order runs into its deadline (30 s) and is sent again, which counts as a failed attempt.

--answer OUTCOME answers every order so: evicted, gone, superseded, stale, blocked,
denied, failed. Nothing is done to any pod; it is for trials.

--exec CMD runs CMD with sh for each order, with the order as JSON on its input and
REPRIEVE_CLUSTER, REPRIEVE_NAMESPACE, REPRIEVE_POD, REPRIEVE_UID, REPRIEVE_NODE,
REPRIEVE_METHOD, REPRIEVE_ATTEMPT and REPRIEVE_EVICTION_ID set. Its exit code is the
answer: 0 EVICTED, 10 GONE, 11 SUPERSEDED, 12 STALE, 13 BLOCKED, 14 DENIED,
15 RECALLED (nothing was done), any other FAILED; the last line it prints is the
message. A recall ends CMD with SIGTERM, and after 5 s with SIGKILL; if CMD dies of that
the answer is RECALLED. A CMD that traps SIGTERM answers with its exit code as ever, so
that one which has acted can say so. Act on the given UID only.

An interrupt takes no more orders, waits up to --timeout for those that are out, and
ends with exit code 0, or 1 if the service was never reached; a second one ends at once.`,
		Example: `  reprieve execute --clusters prod --answer evicted
  reprieve execute --exec 'kubectl delete pod "$REPRIEVE_POD" -n "$REPRIEVE_NAMESPACE" --wait=false'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.execute(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.id, "id", "", "names this executor; a newer one of the same id takes over (default: cli-HOST-PID)")
	fl.StringSliceVar(&f.clusters, "clusters", nil, "clusters to serve (default: --cluster, or all that the credentials allow)")
	fl.Uint32Var(&f.capacity, "capacity", 10, "most orders of one cluster at once, 1 to 10000")
	fl.StringVar(&f.answer, "answer", "", "answer every order with this outcome")
	fl.StringVar(&f.command, "exec", "", "command to run for each order")
	fl.IntVar(&f.count, "count", 0, "end after this many orders; 0 means never")
	return cmd
}

func (a *app) execute(ctx context.Context, f executeFlags) error {
	run := &execution{app: a, flags: f, enough: make(chan struct{})}
	if f.answer != "" && f.command != "" {
		return usagef("--answer and --exec exclude each other")
	}
	if f.answer != "" {
		v, err := parseWord("--answer", "OUTCOME_", f.answer, reprievev1.Outcome_value)
		if err != nil {
			return err
		}
		if run.answer = reprievev1.Outcome(v); run.answer == reprievev1.Outcome_OUTCOME_NO_ANSWER {
			return usagef("--answer no-answer: leave --answer out instead")
		}
	}
	if f.count < 0 {
		return usagef("--count must not be negative")
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	x, err := client.NewExecutor(conn, client.ExecutorConfig{
		ID: cmp.Or(f.id, cliName()), Clusters: a.executeClusters(f), Capacity: f.capacity, Handler: run.handle,
		Version: buildinfo.Version(), NoAutoExtend: f.command == "", Logger: slog.New(slog.NewTextHandler(a.Err, nil)),
	})
	if err != nil {
		return usagef("%v", err)
	}
	// The run outlives the interrupt, so that what is out can be answered.
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- x.Run(runCtx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	case <-run.enough:
	}
	if x.Status().Streams == 0 {
		err = errInterrupted
	} else if run.answers() {
		err = a.drain(runCtx, x)
	}
	cancel()
	<-ended //nolint:errcheck // its error is the cancellation's
	return err
}

// drain waits up to --timeout for the orders that are out. Without any, and
// without a stream, there is nobody to tell.
func (a *app) drain(ctx context.Context, x *client.Executor) error {
	n := x.Outstanding()
	if n == 0 && !x.Status().Connected {
		return nil
	}
	if n > 0 {
		fmt.Fprintf(a.Err, "reprieve: no more orders; waiting for %s still out\n", plural(uint64(n), "order", "orders"))
	}
	ctx, stop := context.WithTimeout(ctx, a.flags.timeout)
	defer stop()
	err := x.Drain(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("orders were still out after --timeout; the service will send them again")
	}
	return err
}

func (a *app) executeClusters(f executeFlags) []string {
	switch {
	case len(f.clusters) > 0:
		return f.clusters
	case a.flags.cluster != "":
		return []string{a.flags.cluster}
	default:
		return []string{"*"}
	}
}

// cliName names this process among executors and feeders.
func cliName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("cli-%s-%d", strings.ToLower(host), os.Getpid())
}

// execution is one run of `execute`.
type execution struct {
	*app
	flags  executeFlags
	answer reprievev1.Outcome
	enough chan struct{} // closed after --count orders

	mu   sync.Mutex // guards the output and what follows
	seen int
}

func (x *execution) answers() bool {
	return x.flags.command != "" || x.answer != reprievev1.Outcome_OUTCOME_UNSPECIFIED
}

// handle is the executor's handler: it prints the order and what came of it.
func (x *execution) handle(ctx context.Context, t *client.Task) client.Result {
	x.print(orderEvent(t))
	defer x.countOrder()
	var r client.Result
	switch {
	case x.flags.command != "":
		r = x.runCommand(ctx, t)
	case x.answers():
		r = client.Result{Outcome: x.answer, Message: "answered by hand"}
	default:
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), client.ErrRecalled) {
			x.print(recallEvent(t))
		}
		// Nothing was done to the pod; after the deadline this changes nothing.
		return client.Result{Outcome: reprievev1.Outcome_OUTCOME_RECALLED, Message: "only printed"}
	}
	if errors.Is(context.Cause(ctx), client.ErrRecalled) {
		x.print(recallEvent(t))
	}
	x.print(answerEvent(t, r))
	return r
}

func (x *execution) countOrder() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seen++
	if x.seen == x.flags.count {
		close(x.enough)
	}
}
