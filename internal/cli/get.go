package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// listPage is how many evictions are asked for at a time.
const listPage = 1000

func newGet(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "List evictions, clusters, nodes, reprieves or pauses",
		Example: `  reprieve get evictions --cluster prod        what leaves, when and why
  reprieve get evictions -w                    the same, live, with countdowns
  reprieve get clusters -o json                feeds, modes and counts for a program`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("%q cannot be listed; use evictions, clusters, nodes, reprieves or pauses", args[0])
			}
			return usagef("say what: evictions, clusters, nodes, reprieves or pauses")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(newGetEvictions(a), newGetClusters(a), newGetNodes(a), newGetReprieves(a), newGetPauses(a))
	return cmd
}

// query is a connection with the query client and a bounded context.
func (a *app) query(ctx context.Context, f func(ctx context.Context, q reprievev1.QueryServiceClient) error) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, a.flags.timeout)
	defer cancel()
	return f(ctx, reprievev1.NewQueryServiceClient(conn))
}

// evictionFlags select evictions.
type evictionFlags struct {
	node, pod, uid, requester string
	states, holds             []string
	within, since             time.Duration
	limit                     int
	watch                     bool
}

func newGetEvictions(a *app) *cobra.Command {
	var f evictionFlags
	cmd := &cobra.Command{
		Use:     "evictions [ID]",
		Aliases: []string{"eviction", "ev"},
		Short:   "Open evictions by due instant: what leaves, when and why",
		Long: `Lists open evictions, those due first on top. WHEN counts down to the due
instant. STATE is WAITING (its wait runs), DUE (with the hold that keeps it back, and
how long that lasts if known), DELIVERED (an executor has the order), RECALLING,
CONFIRMING (evicted; the feed has yet to show it). "stuck" means 10 attempts or more.
An ID, as -o json shows it, prints one eviction, closed ones too.`,
		Example: `  reprieve get evictions --cluster prod -n web --within 10m
  reprieve get evictions --state due --hold no-executor
  reprieve get evictions prod/1042 -o yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.getEviction(cmd.Context(), args[0])
			}
			if f.watch {
				return a.watchEvictions(cmd.Context(), f)
			}
			return a.listEvictions(cmd.Context(), f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.node, "node", "", "only pods of this node")
	fl.StringVar(&f.pod, "pod", "", "only pods of this name")
	fl.StringVar(&f.uid, "uid", "", "only the pod of this UID")
	fl.StringVar(&f.requester, "requester", "", "only those that this party requested")
	fl.StringSliceVar(&f.states, "state", nil, "only these states: waiting, due, delivered, recalling, confirming")
	fl.StringSliceVar(&f.holds, "hold", nil, "only these holds, such as paused, reprieved, no-executor, rate-limited")
	fl.DurationVar(&f.within, "within", 0, "only those due within this time from now, such as 10m")
	fl.IntVar(&f.limit, "limit", 0, "most to print; 0 means all")
	fl.BoolVarP(&f.watch, "watch", "w", false, "stay and show changes: a live table at a terminal, else a line each")
	return cmd
}

func (a *app) getEviction(ctx context.Context, id string) error {
	return a.query(ctx, func(ctx context.Context, q reprievev1.QueryServiceClient) error {
		r, err := q.GetEviction(ctx, &reprievev1.GetEvictionRequest{Id: id})
		if err != nil {
			return err
		}
		if a.flags.output != outputTable {
			return a.printMessage(r.GetEviction())
		}
		a.printEviction(r.GetEviction())
		return nil
	})
}

func (a *app) listRequest(f evictionFlags) (*reprievev1.ListEvictionsRequest, error) {
	req := &reprievev1.ListEvictionsRequest{
		Cluster: a.flags.cluster, Namespace: a.flags.namespace, Node: f.node, Pod: f.pod, Uid: f.uid, Requester: f.requester, PageSize: listPage,
	}
	for _, s := range f.states {
		v, err := parseWord("--state", "EVICTION_STATE_", s, reprievev1.EvictionState_value)
		if err != nil {
			return nil, err
		}
		req.States = append(req.States, reprievev1.EvictionState(v))
	}
	for _, s := range f.holds {
		v, err := parseWord("--hold", "HOLD_REASON_", s, reprievev1.HoldReason_value)
		if err != nil {
			return nil, err
		}
		req.Holds = append(req.Holds, reprievev1.HoldReason(v))
	}
	if f.within < 0 || f.limit < 0 {
		return nil, usagef("--within and --limit must not be negative")
	}
	if f.within > 0 {
		req.DueBefore = timestamppb.New(a.Clock.Now().Add(f.within))
	}
	return req, nil
}

// collect reads all pages, up to limit evictions if that is positive.
func collect(ctx context.Context, q reprievev1.QueryServiceClient, req *reprievev1.ListEvictionsRequest, limit int) ([]*reprievev1.Eviction, error) {
	var list []*reprievev1.Eviction
	for {
		if limit > 0 {
			req.PageSize = uint32(min(limit-len(list), listPage))
		}
		r, err := q.ListEvictions(ctx, req)
		if err != nil {
			return nil, err
		}
		list = append(list, r.GetEvictions()...)
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" || (limit > 0 && len(list) >= limit) {
			return list, nil
		}
	}
}

func (a *app) listEvictions(ctx context.Context, f evictionFlags) error {
	req, err := a.listRequest(f)
	if err != nil {
		return err
	}
	return a.query(ctx, func(ctx context.Context, q reprievev1.QueryServiceClient) error {
		list, err := collect(ctx, q, req, f.limit)
		if err != nil {
			return err
		}
		if a.flags.output != outputTable {
			return printItems(a, list)
		}
		return a.printTable(evictionTable(list, a.flags.cluster == "", a.Clock.Now()), "No open evictions.")
	})
}

// printEviction tells all of one eviction that people ask for.
func (a *app) printEviction(e *reprievev1.Eviction) {
	now := a.Clock.Now()
	p := newSheet(a.Out)
	p.row("Eviction", e.GetId())
	p.row("Pod", podWord(e.GetNamespace(), e.GetPod())+" (uid "+e.GetUid()+")")
	p.row("Node", e.GetNode())
	if e.GetState() == reprievev1.EvictionState_EVICTION_STATE_CLOSED {
		p.row("Closed", closeWord(e)+", "+ago(e.GetCloseTime(), now)+" ("+instant(e.GetCloseTime())+")")
	} else {
		p.row("State", stateWord(e, now))
	}
	p.row("Due", dueInstant(e.GetDueTime(), now))
	observedRows(p, e)
	p.row("Cause", causeWord(e.GetCause()))
	if t := e.GetCause().GetTaint(); t != nil {
		p.row("Wait from", instant(t.GetStart())+" (taint "+instant(t.GetTaintStart())+", bound "+instant(e.GetBoundTime())+")")
	}
	for _, r := range e.GetRequests() {
		p.row("Request", r.GetRequester()+"/"+r.GetRequestId()+": "+r.GetReason())
	}
	if e.GetFirstSendTime() != nil {
		p.row("Sent", instant(e.GetFirstSendTime())+", "+late(e)+" after due")
	}
	if d := e.GetDelivery(); d != nil {
		p.row("Executor", d.GetExecutorId()+", answer counts until "+instant(d.GetDeadline()))
	}
	if e.GetLastOutcome() != reprievev1.Outcome_OUTCOME_UNSPECIFIED {
		p.row("Last answer", word(e.GetLastOutcome(), "OUTCOME_")+" "+e.GetLastMessage()+fmt.Sprintf(" (%d failed so far)", e.GetAttempts()))
	}
}
