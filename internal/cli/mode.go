package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newEnforce(a *app) *cobra.Command {
	var act policyAct
	var force bool
	cmd := &cobra.Command{
		Use:   "enforce [CLUSTER]",
		Short: "Send a cluster's due evictions (mode ENFORCE); tells the impact first",
		Long: `Sets the cluster's mode to ENFORCE: due evictions are sent to executors, at the policy's
rate. It first asks the service how many pods would become due at once, shows that, and
asks; --yes goes on without asking. A cluster that the service does not know is refused
without --new-cluster, and one whose policy has node_health=enforce, while another node
lifecycle controller is seen at work in it, without --force.`,
		Example: `  reprieve enforce prod --dry-run
  reprieve enforce prod`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.onCluster(func(s *session, cluster string) error {
			req := modeRequest(cluster, reprievev1.Mode_MODE_ENFORCE)
			req.Force = force
			return s.setPolicy(req, act)
		}),
	}
	addForce(cmd, &force)
	cmd.Flags().BoolVar(&act.dryRun, "dry-run", false, "only tell the impact")
	addYes(cmd, &act.yes)
	addNewCluster(cmd, &act.prepare)
	return cmd
}

func newShadow(a *app) *cobra.Command {
	var prepare bool
	cmd := &cobra.Command{
		Use:   "shadow [CLUSTER]",
		Short: "Decide and record, send nothing (mode SHADOW)",
		Long: `Sets the cluster's mode to SHADOW: all is decided and recorded, nothing is sent, and
orders that are out are recalled. What would have been sent is closed as WOULD_EVICT. A
cluster that the service does not know is refused without --new-cluster.

"reprieve shadow report" compares instead what was recorded with what another controller
evicted, and sets nothing. A cluster named report is set by --cluster report.`,
		Example: `  reprieve shadow prod
  reprieve shadow report --cluster prod`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.onCluster(func(s *session, cluster string) error {
			return s.setPolicy(modeRequest(cluster, reprievev1.Mode_MODE_SHADOW), policyAct{yes: true, prepare: prepare})
		}),
	}
	addNewCluster(cmd, &prepare)
	cmd.AddCommand(newShadowReport(a))
	return cmd
}

func modeRequest(cluster string, mode reprievev1.Mode) *reprievev1.SetPolicyRequest {
	return &reprievev1.SetPolicyRequest{
		Cluster: cluster, Policy: &reprievev1.ClusterPolicy{Mode: &mode}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"mode"}},
	}
}

// policyAct is how a change of policy is made.
type policyAct struct {
	yes, dryRun bool
	prepare     bool // the cluster need not be known
}

// setPolicy tells the impact of a change of policy, asks if pods would leave for
// it, and makes it. The etag that the impact was told for goes with the change,
// so that nobody agrees to one policy and gets another.
func (s *session) setPolicy(req *reprievev1.SetPolicyRequest, act policyAct) error {
	if err := s.known(req.GetCluster(), act.prepare); err != nil {
		return err
	}
	if req.GetEtag() == "" {
		p, err := call(s, noOpts(s.admin.GetPolicy), &reprievev1.GetPolicyRequest{Cluster: req.GetCluster()})
		if err != nil && statusOf(err) != exitNotFound {
			return err
		}
		req.Etag = p.GetEtag()
	}
	req.ValidateOnly = true
	r, err := call(s, noOpts(s.admin.SetPolicy), req)
	if act.prepare && client.IsClusterUnknown(err) {
		// Nothing can become due in a cluster that is not there yet.
		r, err = &reprievev1.SetPolicyResponse{}, nil
	}
	if err != nil {
		return err
	}
	for _, w := range r.GetWarnings() {
		fmt.Fprintf(s.Err, "warning: %s\n", cleanText(w))
	}
	enforces := req.GetPolicy().GetMode() == reprievev1.Mode_MODE_ENFORCE
	pods := plural(r.GetWouldBecomeDue(), "pod", "pods")
	if !act.dryRun {
		if enforces || r.GetWouldBecomeDue() > 0 {
			impact := fmt.Sprintf("This change to cluster %s makes %s due at once.", req.GetCluster(), pods)
			if enforces && r.GetPolicy().GetNodeHealth() == reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE {
				impact += " Node health is enforced from then on: nodes get conditions and taints."
			}
			if err := s.confirm(act.yes, impact); err != nil {
				return err
			}
		}
		req.ValidateOnly = false
		if r, err = call(s, noOpts(s.admin.SetPolicy), req); err != nil {
			return err
		}
	}
	if s.flags.output != outputTable {
		return s.printMessage(r)
	}
	if act.dryRun {
		_, err = fmt.Fprintf(s.Out, "Would set the policy of %s; %s would become due at once. Nothing was changed.\n", req.GetCluster(), pods)
		return err
	}
	_, err = fmt.Fprintf(s.Out, "Set the policy of %s%s: mode %s; %s became due.\n",
		req.GetCluster(), besidesMode(req.GetUpdateMask().GetPaths()), modeWord(r.GetPolicy().GetMode()), pods)
	return err
}

// besidesMode names the fields that were set, unless that is the mode alone, which is
// told anyway.
func besidesMode(fields []string) string {
	if slices.Equal(fields, []string{"mode"}) {
		return ""
	}
	return " (" + strings.Join(fields, ", ") + ")"
}

func newForget(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget CLUSTER",
		Short: "Remove a cluster and all its records, history too",
		Long: `Removes a cluster from the service with its waits, reprieves, policy and history. A feed
that is still attached brings it back as a new cluster, so stop that first. It shows what
would be lost and asks; --yes goes on without asking.`,
		Example: `  reprieve forget staging`,
		Args:    cobra.ExactArgs(1),
		RunE:    a.onCluster(func(s *session, cluster string) error { return s.forget(cluster, yes) }),
	}
	addYes(cmd, &yes)
	return cmd
}

func (s *session) forget(cluster string, yes bool) error {
	r, err := call(s, noOpts(s.query.GetCluster), &reprievev1.GetClusterRequest{Cluster: cluster})
	if err != nil {
		return err
	}
	var open uint64
	for _, n := range r.GetCluster().GetOpenEvictions() {
		open += n.GetCount()
	}
	impact := fmt.Sprintf("Forgetting cluster %s (feed %s) removes %s, %s and its history for good.", cluster,
		feedWord(r.GetCluster()), plural(open, "open eviction", "open evictions"), plural(r.GetCluster().GetReprieves(), "reprieve", "reprieves"))
	if err := s.confirm(yes, impact); err != nil {
		return err
	}
	f, err := call(s, noOpts(s.admin.ForgetCluster), &reprievev1.ForgetClusterRequest{Cluster: cluster, Confirm: cluster})
	if err != nil {
		return err
	}
	if s.flags.output != outputTable {
		return s.printMessage(f)
	}
	_, err = fmt.Fprintf(s.Out, "Forgot cluster %s.\n", cluster)
	return err
}
