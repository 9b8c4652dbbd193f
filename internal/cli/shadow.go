package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// maxShadowLimit is the contract's bound on the differences of one report.
const maxShadowLimit = 10000

// shadowFlags say what a shadow report compares and when it fails.
type shadowFlags struct {
	since, tolerance time.Duration
	limit            int
	failBelow        float64
}

func newShadowReport(a *app) *cobra.Command {
	var f shadowFlags
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Compare what shadow mode would have evicted with what another controller did",
		Long: `Compares, pod by pod, when the service would have evicted with when another controller,
such as the one built into kube-controller-manager, deleted for taints. It changes nothing
and sets no mode.

WHEN is the pod's due instant here, or when the other one deleted it if it has none; APART
how much later the other one was, negative for earlier; REASON what the records prove:
WAIT_RESTARTED, TOLERATION_CHANGED, DEFAULT_TOLERATION, NOT_A_SUBJECT, TAINT_SWAP, NODE_GONE
and TOLERATION_OVERFLOW are intended differences from the built-in controller, ADOPTION and
POLICY come from this service's set-up, NOT_DELETED_YET does not count, and UNEXPLAINED is
what deserves a look. --fail-below ends with exit code 1 if fewer agree.`,
		Example: `  reprieve shadow report --cluster prod
  reprieve shadow report --cluster prod --since 1h --fail-below 99`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := a.shadowRequest(f)
			if err != nil {
				return err
			}
			return a.query(cmd.Context(), func(ctx context.Context, q reprievev1.QueryServiceClient) error {
				r, err := q.GetShadowReport(ctx, req)
				if err != nil {
					return err
				}
				return a.printShadowReport(r.GetReport(), f.failBelow)
			})
		},
	}
	fl := cmd.Flags()
	fl.DurationVar(&f.since, "since", 24*time.Hour, "compare this time up to now")
	fl.DurationVar(&f.tolerance, "tolerance", 2*time.Second, "instants no farther apart agree")
	fl.IntVar(&f.limit, "limit", 100, "most differences to print, up to 10000; all are counted")
	fl.Float64Var(&f.failBelow, "fail-below", 0, "exit with code 1 if the agreement is below this percentage, or no pod counts")
	return cmd
}

func (a *app) shadowRequest(f shadowFlags) (*reprievev1.GetShadowReportRequest, error) {
	cluster, err := a.flags.needCluster()
	switch {
	case err != nil:
		return nil, err
	case f.since <= 0:
		return nil, usagef("--since must be positive, such as 24h")
	case f.tolerance < 0 || f.tolerance > time.Hour:
		return nil, usagef("--tolerance must be between 0s and 1h")
	case f.limit < 1 || f.limit > maxShadowLimit:
		return nil, usagef("--limit must be between 1 and %d", maxShadowLimit)
	case f.failBelow < 0 || f.failBelow > 100:
		return nil, usagef("--fail-below is a percentage, from 0 to 100")
	}
	return &reprievev1.GetShadowReportRequest{
		Cluster: cluster, Since: timestamppb.New(a.Clock.Now().Add(-f.since)),
		Tolerance: durationpb.New(f.tolerance), MaxDifferences: uint32(f.limit),
	}, nil
}

// printShadowReport prints a report and fails if its agreement is below a percentage.
func (a *app) printShadowReport(r *reprievev1.ShadowReport, failBelow float64) error {
	var err error
	if a.flags.output == outputTable {
		err = writeShadowReport(a.Out, r, a.columns())
	} else {
		err = a.printMessage(r)
	}
	switch {
	case err != nil || failBelow == 0:
		return err
	case r.Agreement == nil:
		return fmt.Errorf("no pod to compare in this time, so --fail-below %v is not met", failBelow)
	case r.GetAgreement()*100 < failBelow:
		return fmt.Errorf("agreement is %s, below --fail-below %v", agreementWord(r), failBelow)
	}
	return nil
}

// agreementWord is the share of pods that agreed, never rounded up.
func agreementWord(r *reprievev1.ShadowReport) string {
	if r.Agreement == nil {
		return "nothing to compare"
	}
	return fmt.Sprintf("%.2f%%", float64(int64(r.GetAgreement()*10000+1e-6))/100)
}

