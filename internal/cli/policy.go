package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Read or set a cluster's policy",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("say what: policy get or policy set") },
	}
	cmd.AddCommand(newPolicyGet(a), newPolicySet(a))
	return cmd
}

func newPolicyGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get [CLUSTER]",
		Short: "The policy in force, and which fields operators set",
		Args:  cobra.MaximumNArgs(1),
		RunE: a.onCluster(func(s *session, cluster string) error {
			r, err := call(s, noOpts(s.admin.GetPolicy), &reprievev1.GetPolicyRequest{Cluster: cluster})
			if err != nil {
				return err
			}
			if a.flags.output != outputTable {
				return a.printMessage(r)
			}
			for _, l := range folded(policyLines(r.GetPolicy(), r.GetStored())) {
				fmt.Fprintln(a.Out, cleanText(l))
			}
			_, err = fmt.Fprintf(a.Out, "# etag %s\n", r.GetEtag())
			return err
		}),
	}
}

// policySetFlags say what `policy set` sets, and how.
type policySetFlags struct {
	unset      []string
	file, etag string
	force      bool
	act        policyAct
}

func newPolicySet(a *app) *cobra.Command {
	var f policySetFlags
	cmd := &cobra.Command{
		Use:   "set [CLUSTER] FIELD=VALUE...",
		Short: "Set or unset policy fields; tells the impact first",
		Long: `Stores policy fields, which override the service's configuration field by field; --unset
gives a field back to the configuration. It asks the service how many pods would become
due by the change and, if there are any or the mode becomes ENFORCE, asks first.
A cluster that the service does not know is refused without --new-cluster.

Fields: mode (shadow, enforce), default_not_ready_toleration and
default_unreachable_toleration (durations), disable_default_tolerations (true, false),
rate (ORDERS_A_SECOND/BURST), unlimited_rate, method (delete, evict, evict_then_delete),
budget_wait (duration), ignored_taint_keys and excluded_namespaces (lists: a,b,c),
comparison_operators, blast_radius (MAX_NODE_SHARE/WINDOW/MIN_NODES),
disable_blast_radius, node_health (off, observe, enforce), node_health_figures
(FIGURE=VALUE,...; figures left out have their defaults). Durations are written 90s, 5m or
1h30m.

node_health=enforce is refused while another node lifecycle controller is seen at work in
the cluster: switch that off first, or give --force.`,
		Example: `  reprieve policy set prod default_not_ready_toleration=10m rate=20/50
  reprieve policy set prod ignored_taint_keys=example.com/drain,example.com/spot
  reprieve policy set prod node_health=observe node_health_figures=grace_period=40s
  reprieve policy set prod --unset rate
  reprieve policy set prod -f policy.yaml --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var named []string
			if len(args) > 0 && !strings.Contains(args[0], "=") && (a.flags.cluster == "" || a.flags.cluster == args[0]) {
				named, args = args[:1], args[1:]
			}
			cluster, err := a.clusterArg(named)
			if err != nil {
				return err
			}
			req, err := a.policyRequest(cmd.Context(), cluster, args, f)
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(s *session) error { return s.setPolicy(req, f.act) })
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.unset, "unset", nil, "give these fields back to the configuration")
	fl.StringVarP(&f.file, "filename", "f", "", "YAML or JSON file with the fields, as policy get -o yaml shows under stored; - is the input")
	fl.StringVar(&f.etag, "etag", "", "only if the policy still has this etag, as policy get shows it")
	addForce(cmd, &f.force)
	fl.BoolVar(&f.act.dryRun, "dry-run", false, "only tell the impact")
	addYes(cmd, &f.act.yes)
	addNewCluster(cmd, &f.act.prepare)
	return cmd
}

func addForce(cmd *cobra.Command, force *bool) {
	cmd.Flags().BoolVar(force, "force", false, "enforce node health beside another controller that is seen at work: two writers of the same taints")
}

// policyRequest is what a file, FIELD=VALUE arguments and --unset ask for together.
func (a *app) policyRequest(ctx context.Context, cluster string, args []string, f policySetFlags) (*reprievev1.SetPolicyRequest, error) {
	req := &reprievev1.SetPolicyRequest{Cluster: cluster, Policy: &reprievev1.ClusterPolicy{}, UpdateMask: &fieldmaskpb.FieldMask{}, Etag: f.etag, Force: f.force}
	if f.file != "" {
		if err := a.policyFromFile(ctx, req, f.file); err != nil {
			return nil, err
		}
	}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, usagef("%q is no FIELD=VALUE", arg)
		}
		if err := setPolicyField(req, name, value); err != nil {
			return nil, err
		}
	}
	for _, name := range f.unset {
		fd, err := policyField(name)
		if err != nil {
			return nil, err
		}
		req.UpdateMask.Paths = append(req.UpdateMask.Paths, string(fd.Name()))
	}
	return req, checkMask(req.GetUpdateMask().GetPaths())
}

func checkMask(paths []string) error {
	if len(paths) == 0 {
		return usagef("nothing to set: give FIELD=VALUE, --unset or -f")
	}
	seen := map[string]bool{}
	for _, p := range paths {
		if seen[p] {
			return usagef("the field %s is given twice", p)
		}
		seen[p] = true
	}
	return nil
}

func (a *app) policyFromFile(ctx context.Context, req *reprievev1.SetPolicyRequest, file string) error {
	b, err := a.readInput(ctx, file)
	if err != nil {
		return err
	}
	paths, err := parsePolicy(b, req.GetPolicy())
	if err != nil {
		return usagef("%s: %v", file, err)
	}
	req.UpdateMask.Paths = append(req.UpdateMask.Paths, paths...)
	return nil
}

// readInput reads a small file, or the input if it is "-".
func (a *app) readInput(ctx context.Context, file string) ([]byte, error) {
	inputs, closeAll, err := a.openInputs(ctx, []string{file})
	if err != nil {
		return nil, err
	}
	defer closeAll()
	return readAll(inputs[0].r)
}
