package cli

import (
	"context"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// pollEvery is how often lists without a stream of changes are read for -w.
const pollEvery = 2 * time.Second

// listing is a list that is read whole.
type listing[T proto.Message] struct {
	fetch   func(ctx context.Context, q reprievev1.QueryServiceClient) ([]T, error)
	table   func(list []T, now time.Time) *table
	key     func(T) string
	steady  func(T) // clears what changes all the time, before comparing
	nothing string
	live    bool
}

func addWatch(cmd *cobra.Command, target *bool) {
	cmd.Flags().BoolVarP(target, "watch", "w", false, "stay and show changes, read every 2 s")
}

// show prints the list once, or again and again.
func (l *listing[T]) show(ctx context.Context, a *app) error {
	if !l.live {
		return a.query(ctx, func(ctx context.Context, q reprievev1.QueryServiceClient) error {
			list, err := l.fetch(ctx, q)
			if err != nil {
				return err
			}
			if a.flags.output != outputTable {
				return printItems(a, list)
			}
			return a.printTable(l.table(list, a.Clock.Now()), l.nothing)
		})
	}
	tick := ticks(ctx, a.Clock, pollEvery)
	seen, rows, drawn := map[string]T{}, 0, a.draws()
	for reached := false; ; reached = true {
		var list []T
		err := a.query(ctx, func(ctx context.Context, q reprievev1.QueryServiceClient) (err error) {
			list, err = l.fetch(ctx, q)
			return err
		})
		switch {
		case err != nil:
		case drawn:
			err = a.redraw(&rows, l.table(list, a.Clock.Now()), "")
		default:
			err = l.changes(a, list, seen)
		}
		if reached && interrupted(ctx, err) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		}
	}
}

// changes prints what has changed since it was seen.
func (l *listing[T]) changes(a *app, list []T, seen map[string]T) error {
	var changed []T
	headed := len(seen) > 0
	for _, m := range list {
		c := proto.Clone(m).(T)
		if l.steady != nil {
			l.steady(c)
		}
		if old, ok := seen[l.key(m)]; !ok || !proto.Equal(old, c) {
			changed = append(changed, m)
			seen[l.key(m)] = c
		}
	}
	if a.flags.output != outputTable {
		for _, m := range changed {
			if err := a.printLine(m); err != nil {
				return err
			}
		}
		return nil
	}
	if len(changed) == 0 {
		return nil
	}
	text := l.table(changed, a.Clock.Now()).render(a.columns())
	if headed {
		_, text, _ = strings.Cut(text, "\n")
	}
	_, err := io.WriteString(a.Out, text)
	return err
}

// steadyCluster clears ages, those in the texts of warnings too.
func steadyCluster(c *reprievev1.Cluster) {
	c.FeedAge, c.LastLiveTime = nil, nil
	for i, w := range c.GetWarnings() {
		c.Warnings[i] = strings.Map(func(r rune) rune {
			if unicode.IsDigit(r) || strings.ContainsRune("dhms.", r) {
				return -1
			}
			return r
		}, w)
	}
}

// steadyNode clears what each heartbeat changes.
func steadyNode(n *reprievev1.NodeView) {
	h := n.GetHealth()
	if h == nil {
		return
	}
	h.HeartbeatTime = nil
	if !h.GetSilent() {
		h.SilentTime = nil
	}
}

