package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func newBlast(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "blast",
		Short: "Taint keys that came to too many nodes at once: list, release or reject",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("say what: blast list, blast release or blast reject")
		},
	}
	cmd.AddCommand(newBlastList(a), newBlastRelease(a), newBlastReject(a))
	return cmd
}

func newBlastList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list [CLUSTER]",
		Short: "What the blast radius holds, by which taint key, on which nodes and since when",
		Long: `Lists the taint keys that came to more nodes within the window than the policy's
blast_radius allows (TRIPPED), and those that were rejected and still stand (REJECTED).
NODES have the key; HELD and REJ count those on which it is held or was rejected; PODS
are due evictions that are held; WHERE names held and rejected nodes.`,
		Example: `  reprieve blast list prod
  reprieve get evictions --cluster prod --hold blast-radius`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.onCluster(func(s *session, cluster string) error {
			r, err := call(s, noOpts(s.admin.ListBlastRadiusTrips), &reprievev1.ListBlastRadiusTripsRequest{Cluster: cluster})
			if err != nil {
				return err
			}
			if a.flags.output != outputTable {
				return a.printMessage(r)
			}
			return a.printTable(blastTable(r.GetTrips(), a.Clock.Now()), "Nothing is held: no taint key came to too many nodes at once.")
		}),
	}
}

func blastTable(list []*reprievev1.BlastRadiusTrip, now time.Time) *table {
	t := &table{columns: []column{{title: "KEY", min: 24}, {title: "STATE"}, {title: "SINCE"}, {title: "NODES"}, {title: "HELD"}, {title: "REJ"}, {title: "PODS"}, {title: "WHERE", min: 12}}}
	count := func(n uint64) string { return fmt.Sprint(n) }
	for _, b := range list {
		state, since := "TRIPPED", b.GetTripTime()
		if since == nil {
			state, since = "REJECTED", b.GetRejectTime()
		}
		t.add(b.GetKey(), state, ago(since, now), count(b.GetNodes()), count(b.GetHeldNodes()), count(b.GetRejectedNodes()),
			count(b.GetHeldEvictions()), strings.Join(b.GetNodeNames(), ","))
	}
	return t
}

// blastFlags say which keys, and how.
type blastFlags struct {
	key         string
	yes, dryRun bool
}

func (f *blastFlags) register(cmd *cobra.Command, key string) {
	cmd.Flags().StringVar(&f.key, "key", "", key)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only tell what it would do")
}

func newBlastRelease(a *app) *cobra.Command {
	var f blastFlags
	cmd := &cobra.Command{
		Use:   "release [CLUSTER]",
		Short: "Let go what the blast radius holds; tells first what that is",
		Long: `Lets the held evictions of a taint key (--key), or of every tripped key, go, oldest first
and inside the rate. The key's window begins anew. With --key it takes a rejection back too.
It first shows what is held, and asks; --yes goes on without asking.`,
		Example: `  reprieve blast release prod
  reprieve blast release prod --key example.com/maintenance --yes`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.onCluster(func(s *session, cluster string) error { return s.releaseBlast(cluster, f) }),
	}
	f.register(cmd, "only this taint key; also one that is rejected")
	addYes(cmd, &f.yes)
	return cmd
}

// releaseBlast lets go what was shown, key by key: a key that trips while the
// question waits for its answer is another matter.
func (s *session) releaseBlast(cluster string, f blastFlags) error {
	req := &reprievev1.ReleaseBlastRadiusRequest{Cluster: cluster, Key: f.key, ValidateOnly: true}
	r, err := call(s, noOpts(s.admin.ReleaseBlastRadius), req)
	if err != nil {
		return err
	}
	if f.dryRun {
		if s.flags.output != outputTable {
			return s.printMessage(r)
		}
		return s.printReleased("Would release", cluster, r)
	}
	impact := fmt.Sprintf("Releasing %s in %s lets %s go.", blastKeys(r.GetTrips()), cluster, plural(r.GetReleased(), "due eviction", "due evictions"))
	if err := s.confirm(f.yes, impact); err != nil {
		return err
	}
	done, err := s.releaseKeys(cluster, r.GetTrips())
	if s.flags.output != outputTable && (err == nil || len(done.GetTrips()) > 0) {
		err = errors.Join(err, s.printMessage(done))
	}
	return err
}

// releaseKeys releases key by key and, in a table, tells of each as it goes: what
// went is not to be called back if a later one fails. It returns all that went.
func (s *session) releaseKeys(cluster string, trips []*reprievev1.BlastRadiusTrip) (*reprievev1.ReleaseBlastRadiusResponse, error) {
	sum := &reprievev1.ReleaseBlastRadiusResponse{}
	for _, t := range trips {
		r, err := call(s, noOpts(s.admin.ReleaseBlastRadius), &reprievev1.ReleaseBlastRadiusRequest{Cluster: cluster, Key: t.GetKey()})
		if err != nil {
			return sum, err
		}
		sum.Trips = append(sum.Trips, r.GetTrips()...)
		sum.Released += r.GetReleased()
		if s.flags.output == outputTable {
			if err := s.printReleased("Released", cluster, r); err != nil {
				return sum, err
			}
		}
	}
	return sum, nil
}

func (s *session) printReleased(verb, cluster string, r *reprievev1.ReleaseBlastRadiusResponse) error {
	_, err := fmt.Fprintf(s.Out, "%s %s in %s: %s.\n", verb, cleanText(blastKeys(r.GetTrips())), cluster, plural(r.GetReleased(), "due eviction", "due evictions"))
	return err
}

func newBlastReject(a *app) *cobra.Command {
	var f blastFlags
	var reason string
	cmd := &cobra.Command{
		Use:   "reject [CLUSTER]",
		Short: "Keep the pods that the blast radius holds: the taint was a mistake",
		Long: `Shows what is held and rejects it, by one taint key (--key) or every tripped key. The key
then evicts nobody on any node that has it now, until it is removed from the node and set
anew: what was not sent is cancelled, orders that are out are recalled, pods that come
later stay too. Nothing is asked, since nothing leaves by it. blast release --key takes
it back.`,
		Example: `  reprieve blast reject prod --reason "taint --all was a typo"
  reprieve blast reject prod --key example.com/maintenance --dry-run`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.onCluster(func(s *session, cluster string) error {
			r, err := call(s, noOpts(s.admin.RejectBlastRadius), &reprievev1.RejectBlastRadiusRequest{
				Cluster: cluster, Key: f.key, Reason: reason, ValidateOnly: f.dryRun,
			})
			if err != nil {
				return err
			}
			if a.flags.output != outputTable {
				return a.printMessage(r)
			}
			if err := a.printTable(blastTable(r.GetTrips(), a.Clock.Now()), ""); err != nil {
				return err
			}
			verb := "Rejected"
			if f.dryRun {
				verb = "Would reject"
			}
			_, err = fmt.Fprintf(a.Out, "%s %s in %s: %s.\n", verb, cleanText(blastKeys(r.GetTrips())), cluster, plural(r.GetRejected(), "pod stays", "pods stay"))
			return err
		}),
	}
	f.register(cmd, "only this taint key")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	return cmd
}

// blastKeys names the keys of trips.
func blastKeys(trips []*reprievev1.BlastRadiusTrip) string {
	var keys []string
	for _, t := range trips {
		keys = append(keys, t.GetKey())
	}
	return "taint " + strings.Join(keys, ", ")
}
