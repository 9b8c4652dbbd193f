package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// admin calls f with the admin and query clients and a bounded context a call.
func (a *app) admin(ctx context.Context, f func(s *session) error) error {
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(&session{
		app: a, ctx: ctx,
		admin:    reprievev1.NewAdminServiceClient(conn),
		query:    reprievev1.NewQueryServiceClient(conn),
		eviction: reprievev1.NewEvictionServiceClient(conn),
	})
}

// onCluster runs a command that acts on one cluster: its argument, or --cluster.
func (a *app) onCluster(f func(s *session, cluster string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cluster, err := a.clusterArg(args)
		if err != nil {
			return err
		}
		return a.admin(cmd.Context(), func(s *session) error { return f(s, cluster) })
	}
}

// session is one command's connection.
type session struct {
	*app
	ctx      context.Context
	admin    reprievev1.AdminServiceClient
	query    reprievev1.QueryServiceClient
	eviction reprievev1.EvictionServiceClient
}

// call bounds one call; a question to the user between two calls does not count.
func call[Req, Resp any](s *session, f func(context.Context, Req) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.flags.timeout)
	defer cancel()
	return f(ctx, req)
}

// confirm shows what an act would do and asks. Without a terminal it refuses, so
// that no script does by accident what only --yes may.
func (s *session) confirm(yes bool, impact string) error {
	if yes {
		return nil
	}
	if !s.Interactive {
		return &hintError{err: usagef("%s", strings.TrimSuffix(impact, ".")), hint: "not confirmed: give --yes to do it without being asked"}
	}
	fmt.Fprintf(s.Err, "%s\nGo on? [y/N] ", cleanText(impact))
	line, err := bufio.NewReader(interruptible(s.ctx, s.In)).ReadString('\n')
	if s.ctx.Err() != nil {
		fmt.Fprintln(s.Err)
		return errInterrupted
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); err == nil && (answer == "y" || answer == "yes") {
		return nil
	}
	return fmt.Errorf("not confirmed: nothing was changed")
}

func addYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do it without being asked; needed where no terminal is")
}

func addNewCluster(cmd *cobra.Command, prepare *bool) {
	cmd.Flags().BoolVar(prepare, "new-cluster", false, "prepare a cluster that the service does not know yet, before its feed joins")
}

// namesShown is how many clusters a message names.
const namesShown = 10

// known refuses a cluster that the service does not know, which is most often a
// mistyped one, unless it is to be prepared. Who may not ask is not kept from
// the act, which has an answer of its own.
func (s *session) known(cluster string, prepare bool) error {
	if prepare {
		return nil
	}
	_, err := call(s, noOpts(s.query.GetCluster), &reprievev1.GetClusterRequest{Cluster: cluster})
	switch {
	case err == nil, client.IsClusterDamaged(err):
		return nil
	case client.IsDenied(err):
		fmt.Fprintf(s.Err, "warning: cannot tell whether the service knows cluster %s: these credentials may not ask\n", cleanText(cluster))
		return nil
	case !client.IsNotFound(err):
		return err
	}
	names := "it knows none"
	r, err := call(s, noOpts(s.query.ListClusters), &reprievev1.ListClustersRequest{})
	switch all := r.GetClusters(); {
	case err != nil:
		names = "which ones it knows these credentials may not ask"
	case len(all) > 0:
		list := make([]string, 0, namesShown)
		for _, c := range all[:min(len(all), namesShown)] {
			list = append(list, c.GetName())
		}
		names = "known: " + strings.Join(list, ", ")
		if more := len(all) - len(list); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
	}
	return &hintError{
		err:  fmt.Errorf("cluster %s is not known to the service (%s)", cluster, names),
		hint: "add --new-cluster to prepare it before its feed joins",
	}
}

// endFlags say when something ends.
type endFlags struct {
	lasting time.Duration
	until   string
}

func (e *endFlags) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&e.lasting, "for", 0, "how long, such as 2h")
	cmd.Flags().StringVar(&e.until, "until", "", "until when, RFC 3339 such as 2026-01-31T08:00:00Z")
}

// end is the instant, nil if none was given.
func (e *endFlags) end(now time.Time) (*timestamppb.Timestamp, error) {
	at, err := instantFlag("--until", e.until)
	switch {
	case err != nil:
		return nil, err
	case e.lasting != 0 && at != nil:
		return nil, usagef("--for and --until exclude each other")
	case e.lasting < 0:
		return nil, usagef("--for must be positive")
	case e.lasting > 0:
		return timestamppb.New(now.Add(e.lasting)), nil
	}
	return at, nil
}

// instantFlag reads an RFC 3339 time, nil if empty.
func instantFlag(name, value string) (*timestamppb.Timestamp, error) {
	if value == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil, usagef("%s %q is no RFC 3339 time, such as 2026-01-31T08:00:00Z", name, value)
	}
	return timestamppb.New(t), nil
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// clusterArg is the cluster of an operator's command: the argument, or --cluster.
func (a *app) clusterArg(args []string) (string, error) {
	if len(args) == 0 {
		return a.flags.needCluster()
	}
	if a.flags.cluster != "" && a.flags.cluster != args[0] {
		return "", usagef("--cluster %s and the argument %s name two clusters", a.flags.cluster, args[0])
	}
	return args[0], nil
}
