package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/internal/wire"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/mem"
)

type simulateFlags struct {
	files, taints, notReady, unreachable, silent []string
	selector                                     string
}

func newSimulate(a *app) *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate -f DUMP...",
		Short: "Who would leave if a node had a taint, when and why, and who stays",
		Long: `Reads dumps of nodes and pods (kubectl get nodes,pods -A -o json or yaml) and takes the
service's decision for each pod over the taints that the nodes have and those that are
supposed; all of them start now, for a dump does not tell when. No service is needed.
Pods that leave come first, by time, then those that stay, with the reason.

--silent supposes instead that a node sends no heartbeat any more, while all others do,
and runs node health (policy node_health ENFORCE) over the dump's nodes: it tells when the
node is unknown and gets its taints, at its zone's rate, or what keeps a NoExecute taint
back, and counts pods' waits from there.`,
		Example: `  kubectl get nodes,pods -A -o json | reprieve simulate -f - --not-ready n1
  reprieve simulate -f nodes.yaml -f pods.yaml --taint n1=drain=yes:NoExecute --selector app=web
  reprieve simulate -f cluster.yaml --silent n1 --silent n2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.simulate(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.files, "filename", "f", nil, "dump to read, JSON or YAML; - is the input; may be repeated")
	fl.StringArrayVar(&f.taints, "taint", nil, "suppose a taint, NODE=KEY[=VALUE]:NoExecute; may be repeated")
	fl.StringArrayVar(&f.notReady, "not-ready", nil, "suppose that this node is not ready; may be repeated")
	fl.StringArrayVar(&f.unreachable, "unreachable", nil, "suppose that this node is unreachable; may be repeated")
	fl.StringArrayVar(&f.silent, "silent", nil, "suppose that this node sends no heartbeat any more; may be repeated")
	fl.StringVarP(&f.selector, "selector", "l", "", "tell of pods with these labels only, such as app=web")
	return cmd
}

func (f *simulateFlags) suppositions() ([]replay.Supposition, error) {
	var list []replay.Supposition
	for _, s := range f.taints {
		node, taint, ok := strings.Cut(s, "=")
		spec, effect, ok2 := cutLast(taint, ":")
		key, value, _ := strings.Cut(spec, "=")
		if !ok || !ok2 || node == "" || key == "" {
			return nil, usagef("--taint %q is no NODE=KEY[=VALUE]:NoExecute", s)
		}
		if effect != "NoExecute" {
			return nil, usagef("--taint %q: effect %q evicts nobody; only NoExecute does", s, effect)
		}
		list = append(list, replay.Supposition{Node: node, Key: key, Value: value})
	}
	for _, n := range f.notReady {
		list = append(list, replay.Supposition{Node: n, Key: replay.NotReadyKey})
	}
	for _, n := range f.unreachable {
		list = append(list, replay.Supposition{Node: n, Key: replay.UnreachableKey})
	}
	return list, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func (a *app) simulate(ctx context.Context, f simulateFlags) error {
	if len(f.files) == 0 {
		return usagef("give a dump with -f, or -f - for the input")
	}
	taints, err := f.suppositions()
	if err != nil {
		return err
	}
	opts := replay.SimulateOptions{Taints: taints, Warn: a.warn}
	if f.selector != "" {
		if opts.Selector, err = labels.Parse(f.selector); err != nil {
			return usagef("--selector: %v", err)
		}
	}
	inputs, closeAll, err := a.openInputs(ctx, f.files)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := a.supposeSilence(ctx, &opts, f.silent, inputs); err != nil {
		return err
	}
	fates, err := replay.Simulate(opts)
	if err != nil {
		return err
	}
	if a.flags.namespace != "" {
		kept := fates[:0]
		for _, x := range fates {
			if x.Namespace == a.flags.namespace {
				kept = append(kept, x)
			}
		}
		fates = kept
	}
	return a.printFates(fates, opts.Silence)
}

// supposeSilence names the dumps, and finds out what follows from the silence of nodes,
// for which they are read twice.
func (a *app) supposeSilence(ctx context.Context, opts *replay.SimulateOptions, silent []string, inputs []opened) error {
	if len(silent) == 0 {
		for _, in := range inputs {
			opts.Sources = append(opts.Sources, replay.Source{Name: in.name, R: in.r})
		}
		return nil
	}
	dumps := make([][]byte, len(inputs))
	for i, in := range inputs {
		b, err := io.ReadAll(in.r)
		if err != nil {
			return fmt.Errorf("%s: %w", in.name, err)
		}
		dumps[i] = b
	}
	sources := func() (list []replay.Source) {
		for i, in := range inputs {
			list = append(list, replay.Source{Name: in.name, R: bytes.NewReader(dumps[i])})
		}
		return list
	}
	var err error
	opts.Silent, opts.Sources = silent, sources()
	if opts.Silence, err = replay.Silence(ctx, *opts, mem.New().Open); err != nil {
		return err
	}
	opts.Sources, opts.Warn = sources(), nil // It has been warned of already.
	return nil
}

// silenceWidth is the width of what becomes of silent nodes: it leaves room for a
// node's name.
const silenceWidth = 66

// printSilence tells what becomes of silent nodes.
func (a *app) printSilence(events []replay.Event) error {
	t := &table{columns: []column{{title: "NODE", min: 12, nodes: true}, {title: "AFTER"}, {title: "WHAT"}}}
	for _, ev := range events {
		what := ev.Kind
		if ev.Health.Taint != "" {
			what += " " + shortKey(ev.Health.Taint)
		}
		if ev.Health.Reason != "" {
			what += ": " + ev.Health.Reason
		}
		node, after := orDash(ev.Health.Node), shortDuration(ev.At)
		for _, part := range wrap(cleanText(what), silenceWidth) {
			t.add(node, after, part)
			node, after = "", "" // What does not fit goes on below.
		}
	}
	if err := a.printTable(t, "Nothing becomes of the silent nodes."); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Out)
	return err
}

// fateItem is a pod's fate as -o json prints it. In is absent if the pod stays.
type fateItem struct {
	Cluster   string          `json:"cluster"`
	Namespace string          `json:"namespace"`
	Pod       string          `json:"pod"`
	UID       string          `json:"uid"`
	Node      string          `json:"node"`
	Leaves    bool            `json:"leaves"`
	In        string          `json:"in,omitempty"`
	Reason    string          `json:"reason"`
	Decision  json.RawMessage `json:"decision"`
}

func (a *app) printFates(fates []replay.Fate, silence []replay.Event) error {
	items := make([]fateItem, 0, len(fates))
	t := &table{columns: []column{{title: "POD", min: 22}, {title: "NODE", min: 10, nodes: true}, {title: "LEAVES"}, {title: "WHY", min: 36}}}
	leaving := 0
	for i := range fates {
		x := &fates[i]
		d := wire.Decision(&x.Decision)
		it := fateItem{Cluster: x.Cluster, Namespace: x.Namespace, Pod: x.Pod, UID: x.UID, Node: x.Node, Leaves: d.GetVerdict() == reprievev1.Decision_VERDICT_LEAVE, Reason: fateReason(d)}
		when := "stays"
		if it.Leaves {
			leaving++
			it.In = seconds(x.In)
			when = "at once"
			if x.In > 0 {
				when = "after " + shortDuration(x.In)
			}
		}
		raw, err := encode(d)
		if err != nil {
			return err
		}
		it.Decision = raw
		items = append(items, it)
		t.add(podWord(x.Namespace, x.Pod), orDash(x.Node), when, it.Reason)
	}
	if a.flags.output != outputTable {
		out := map[string]any{"items": items}
		if len(silence) > 0 {
			nodes := make([]healthEvent, 0, len(silence))
			for _, ev := range silence {
				nodes = append(nodes, newHealthEvent(ev))
			}
			out["nodes"] = nodes
		}
		return a.printValue(out)
	}
	if len(silence) > 0 {
		if err := a.printSilence(silence); err != nil {
			return err
		}
	}
	if err := a.printTable(t, "No pods."); err != nil || len(items) == 0 {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "\n%s of %d would leave.\n", plural(uint64(leaving), "pod", "pods"), len(items))
	return err
}

// fateReason is why a pod leaves or stays, in few words.
func fateReason(d *reprievev1.Decision) string {
	switch {
	case d.GetVerdict() == reprievev1.Decision_VERDICT_NOT_SUBJECT:
		return d.GetExemption()
	case d.GetVerdict() == reprievev1.Decision_VERDICT_LEAVE:
		cause := leaveCause(d, nil)
		if t := cause.GetTaint(); t.GetToleration() == nil && !t.GetDefaultToleration() {
			return causeWord(cause) + " not tolerated"
		}
		return causeWord(cause)
	case len(d.GetSteps()) == 0:
		return "no NoExecute taint on the node"
	default:
		return fmt.Sprintf("tolerates %s for ever", strings.TrimPrefix(taintWord(d.GetSteps()[0].GetTaint().GetTaint()), "node.kubernetes.io/"))
	}
}
