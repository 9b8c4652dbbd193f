package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/reprieve-dev/reprieve/internal/tolerations"
)

// roleAudit is the ClusterRole of `audit tolerations`.
const roleAudit = "reprieve-tolerations-audit"

// podFlags say which pods of an API server a command looks at.
type podFlags struct {
	kube       kubeFlags
	selector   string
	comparison bool
}

func (f *podFlags) register(cmd *cobra.Command) {
	f.kube.register(cmd)
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, such as app=web")
	cmd.Flags().BoolVar(&f.comparison, "comparison-operators", false, "Gt and Lt are on, in the API server and in the policy; else they match nothing")
}

// source is what the flags name. what names the pods' progress at a terminal.
func (a *app) podSource(f podFlags, what string) (tolerations.Source, *ticker, error) {
	if _, err := labels.Parse(f.selector); err != nil {
		return tolerations.Source{}, nil, usagef("--selector: %v", err)
	}
	k, err := f.kube.client()
	if err != nil {
		return tolerations.Source{}, nil, err
	}
	tick := a.ticker(what)
	return tolerations.Source{
		Pods: k.CoreV1(), Namespace: a.flags.namespace, Selector: f.selector, ComparisonOperators: f.comparison,
		Timeout: a.flags.timeout, Progress: tick.show,
	}, tick, nil
}

func newAudit(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find pods whose tolerations will not do what their owners expect",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("say what: audit tolerations") },
	}
	cmd.AddCommand(newAuditTolerations(a))
	return cmd
}

func newAuditTolerations(a *app) *cobra.Command {
	var f podFlags
	var only, failOn []string
	cmd := &cobra.Command{
		Use:   "tolerations",
		Short: "What a cluster's pods tolerate when their node is not ready or unreachable",
		Long: `Reads all pods from the API server, not from the service, and lists by namespace and owner:

  LEAVES_AT_ONCE  nothing tolerates not-ready:NoExecute or unreachable:NoExecute: the
                  pod was created without the admission plugin DefaultTolerationSeconds,
                  or has a toleration that only looks like one
  CANNOT_MATCH    a toleration that matches no taint: one of those two with a value, or
                  Gt and Lt where they are off
  HIDDEN          a toleration whose wait never counts, since an earlier one with another
                  wait matches all that it does
  NEVER_ENDS      the pod stays on such a node for ever; of DaemonSets' pods, whose
                  controller wants that, it is not told

Finished, terminating and mirror pods are left out. It changes nothing; "reprieve backfill
tolerations" mends LEAVES_AT_ONCE. The others are for the owner's pod template. With
--fail-on the exit code is 1 if a pod of such a kind was found.`,
		Example: `  reprieve audit tolerations --kubeconfig ~/.kube/config
  reprieve audit tolerations --kubeconfig ~/.kube/config -n shop --only leaves-at-once -o json
  reprieve audit tolerations --fail-on leaves-at-once,cannot-match`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kinds, err := parseKinds("--only", only, tolerations.Kinds)
			if err != nil {
				return err
			}
			bad, err := parseKinds("--fail-on", failOn, nil)
			if err != nil {
				return err
			}
			src, tick, err := a.podSource(f, "looked at")
			if err != nil {
				return err
			}
			audit, err := tolerations.RunAudit(cmd.Context(), src, kinds)
			tick.end()
			if err != nil {
				return kubeError(err, roleAudit)
			}
			if err := a.printAudit(audit, kinds); err != nil {
				return err
			}
			if slices.ContainsFunc(bad, func(k tolerations.Kind) bool { return audit.Counts[k] > 0 }) {
				return &silentError{code: exitFailure}
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringSliceVar(&only, "only", nil, "only these findings (default: all)")
	cmd.Flags().StringSliceVar(&failOn, "fail-on", nil, "exit code 1 if one of these is found; they must be listed")
	return cmd
}

// parseKinds reads findings as flags name them; all is what an absent flag means.
func parseKinds(flag string, given []string, all []tolerations.Kind) ([]tolerations.Kind, error) {
	if len(given) == 0 {
		return all, nil
	}
	var kinds []tolerations.Kind
	for _, g := range given {
		k := tolerations.Kind(strings.ToUpper(strings.ReplaceAll(g, "-", "_")))
		if !slices.Contains(tolerations.Kinds, k) {
			return nil, usagef("%s %q is unknown; use leaves-at-once, cannot-match, hidden or never-ends", flag, g)
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

func (a *app) printAudit(audit *tolerations.Audit, kinds []tolerations.Kind) error {
	if a.flags.output != outputTable {
		return a.printValue(audit)
	}
	if err := a.printTable(auditTable(audit.Groups), "Nothing was found."); err != nil {
		return err
	}
	found := make([]string, 0, len(kinds))
	for _, k := range tolerations.Kinds {
		if slices.Contains(kinds, k) {
			found = append(found, fmt.Sprintf("%d %s", audit.Counts[k], k))
		}
	}
	_, err := fmt.Fprintf(a.Out, "%s looked at, %d of them exempt: %s.\n",
		plural(uint64(audit.Looked), "pod", "pods"), audit.Exempt, strings.Join(found, ", "))
	return err
}

func auditTable(groups []tolerations.Group) *table {
	t := &table{columns: []column{{title: "NAMESPACE", min: 10}, {title: "OWNER", min: 16}, {title: "PODS"}, {title: "FINDING"}, {title: "WHAT", min: 36}}}
	for _, g := range groups {
		t.add(g.Namespace, ownerWord(g.Owner, g.Pods), fmt.Sprint(len(g.Pods)), string(g.Kind), findingWord(g.Finding))
	}
	return t
}

// ownerWord names an owner; of pods that have none the first.
func ownerWord(o tolerations.Owner, pods []tolerations.Pod) string {
	if o.Kind != "" {
		return o.Kind + "/" + o.Name
	}
	s := "Pod/" + pods[0].Name
	if more := len(pods) - 1; more > 0 {
		s += fmt.Sprintf(" +%d", more)
	}
	return s
}

func findingWord(f tolerations.Finding) string {
	switch f.Kind {
	case tolerations.LeavesAtOnce:
		return "on " + shortKeys(f.Taints)
	case tolerations.Hidden:
		return shortToleration(f.Toleration) + ", by " + shortToleration(f.HiddenBy)
	default:
		return shortToleration(f.Toleration)
	}
}

func shortKeys(keys []string) string {
	short := make([]string, len(keys))
	for i, k := range keys {
		short[i] = shortKey(k)
	}
	return strings.Join(short, ", ")
}

// shortKey leaves out the prefix of Kubernetes' own taints.
func shortKey(key string) string { return strings.TrimPrefix(key, "node.kubernetes.io/") }

// shortToleration writes a toleration of NoExecute taints: key=value, or the key alone
// where every value will do.
func shortToleration(t *corev1.Toleration) string {
	s := shortKey(t.Key)
	switch t.Operator {
	case corev1.TolerationOpExists:
		if s == "" {
			s = "any key"
		}
	case "", corev1.TolerationOpEqual:
		s += "=" + t.Value
	default:
		s += " " + string(t.Operator) + " " + t.Value
	}
	if t.TolerationSeconds != nil {
		return fmt.Sprintf("%s %ds", s, *t.TolerationSeconds)
	}
	return s + " for ever"
}
