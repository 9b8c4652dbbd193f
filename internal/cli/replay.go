package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/mem"
)

type replayFlags struct {
	until         time.Duration
	expect, epoch string
	nodeHealth    string
	start         time.Time
}

func newReplay(a *app) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "Run a timeline through the real engine on a virtual clock",
		Long: `Runs one or more timeline files (merged by their times) through the engine that the
service runs, on a virtual clock, in mode ENFORCE, with an executor that answers EVICTED
at once unless the timeline says otherwise. It prints what happens to evictions:
scheduled, rescheduled, cancelled, held, ordered, closed; with -n those of one namespace.
Times are Go durations from the start. No service is needed and nothing is changed
anywhere.

A timeline with the nodes' leases also shows node health, as mode OBSERVE unless the
timeline's policy or --node-health says otherwise: ready, not-ready and unknown nodes,
tainted and untainted ones, and what is held. After its last line no leases are seen.

--expect FILE compares the orders that were sent with an expectation (JSON: name, until,
evict: a list of pod, uid, at, tolerance, cluster; health: a list of node, event, taint,
at, tolerance, cluster) and exits 1 with the differences; its "until" holds unless --until
is given.`,
		Example: `  reprieve replay drain-node.jsonl
  reprieve replay drain-node.jsonl --expect drain-node.expect.json
  reprieve replay drain-node.jsonl --until 10m -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("give a timeline file, or - for the input")
			}
			if f.until < 0 {
				return usagef("--until must not be negative")
			}
			epoch, err := instantFlag("--epoch", f.epoch)
			if err != nil {
				return err
			}
			f.start = replay.Epoch
			if epoch != nil {
				f.start = epoch.AsTime()
			}
			return a.replay(cmd.Context(), f, args)
		},
	}
	cmd.Flags().DurationVar(&f.until, "until", 0, "end of the replay, from the start (default: when nothing more can happen)")
	cmd.Flags().StringVar(&f.expect, "expect", "", "file with the orders that must be sent; exit 1 if they differ")
	cmd.Flags().StringVar(&f.nodeHealth, "node-health", "", "off, observe or enforce (default: observe if there are leases, else off)")
	cmd.Flags().StringVar(&f.epoch, "epoch", "", "start of time, RFC 3339 (default 2026-01-01T00:00:00Z)")
	return cmd
}

func (a *app) replay(ctx context.Context, f replayFlags, files []string) error {
	var want *timeline.Expectation
	if f.expect != "" {
		in, err := openFile(ctx, f.expect)
		if err != nil {
			return err
		}
		want, err = timeline.ReadExpectation(interruptible(ctx, in), f.expect)
		_ = in.Close() // Only read from.
		if err != nil {
			return err
		}
		if f.until == 0 {
			f.until = time.Duration(want.Until)
		}
	}
	inputs, closeAll, err := a.openInputs(ctx, files)
	if err != nil {
		return err
	}
	defer closeAll()
	opts := replay.Options{Open: mem.New().Open, Until: f.until, Epoch: f.start, Warn: a.warn}
	if f.nodeHealth != "" {
		mode, err := parseWord("--node-health", "NODE_HEALTH_MODE_", f.nodeHealth, reprievev1.NodeHealthMode_value)
		if err != nil {
			return err
		}
		opts.NodeHealth = engine.NodeHealth(mode)
	}
	for _, in := range inputs {
		opts.Sources = append(opts.Sources, replay.Source{Name: in.name, R: in.r})
	}
	var seen []timeline.SeenHealth
	opts.OnEvent = func(ev replay.Event) {
		switch h := ev.Health; {
		case want != nil && h != nil:
			seen = append(seen, timeline.SeenHealth{Cluster: h.Cluster, Node: h.Node, Event: ev.Kind, Taint: h.Taint, At: ev.At})
		case want != nil:
		case h != nil:
			a.printHealthEvent(ev)
		case a.flags.namespace == "" || a.flags.namespace == ev.Eviction.Namespace:
			a.printReplayEvent(ev, f.start)
		}
	}
	orders, err := replay.Run(ctx, opts)
	if err != nil || want == nil {
		return err
	}
	sent := make([]timeline.SentOrder, 0, len(orders))
	for _, o := range orders {
		sent = append(sent, timeline.SentOrder{Cluster: o.Cluster, Namespace: o.Namespace, Pod: o.Pod, UID: o.UID, At: o.At})
	}
	return a.compare(want, sent, seen)
}

// compare prints how what happened differs from what was expected.
func (a *app) compare(want *timeline.Expectation, sent []timeline.SentOrder, seen []timeline.SeenHealth) error {
	diff := append(want.Compare(sent), want.CompareHealth(seen)...)
	if len(diff) == 0 {
		fmt.Fprintf(a.Out, "%s: as expected, %s\n", cleanText(want.Name), plural(uint64(len(sent)), "order", "orders"))
		return nil
	}
	fmt.Fprintf(a.Out, "%s: differs (- expected, + sent)\n", cleanText(want.Name))
	for _, line := range diff {
		fmt.Fprintln(a.Out, cleanText(line))
	}
	return &silentError{code: exitFailure}
}

// replayEvent is one line of -o json. At and Due are Go durations from the start.
type replayEvent struct {
	At        string `json:"at"`
	Cluster   string `json:"cluster"`
	Event     string `json:"event"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Node      string `json:"node"`
	Due       string `json:"due"`
	Reason    string `json:"reason"`
}