func newGetClusters(a *app) *cobra.Command {
	l := &listing[*reprievev1.Cluster]{
		table: clusterTable, key: (*reprievev1.Cluster).GetName, nothing: "No clusters yet: none has ever fed this service.",
		steady: steadyCluster,
	}
	cmd := &cobra.Command{
		Use:     "clusters [NAME]",
		Aliases: []string{"cluster"},
		Short:   "Clusters with feed, mode, counts and warnings; one in full by name",
		Long: `Lists clusters. FEED is the feed's state and the time since its last message;
WAIT, DUE and OUT count open evictions (OUT: an executor has the order); OLDEST is how
long the oldest due one has been due; EXEC is the number of executors attached.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.oneCluster(cmd, args)
			if err != nil {
				return err
			}
			if len(args) == 1 && !l.live {
				return a.getCluster(cmd.Context(), name)
			}
			l.fetch = func(ctx context.Context, q reprievev1.QueryServiceClient) ([]*reprievev1.Cluster, error) {
				if name != "" {
					r, err := q.GetCluster(ctx, &reprievev1.GetClusterRequest{Cluster: name})
					return []*reprievev1.Cluster{r.GetCluster()}, err
				}
				r, err := q.ListClusters(ctx, &reprievev1.ListClustersRequest{})
				return r.GetClusters(), err
			}
			return l.show(cmd.Context(), a)
		},
	}
	addWatch(cmd, &l.live)
	return cmd
}

// oneCluster is the cluster that a list of clusters is narrowed to; empty for
// all. REPRIEVE_CLUSTER does not count: the list is where its value comes from.
func (a *app) oneCluster(cmd *cobra.Command, args []string) (string, error) {
	given := cmd.Flags().Changed("cluster")
	switch {
	case given:
		return a.clusterArg(args)
	case len(args) == 1:
		return args[0], nil
	}
	return "", nil
}

func newGetNodes(a *app) *cobra.Command {
	var all bool
	l := &listing[*reprievev1.NodeView]{
		table: nodeTable, key: (*reprievev1.NodeView).GetName, nothing: "No node has a NoExecute taint; --all shows the others.", steady: steadyNode,
	}
	cmd := &cobra.Command{
		Use:     "nodes",
		Aliases: []string{"node"},
		Short:   "Nodes with NoExecute taints and when these began to count; their health",
		Long: `Lists nodes that have NoExecute taints, one row a taint, with the start from which pods'
waits count. Where the policy's node_health is on, READY is the condition as the service
takes it and for how long it is not True, TAINT also shows those that follow from the
node's conditions, and CHANGE when one comes or goes, or what holds it: "would", where
node health only observes. Nodes whose health is to change something are listed too.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := a.flags.needCluster()
			if err != nil {
				return err
			}
			if all {
				l.nothing = "The cluster has no nodes."
			}
			l.fetch = func(ctx context.Context, q reprievev1.QueryServiceClient) ([]*reprievev1.NodeView, error) {
				r, err := q.ListNodes(ctx, &reprievev1.ListNodesRequest{Cluster: cluster, All: all})
				return r.GetNodes(), err
			}
			return l.show(cmd.Context(), a)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "nodes without NoExecute taints too")
	addWatch(cmd, &l.live)
	return cmd
}

func newGetReprieves(a *app) *cobra.Command {
	l := &listing[*reprievev1.Reprieve]{table: reprieveTable, key: (*reprievev1.Reprieve).GetUid, nothing: "No reprieves."}
	cmd := &cobra.Command{
		Use:     "reprieves",
		Aliases: []string{"reprieve"},
		Short:   "Stays that operators granted, by their end",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := a.flags.needCluster()
			if err != nil {
				return err
			}
			l.fetch = func(ctx context.Context, q reprievev1.QueryServiceClient) ([]*reprievev1.Reprieve, error) {
				r, err := q.ListReprieves(ctx, &reprievev1.ListReprievesRequest{Cluster: cluster})
				return r.GetReprieves(), err
			}
			return l.show(cmd.Context(), a)
		},
	}
	addWatch(cmd, &l.live)
	return cmd
}

func newGetPauses(a *app) *cobra.Command {
	l := &listing[*reprievev1.Pause]{table: pauseTable, key: (*reprievev1.Pause).GetId, nothing: "No pauses."}
	cmd := &cobra.Command{
		Use:     "pauses",
		Aliases: []string{"pause"},
		Short:   "Pauses in force",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := a.flags.needCluster()
			if err != nil {
				return err
			}
			l.fetch = func(ctx context.Context, q reprievev1.QueryServiceClient) ([]*reprievev1.Pause, error) {
				r, err := q.GetCluster(ctx, &reprievev1.GetClusterRequest{Cluster: cluster})
				return r.GetCluster().GetPauses(), err
			}
			return l.show(cmd.Context(), a)
		},
	}
	addWatch(cmd, &l.live)
	return cmd
}
