package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/mem"
)

type replayFlags struct {
	until         time.Duration
	expect, epoch string
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

--expect FILE compares the orders that were sent with an expectation (JSON: name, until,
evict: a list of pod, uid, at, tolerance, cluster) and exits 1 with the differences; its
"until" holds unless --until is given.`,
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
	for _, in := range inputs {
		opts.Sources = append(opts.Sources, replay.Source{Name: in.name, R: in.r})
	}
	if want == nil {
		opts.OnEvent = func(ev replay.Event) {
			if a.flags.namespace == "" || a.flags.namespace == ev.Eviction.Namespace {
				a.printReplayEvent(ev, f.start)
			}
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
	return a.compare(want, sent)
}

// compare prints how the orders differ from what was expected.
func (a *app) compare(want *timeline.Expectation, sent []timeline.SentOrder) error {
	diff := want.Compare(sent)
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