// seconds writes d as a Go duration in seconds, so that a column of them sorts.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// healthEvent is one line of -o json that tells of node health. Node is empty in
// what concerns the whole cluster.
type healthEvent struct {
	At      string `json:"at"`
	Cluster string `json:"cluster"`
	Event   string `json:"event"`
	Node    string `json:"node,omitempty"`
	Taint   string `json:"taint,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

func newHealthEvent(ev replay.Event) healthEvent {
	h := ev.Health
	return healthEvent{At: seconds(ev.At), Cluster: h.Cluster, Event: ev.Kind, Node: h.Node, Taint: h.Taint, Reason: h.Reason}
}

func (a *app) printHealthEvent(ev replay.Event) {
	h, line := ev.Health, newHealthEvent(ev)
	if a.flags.output == outputTable {
		what := strings.Join(strings.Fields(strings.Join([]string{h.Node, shortKey(h.Taint), h.Reason}, "  ")), " ")
		if h.Node != "" {
			what = "node " + what
		}
		fmt.Fprintln(a.Out, strings.TrimRight(cleanText(fmt.Sprintf("%10s  %-11s  %s  %s", line.At, line.Event, line.Cluster, what)), " "))
		return
	}
	a.printEvent(line)
}

// printEvent prints one event as a line of JSON, or as a YAML document.
func (a *app) printEvent(line any) {
	if a.flags.output == outputYAML {
		fmt.Fprintln(a.Out, "---")
		if err := a.printValue(line); err != nil {
			fmt.Fprintf(a.Err, "reprieve: an event cannot be printed: %v\n", err)
		}
		return
	}
	b, err := json.Marshal(line)
	if err != nil {
		fmt.Fprintf(a.Err, "reprieve: an event cannot be printed: %v\n", err)
		return
	}
	fmt.Fprintf(a.Out, "%s\n", b)
}

func (a *app) printReplayEvent(ev replay.Event, start time.Time) {
	e := wire.Eviction(ev.Eviction)
	line := replayEvent{
		At: seconds(ev.At), Cluster: e.GetCluster(), Event: ev.Kind, Namespace: e.GetNamespace(), Pod: e.GetPod(), UID: e.GetUid(), Node: e.GetNode(),
		Due: seconds(e.GetDueTime().AsTime().Sub(start)), Reason: replayReason(ev.Kind, e),
	}
	if a.flags.output == outputTable {
		fmt.Fprintln(a.Out, cleanText(fmt.Sprintf("%10s  %-11s  %s  %s  %s  due %s  %s", line.At, line.Event, line.Cluster, podWord(line.Namespace, line.Pod), line.Node, line.Due, line.Reason)))
		return
	}
	a.printEvent(line)
}

// replayReason is why an event happened: the hold, the close reason, or the cause.
func replayReason(kind string, e *reprievev1.Eviction) string {
	switch kind {
	case "held":
		return word(e.GetHold(), "HOLD_REASON_")
	case "closed", "cancelled":
		return closeWord(e)
	default:
		return causeWord(e.GetCause())
	}
}