func writeShadowReport(out io.Writer, r *reprievev1.ShadowReport, width int) error {
	s, t := newSheet(out), r.GetTotals()
	s.row("Cluster", r.GetCluster())
	s.row("Time", instant(r.GetSince())+" to "+instant(r.GetUntil()))
	if r.GetRecordsTruncated() {
		s.row("", "more records than one report takes: the time begins later than asked for")
	}
	agreement := agreementWord(r)
	if r.Agreement != nil {
		agreement += fmt.Sprintf(" (%s within %s)", plural(t.GetAgreed(), "pod", "pods"), r.GetTolerance().AsDuration())
	}
	s.row("Agreement", agreement)
	s.row("Here", plural(t.GetWouldEvict(), "pod", "pods")+" would have been evicted")
	s.row("Elsewhere", plural(t.GetEvictedElsewhere(), "pod was", "pods were")+" deleted by another controller")
	s.row("Differences", fmt.Sprintf("%d earlier elsewhere, %d later, %d only here, %d only elsewhere",
		t.GetEarlier(), t.GetLater(), t.GetOnlyHere(), t.GetOnlyElsewhere()))
	if t.GetAgreed()+t.GetEarlier()+t.GetLater() > 0 {
		s.row("Apart", fmt.Sprintf("p50 %s, p99 %s, max %s", exactly(r.GetDifferenceP50()), exactly(r.GetDifferenceP99()), exactly(r.GetDifferenceMax())))
	}
	var reasons []string
	for _, c := range r.GetReasons() {
		reasons = append(reasons, fmt.Sprintf("%d %s", c.GetCount(), word(c.GetReason(), "REASON_")))
	}
	s.block("Reasons", reasons...)
	if len(r.GetDifferences()) == 0 {
		return nil
	}
	if _, err := io.WriteString(out, "\n"+shadowRows(r.GetDifferences(), width)); err != nil || !r.GetDifferencesTruncated() {
		return err
	}
	_, err := fmt.Fprintf(out, "\nThese are %d of the differences; --limit prints more.\n", len(r.GetDifferences()))
	return err
}

// shadowRows is a table with each row's explanation below it.
func shadowRows(list []*reprievev1.ShadowDifference, width int) string {
	t := &table{columns: []column{{title: "POD", min: 16}, {title: "NODE", min: 8, nodes: true}, {title: "WHEN"}, {title: "APART"}, {title: "REASON"}}}
	for _, d := range list {
		when := d.GetDueTime()
		if when == nil {
			when = d.GetObservedDeletionTime()
		}
		apart := word(d.GetKind(), "KIND_")
		if d.GetDifference() != nil {
			apart = exactly(d.GetDifference())
		}
		t.add(podWord(d.GetNamespace(), d.GetPod()), d.GetNode(), instant(when), apart, word(d.GetReason(), "REASON_"))
	}
	lines := strings.Split(strings.TrimSuffix(t.render(width), "\n"), "\n")
	var b strings.Builder
	b.WriteString(lines[0] + "\n")
	for i, d := range list {
		b.WriteString(lines[i+1] + "\n")
		for _, l := range wrap(cleanText(d.GetExplanation()), max(width, tableWidth)-4) {
			b.WriteString("    " + l + "\n")
		}
	}
	return b.String()
}

// exactly is a duration to the millisecond.
func exactly(d *durationpb.Duration) string { return d.AsDuration().Round(time.Millisecond).String() }

// observedRows tell of an eviction whose due instant moved, or whose pod another
// controller deleted.
func observedRows(p *sheet, e *reprievev1.Eviction) {
	if e.GetFirstDueTime() != nil {
		p.row("First due", instant(e.GetFirstDueTime())+", moved since")
	}
	if e.GetObservedDeletionTime() == nil {
		return
	}
	p.row("Deleted", "by another controller, seen "+instant(e.GetObservedDeletionTime())+" ("+e.GetObservedDisruptionReason()+")")
	if e.GetObservedExplanation() != "" {
		p.row("Would stay", e.GetObservedExplanation())
	}
}
