package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/internal/tolerations"
)

const (
	// roleBackfill is the ClusterRole of `backfill tolerations`.
	roleBackfill = "reprieve-tolerations-backfill"
	// maxPatchRate is the most patches a second.
	maxPatchRate = 1000
	// failuresShown is how many pods that failed a table names.
	failuresShown = 20
)

func newBackfill(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Add to pods what they should have had when they were created",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("say what: backfill tolerations") },
	}
	cmd.AddCommand(newBackfillTolerations(a))
	return cmd
}

// backfillFlags say what to add, and how.
type backfillFlags struct {
	pods                  podFlags
	notReady, unreachable time.Duration
	rate                  float64
	apply                 bool
}

func newBackfillTolerations(a *app) *cobra.Command {
	var f backfillFlags
	cmd := &cobra.Command{
		Use:   "tolerations",
		Short: "Give pods the default tolerations of a node that is not ready or unreachable",
		Long: `Reads all pods from the API server, not from the service, and adds to those that nothing
keeps on a node with the taint not-ready:NoExecute or unreachable:NoExecute what the
admission plugin DefaultTolerationSeconds would have added. It only tells what it would do,
until --apply is given.

A pod is patched only as it was read, by its UID and resourceVersion; one that has changed
is read again, and one that has its tolerations by then is left alone. Nothing else of it
changes. Kubernetes lets tolerations be added to a pod, and not be taken away again.

Run it again after an interrupt or a failure: it goes on with what is still missing. Pods
made anew come from their owner's template, so mend that too, or the plugin. Exit code 1:
a pod could not be mended, or the run did not come to its end.`,
		Example: `  reprieve backfill tolerations --kubeconfig ~/.kube/config
  reprieve backfill tolerations --kubeconfig ~/.kube/config -n shop --apply --rate 5`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.backfill(cmd.Context(), f)
		},
	}
	f.pods.register(cmd)
	fl := cmd.Flags()
	fl.DurationVar(&f.notReady, "not-ready-toleration", 300*time.Second, "how long pods stay on a node that is not ready")
	fl.DurationVar(&f.unreachable, "unreachable-toleration", 300*time.Second, "how long pods stay on a node that is unreachable")
	fl.Float64Var(&f.rate, "rate", 20, "most patches a second, up to 1000")
	fl.BoolVar(&f.apply, "apply", false, "do it; without it nothing is changed")
	return cmd
}

func (f *backfillFlags) check() error {
	for _, d := range []struct {
		flag string
		wait time.Duration
	}{{"--not-ready-toleration", f.notReady}, {"--unreachable-toleration", f.unreachable}} {
		if d.wait < time.Second || d.wait%time.Second != 0 {
			return usagef("%s %s: a toleration has whole seconds, at least 1s", d.flag, d.wait)
		}
	}
	if !(f.rate > 0 && f.rate <= maxPatchRate) {
		return usagef("--rate %g is not above 0 and at most %d patches a second", f.rate, maxPatchRate)
	}
	return nil
}

func (a *app) backfill(ctx context.Context, f backfillFlags) error {
	src, tick, err := a.podSource(f.pods, "looked at")
	if err != nil {
		return err
	}
	plan, err := tolerations.MakePlan(ctx, src)
	tick.end()
	if err != nil {
		role := roleAudit // All that a dry run needs.
		if f.apply {
			role = roleBackfill
		}
		return kubeError(err, role)
	}
	waits := tolerations.Waits{NotReady: f.notReady, Unreachable: f.unreachable}
	if f.apply {
		tick = a.ticker("done with")
		err = plan.Apply(ctx, waits, tolerations.Pace{PerSecond: f.rate, Progress: tick.show})
		tick.end()
	}
	report := plan.Report(!f.apply)
	if perr := a.printBackfill(report, waits); perr != nil {
		return perr
	}
	switch {
	case errors.Is(err, context.Canceled):
		return errInterrupted
	case err != nil:
		return againError(kubeError(err, roleBackfill))
	case report.Failed > 0:
		return againError(&hintError{
			err:  fmt.Errorf("%s could not be mended", plural(uint64(report.Failed), "pod", "pods")),
			hint: "see to what refused them",
		})
	}
	return nil
}

