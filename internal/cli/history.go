package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newHistory(a *app) *cobra.Command {
	var f evictionFlags
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Closed evictions of a cluster, newest first",
		Long: `Lists closed evictions, newest first. RESULT is why each was closed; LATE how long
after its due instant its first order was sent ("-": none was sent); FAILS the orders
that were denied, failed or left unanswered. Evictions that were sent are kept 7 days,
those cancelled before they were due 24 hours.`,
		Example: `  reprieve history --cluster prod --since 1h
  reprieve history --cluster prod -n web --pod frontend-7d9c5 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.flags.needCluster(); err != nil {
				return err
			}
			req, err := a.listRequest(f)
			if err != nil {
				return err
			}
			req.States = []reprievev1.EvictionState{reprievev1.EvictionState_EVICTION_STATE_CLOSED}
			if f.since < 0 {
				return usagef("--since must not be negative")
			}
			if f.since > 0 {
				req.ClosedAfter = timestamppb.New(a.Clock.Now().Add(-f.since))
			}
			return a.query(cmd.Context(), func(ctx context.Context, q reprievev1.QueryServiceClient) error {
				list, err := collect(ctx, q, req, f.limit)
				if err != nil {
					return err
				}
				if a.flags.output != outputTable {
					return printItems(a, list)
				}
				return a.printTable(historyTable(list, a.Clock.Now()), "No closed evictions.")
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.node, "node", "", "only pods of this node")
	fl.StringVar(&f.pod, "pod", "", "only pods of this name")
	fl.StringVar(&f.uid, "uid", "", "only the pod of this UID")
	fl.StringVar(&f.requester, "requester", "", "only those that this party requested")
	fl.DurationVar(&f.since, "since", 0*time.Second, "only those closed within this time, such as 1h")
	fl.IntVar(&f.limit, "limit", 100, "most to print; 0 means all")
	return cmd
}
