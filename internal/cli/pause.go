package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newPause(a *app) *cobra.Command {
	var node, reason string
	var prepare bool
	var end endFlags
	cmd := &cobra.Command{
		Use:   "pause [CLUSTER]",
		Short: "Hold what falls due in a cluster, on a node or in a namespace",
		Long: `Holds evictions of a cluster, of one node (--node) or of one namespace (-n). When the
command returns, the pause is on disk, no order of its scope starts any more, and those
that were out have been recalled. Waits go on; what falls due stays due and is released
by resume, or when the pause ends. A pause of the same scope is replaced. A cluster that
the service does not know is refused without --new-cluster.`,
		Example: `  reprieve pause prod --reason "network works" --for 2h
  reprieve pause prod --node n7 --reason "disk being looked at"
  reprieve pause prod -n payments --reason "release night"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := a.pausedCluster(args, node)
			if err != nil {
				return err
			}
			until, err := end.end(a.Clock.Now())
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(s *session) error {
				if err := s.known(cluster, prepare); err != nil {
					return err
				}
				r, err := call(s, noOpts(s.admin.PauseEvictions), &reprievev1.PauseEvictionsRequest{
					Cluster: cluster, Node: node, Namespace: a.flags.namespace, Reason: reason, EndTime: until,
				})
				if err != nil {
					return err
				}
				if a.flags.output != outputTable {
					return a.printMessage(r.GetPause())
				}
				p := r.GetPause()
				_, err = fmt.Fprintf(a.Out, "Paused %s in %s (pause %s); ends %s.\n", scopeWord(p.GetNode(), p.GetNamespace()), p.GetCluster(), p.GetId(), ends(p.GetEndTime(), a.Clock.Now()))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "only pods of this node")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people (required)")
	_ = cmd.MarkFlagRequired("reason")
	end.register(cmd)
	addNewCluster(cmd, &prepare)
	return cmd
}

func newResume(a *app) *cobra.Command {
	var node, id string
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "resume [CLUSTER]",
		Short: "End a pause; tells first what that releases",
		Long: `Ends the pause of a cluster, of one node (--node), of one namespace (-n), or the one
that --id names. It first asks the service how many due evictions nothing but the pause
keeps back, shows that, and asks; --yes goes on without asking.`,
		Example: `  reprieve resume prod
  reprieve resume prod --node n7 --yes
  reprieve resume prod --dry-run`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := a.pausedCluster(args, node)
			if err != nil {
				return err
			}
			req := &reprievev1.ResumeEvictionsRequest{Cluster: cluster, Node: node, Namespace: a.flags.namespace, PauseId: id}
			return a.admin(cmd.Context(), func(s *session) error { return s.resume(req, yes, dryRun) })
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the pause of this node")
	cmd.Flags().StringVar(&id, "id", "", "the pause of this id; the scope then does not count")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would be released")
	addYes(cmd, &yes)
	return cmd
}

func (s *session) resume(req *reprievev1.ResumeEvictionsRequest, yes, dryRun bool) error {
	req.ValidateOnly = true
	r, err := call(s, noOpts(s.admin.ResumeEvictions), req)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s in %s", scopeWord(req.GetNode(), req.GetNamespace()), req.GetCluster())
	if req.GetPauseId() != "" {
		what = fmt.Sprintf("pause %s in %s", req.GetPauseId(), req.GetCluster())
	}
	if !dryRun {
		impact := fmt.Sprintf("Resuming %s releases %s.", what, plural(r.GetReleased(), "due eviction", "due evictions"))
		if err := s.confirm(yes, impact); err != nil {
			return err
		}
		req.ValidateOnly = false
		if r, err = call(s, noOpts(s.admin.ResumeEvictions), req); err != nil {
			return err
		}
	}
	if s.flags.output != outputTable {
		return s.printMessage(r)
	}
	verb := "Resumed"
	if dryRun {
		verb = "Would resume"
	}
	_, err = fmt.Fprintf(s.Out, "%s %s: %s released.\n", verb, what, plural(r.GetReleased(), "due eviction", "due evictions"))
	return err
}

// pausedCluster is the cluster that a pause or its end is for, if the scope is one.
func (a *app) pausedCluster(args []string, node string) (string, error) {
	if node != "" && a.flags.namespace != "" {
		return "", usagef("--node and -n exclude each other: a pause has one scope")
	}
	return a.clusterArg(args)
}
