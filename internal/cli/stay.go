package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newGrant(a *app) *cobra.Command {
	var uid, reason string
	var end endFlags
	cmd := &cobra.Command{
		Use:   "grant [NAMESPACE/]POD",
		Short: "Grant one pod a reprieve: a durable stay with a reason and an end",
		Long: `Gives one pod (its UID; a replacement of the same name is not covered) a stay. When the
command returns, no order for the pod starts any more; one that was out has been recalled.
An end is required: --for or --until.`,
		Example: `  reprieve grant web/frontend-7d9c5 --cluster prod --for 2h --reason "finishing an import"`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, ref, err := a.podOf(args, uid)
			if err != nil {
				return err
			}
			until, err := end.end(a.Clock.Now())
			if err != nil {
				return err
			}
			if until == nil {
				return usagef("a reprieve needs an end: give --for or --until")
			}
			return a.admin(cmd.Context(), func(s *session) error {
				r, err := call(s, noOpts(s.admin.GrantReprieve), &reprievev1.GrantReprieveRequest{Cluster: cluster, Pod: ref, Reason: reason, EndTime: until})
				if err != nil {
					return err
				}
				if a.flags.output != outputTable {
					return a.printMessage(r.GetReprieve())
				}
				v := r.GetReprieve()
				_, err = fmt.Fprintf(a.Out, "Granted %s (uid %s) a reprieve; ends %s.\n", podWord(v.GetNamespace(), v.GetPod()), v.GetUid(), ends(v.GetEndTime(), a.Clock.Now()))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&uid, "uid", "", "the pod's UID")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people (required)")
	_ = cmd.MarkFlagRequired("reason")
	end.register(cmd)
	return cmd
}

// podOf is the cluster and the pod that a command names.
func (a *app) podOf(args []string, uid string) (string, *reprievev1.PodRef, error) {
	cluster, err := a.flags.needCluster()
	if err != nil {
		return "", nil, err
	}
	ref, err := a.podRef(args, uid)
	return cluster, ref, err
}

func newRevoke(a *app) *cobra.Command {
	var uid string
	cmd := &cobra.Command{
		Use:     "revoke [NAMESPACE/]POD",
		Short:   "Take a reprieve back",
		Example: `  reprieve revoke web/frontend-7d9c5 --cluster prod`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, ref, err := a.podOf(args, uid)
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(s *session) error {
				r, err := call(s, noOpts(s.admin.RevokeReprieve), &reprievev1.RevokeReprieveRequest{Cluster: cluster, Pod: ref})
				if err != nil {
					return err
				}
				if a.flags.output != outputTable {
					return a.printMessage(r)
				}
				_, err = fmt.Fprintf(a.Out, "Revoked the reprieve of %s.\n", refWord(ref))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&uid, "uid", "", "the pod's UID")
	return cmd
}

func refWord(ref *reprievev1.PodRef) string {
	if ref.GetName() == "" {
		return "uid " + ref.GetUid()
	}
	return podWord(ref.GetNamespace(), ref.GetName())
}

// requestFlags name a request.
type requestFlags struct{ id, requester string }

func (f *requestFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.id, "request-id", "", "names the request among the requester's, for retries and withdrawal (required)")
	cmd.Flags().StringVar(&f.requester, "requester", "", "who asks, such as the name of a federation backend (required)")
	_ = cmd.MarkFlagRequired("request-id")
	_ = cmd.MarkFlagRequired("requester")
}

func newRequest(a *app) *cobra.Command {
	var f requestFlags
	var uid, reason, notBefore string
	cmd := &cobra.Command{
		Use:   "request [NAMESPACE/]POD",
		Short: "Ask that a pod leaves, whatever its taints",
		Long: `Records a request for a pod's eviction. Pauses, reprieves, the mode and the rate apply.
The same request id again changes nothing, so that a retry is safe.`,
		Example: `  reprieve request web/frontend-7d9c5 --cluster prod --requester karmada --request-id move-17`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, ref, err := a.podOf(args, uid)
			if err != nil {
				return err
			}
			at, err := instantFlag("--not-before", notBefore)
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(s *session) error {
				r, err := call(s, noOpts(s.eviction.RequestEviction), &reprievev1.RequestEvictionRequest{
					Cluster: cluster, RequestId: f.id, Requester: f.requester, Pod: ref, NotBefore: at, Reason: reason,
				})
				if err != nil {
					return err
				}
				return s.printAnswer("Requested", r.GetEviction())
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&uid, "uid", "", "the pod's UID")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	cmd.Flags().StringVar(&notBefore, "not-before", "", "not before this time, RFC 3339 (default: now)")
	return cmd
}

func newWithdraw(a *app) *cobra.Command {
	var f requestFlags
	cmd := &cobra.Command{
		Use:     "withdraw",
		Short:   "Take a request back; taints and other requests stand",
		Example: `  reprieve withdraw --cluster prod --requester karmada --request-id move-17`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := a.flags.needCluster()
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(s *session) error {
				r, err := call(s, noOpts(s.eviction.WithdrawEviction), &reprievev1.WithdrawEvictionRequest{Cluster: cluster, RequestId: f.id, Requester: f.requester})
				if err != nil {
					return err
				}
				return s.printAnswer("Withdrew a request for", r.GetEviction())
			})
		},
	}
	f.register(cmd)
	return cmd
}

// printAnswer tells how an eviction stands after an act.
func (s *session) printAnswer(verb string, e *reprievev1.Eviction) error {
	if s.flags.output != outputTable {
		return s.printMessage(e)
	}
	now := s.Clock.Now()
	stand := stateWord(e, now) + ", " + countdown(e.GetDueTime(), now)
	if e.GetState() == reprievev1.EvictionState_EVICTION_STATE_CLOSED {
		stand = "CLOSED " + closeWord(e)
	}
	_, err := fmt.Fprintf(s.Out, "%s\n", cleanText(fmt.Sprintf("%s %s: eviction %s is %s.", verb, podWord(e.GetNamespace(), e.GetPod()), e.GetId(), stand)))
	return err
}
