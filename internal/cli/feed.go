package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/internal/buildinfo"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// heldAttempts is how often a feed asks for a cluster that another feeder holds.
const heldAttempts = 3

// leasesEvery is how often the service is told which leases were renewed. It asks
// for word at least every 2 s.
const leasesEvery = time.Second

type feedFlags struct {
	files                []string
	clusterUID, feederID string
	epoch                uint64
	syncedAfter          time.Duration
	follow               bool
}

func newFeed(a *app) *cobra.Command {
	var f feedFlags
	cmd := &cobra.Command{
		Use:   "feed -f FILE...",
		Short: "Feed a cluster's nodes and pods from files and kubectl streams",
		Long: `Sends the nodes and pods of one cluster to the service, as an agent does. Each -f is a
kubectl watch stream (kubectl get nodes -w --output-watch-events -o json), a dump (List,
JSON or YAML) or a timeline with no control but synced; several make one feed. The
cluster is synced when each input is complete: at its first line that is not ADDED, after
--synced-after of silence, or at its end. What stands after that is not part of the list:
it is sent, as news of a live cluster, once the service has the list. The command ends
when all inputs have ended and everything is on the service's disk; --follow then keeps
the feed alive until it is interrupted. When the connection breaks it connects and lists
again by itself.
An interrupt is a failure (exit code 1), except of a --follow that was synced (0).

Where the cluster's policy has node_health on, one of the inputs has to be the nodes'
leases, live: kubectl get leases -n kube-node-lease -w --output-watch-events -o json.

Without a feed a cluster is held: nothing of it is sent. An object without a uid is refused.`,
		Example: `  uid=$(kubectl get namespace kube-system -o jsonpath={.metadata.uid})
  reprieve feed --cluster prod --cluster-uid "$uid" \
    -f <(kubectl get nodes -w --output-watch-events -o json) \
    -f <(kubectl get pods -A -w --output-watch-events -o json)
  kubectl get nodes,pods -A -o json | reprieve feed --cluster lab -f - --follow`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.feed(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.files, "filename", "f", nil, "file or stream to read; - is the input; may be repeated")
	fl.StringVar(&f.clusterUID, "cluster-uid", "", "UID of the cluster's namespace kube-system (default: the one that the service has bound to the name)")
	fl.StringVar(&f.feederID, "feeder-id", "", "names this feeder among the cluster's (default: cli-HOST-PID)")
	fl.Uint64Var(&f.epoch, "epoch", 0, "feeder epoch; a higher one takes the cluster over from another feeder")
	fl.DurationVar(&f.syncedAfter, "synced-after", 2*time.Second, "silence after which a watch stream has shown its whole list")
	fl.BoolVar(&f.follow, "follow", false, "keep the feed alive after the inputs have ended")
	return cmd
}

func (a *app) feed(ctx context.Context, f feedFlags) error {
	cluster, err := a.flags.needCluster()
	if err != nil {
		return err
	}
	switch {
	case len(f.files) == 0:
		return usagef("give a file or stream with -f, or -f - for the input")
	case f.syncedAfter <= 0:
		return usagef("--synced-after must be positive")
	}
	conn, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if f.clusterUID == "" {
		if f.clusterUID, err = a.boundUID(ctx, conn, cluster); err != nil {
			return err
		}
	}
	opened, closeAll, err := a.openInputs(ctx, f.files)
	if err != nil {
		return err
	}
	defer closeAll()
	inputs := make([]timeline.Input, 0, len(opened))
	for _, in := range opened {
		inputs = append(inputs, timeline.Input{Name: in.name, R: in.r})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	source := newFileSource(cluster, f.follow)
	source.warn = a.warn
	source.ticks = ticks(ctx, a.Clock, leasesEvery)
	go source.read(ctx, inputs, timeline.MergeOptions{
		Options: timeline.Options{MissingUID: timeline.RefuseMissingUID, Warn: a.warn}, SyncedAfter: f.syncedAfter, AfterFunc: afterFunc(a.Clock),
	})
	return a.runFeeder(ctx, conn, f, source)
}

func (a *app) runFeeder(ctx context.Context, conn *client.Conn, f feedFlags, source *fileSource) error {
	var feeder *client.Feeder
	var live atomic.Bool // the service was reached and has had the whole list
	feeder, err := client.NewFeeder(conn, client.FeederConfig{
		Cluster: source.cluster, ClusterUID: f.clusterUID, FeederID: cmp.Or(f.feederID, cliName()), Epoch: f.epoch, AgentVersion: "reprieve-cli/" + buildinfo.Version(),
		Source: source, HeldAttempts: heldAttempts, Logger: slog.New(slog.NewTextHandler(a.Err, nil)), OnNodeHealth: source.setNodeHealth,
		OnSynced: func(synced bool) {
			if !synced {
				fmt.Fprintf(a.Err, "Cluster %s is not synced any more.\n", source.cluster)
				return
			}
			live.Store(true)
			source.synced()
			nodes, pods := source.counts()
			fmt.Fprintf(a.Err, "Cluster %s is synced: %s, %s; mode %s.\n", source.cluster, plural(uint64(nodes), "node", "nodes"), plural(uint64(pods), "pod", "pods"), modeWord(feeder.Status().Mode))
		},
	})
	if err != nil {
		return usagef("%v", err)
	}
	if err = feeder.Run(ctx); f.follow && live.Load() && interrupted(ctx, err) {
		return nil
	}
	return err
}

// boundUID is the UID that the service has bound to the cluster's name.
func (a *app) boundUID(ctx context.Context, conn *client.Conn, cluster string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, a.flags.timeout)
	defer cancel()
	r, err := conn.Query().GetCluster(ctx, &reprievev1.GetClusterRequest{Cluster: cluster})
	missing := usagef("cluster %s is new: give --cluster-uid, as `kubectl get namespace kube-system -o jsonpath={.metadata.uid}` prints it", cluster)
	switch {
	case err != nil && statusOf(err) == exitNotFound:
		return "", missing
	case err != nil:
		return "", &hintError{err: err, hint: hintOr(err, "--cluster-uid makes this question unnecessary")}
	case r.GetCluster().GetClusterUid() == "":
		return "", missing
	}
	return r.GetCluster().GetClusterUid(), nil
}

// hintOr is the usual hint for an error, or other if the credentials do not allow the question.
func hintOr(err error, other string) string {
	code, _, hint := classify(err)
	if code == exitDenied || hint == "" || errors.Is(err, context.DeadlineExceeded) {
		return other
	}
	return hint
}

// afterFunc is time.AfterFunc on a clock.
func afterFunc(c clock.Clock) func(time.Duration, func()) func() bool {
	return func(d time.Duration, f func()) func() bool {
		t := c.NewTimer(f)
		t.Reset(c.Now().Add(d))
		return func() bool {
			t.Stop()
			return true
		}
	}
}