// againError says what to do about a run that did not come to its end.
func againError(err error) error {
	const again = "run it again to go on with what is still missing"
	var h *hintError
	if errors.As(err, &h) {
		return &hintError{err: err, hint: h.hint + ", then " + again}
	}
	return &hintError{err: err, hint: again}
}

func (a *app) printBackfill(r *tolerations.Backfill, w tolerations.Waits) error {
	if a.flags.output != outputTable {
		return a.printValue(r)
	}
	if len(r.Work) == 0 {
		_, err := fmt.Fprintf(a.Out, "No pod lacks tolerations, of %d looked at.\n", r.Looked)
		return err
	}
	if _, err := io.WriteString(a.Out, backfillTable(r, w).render(a.columns())); err != nil {
		return err
	}
	if r.DryRun {
		_, err := fmt.Fprintf(a.Out, "Would add tolerations to %s, of %d looked at. Nothing was changed: --apply does it.\n",
			plural(uint64(r.Lacking), "pod", "pods"), r.Looked)
		return err
	}
	shown := 0
	for _, g := range r.Work {
		for _, f := range g.Failed {
			if shown++; shown <= failuresShown {
				fmt.Fprintf(a.Out, "failed: %s: %s\n", cleanText(podWord(g.Namespace, f.Pod.Name)), cleanText(f.Error))
			}
		}
	}
	if more := shown - failuresShown; more > 0 {
		fmt.Fprintf(a.Out, "and %d more that failed: -o json names them\n", more)
	}
	line := fmt.Sprintf("Added tolerations to %d of %s", r.Mended, plural(uint64(r.Lacking), "pod", "pods"))
	for _, n := range []struct {
		count int
		text  string
	}{{r.Whole, "had them meanwhile"}, {r.Gone, "gone meanwhile"}, {r.Failed, "failed"}, {r.Left, "not tried"}} {
		if n.count > 0 {
			line += fmt.Sprintf(", %d %s", n.count, n.text)
		}
	}
	_, err := fmt.Fprintln(a.Out, line+".")
	return err
}

func backfillTable(r *tolerations.Backfill, w tolerations.Waits) *table {
	t := &table{columns: []column{{title: "NAMESPACE", min: 10}, {title: "OWNER", min: 20}, {title: "PODS"}, {title: "ADDS", min: 32}}}
	if !r.DryRun {
		t.columns = append(t.columns, column{title: "ADDED"}, column{title: "FAILED"})
	}
	for _, g := range r.Work {
		adds := make([]string, 0, len(g.Adds))
		for _, key := range g.Adds {
			adds = append(adds, fmt.Sprintf("%s %ds", shortKey(key), int64(w.Of(key)/time.Second)))
		}
		row := []string{g.Namespace, ownerWord(g.Owner, g.Pods), fmt.Sprint(len(g.Pods)), strings.Join(adds, ", ")}
		if !r.DryRun {
			row = append(row, fmt.Sprint(g.Mended), fmt.Sprint(len(g.Failed)))
		}
		t.add(row...)
	}
	return t
}

// ticker tells at a terminal how far a long work is.
type ticker struct {
	app   *app
	what  string
	next  int
	shown bool
}

func (a *app) ticker(what string) *ticker { return &ticker{app: a, what: what} }

// show tells of about each hundredth of the work.
func (t *ticker) show(done, total int) {
	if !t.app.Interactive || done < t.next && done < total {
		return
	}
	t.next, t.shown = done+max(total/100, 1), true
	fmt.Fprintf(t.app.Err, "\r%s %d of %d pods", t.what, done, total)
}

// end ends the line, if there is one.
func (t *ticker) end() {
	if t.shown {
		fmt.Fprintln(t.app.Err)
		t.shown = false
	}
}
