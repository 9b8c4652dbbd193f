package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/wire"
)

// Epoch is where a timeline's time starts unless the user says otherwise.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// maxAfter is how long a replay without an end goes on after its last line: far
// enough for any wait that people use, and an end for retries that have none.
const maxAfter = 30 * 24 * time.Hour

// Source is a file or stream to read.
type Source struct {
	Name string
	R    io.Reader
}

// Options configure [Run].
type Options struct {
	Sources []Source
	// Open opens the store; a restart in the timeline opens it again.
	Open engine.StoreOpener
	// Epoch is the start of time; zero means [Epoch].
	Epoch time.Time
	// Until ends the replay; zero means when nothing more can happen.
	Until time.Duration
	// NodeHealth is the clusters' mode of node health until the timeline's policy says
	// otherwise; zero means OBSERVE if there are leases, else OFF.
	NodeHealth engine.NodeHealth
	// OnEvent is told what happens to evictions and to nodes' health, in order.
	OnEvent func(Event)
	// Warn is told what is odd about the input.
	Warn func(timeline.Warning)
}

// Run replays a timeline, or several merged by their times, and returns the
// orders that were sent.
func Run(ctx context.Context, o Options) ([]Order, error) {
	entries, err := readAll(o.Sources, o.Warn)
	if err != nil {
		return nil, err
	}
	start := o.Epoch
	if start.IsZero() {
		start = Epoch
	}
	d, err := NewDriver(ctx, o.Open, start, 4)
	if err != nil {
		return nil, err
	}
	defer d.Close(context.WithoutCancel(ctx))
	d.OnEvent, d.NodeHealth = o.OnEvent, o.NodeHealth
	if n := len(entries); n > 0 {
		d.LeasesUntil = entries[n-1].At
	}
	if d.NodeHealth == engine.NodeHealthUnspecified && slices.ContainsFunc(entries, func(e timeline.Entry) bool { return e.Lease != nil }) {
		d.NodeHealth = engine.NodeHealthObserve
	}
	p := &player{d: d, listing: map[string]bool{}}
	for i := range entries {
		if o.Until > 0 && entries[i].At > o.Until {
			break
		}
		if err := p.play(ctx, &entries[i]); err != nil {
			return nil, &timeline.Error{Pos: entries[i].Pos, Reason: err.Error()}
		}
	}
	if err := p.finishLists(ctx); err != nil {
		return nil, err
	}
	err = p.runOut(ctx, o.Until)
	return d.Orders(), err
}

// readAll reads the sources and merges them by time; lines of one time keep the
// order of the sources.
func readAll(sources []Source, warn func(timeline.Warning)) ([]timeline.Entry, error) {
	uids := timeline.NewUIDs()
	var all []timeline.Entry
	for _, s := range sources {
		r := timeline.NewReader(s.R, s.Name, timeline.Options{MissingUID: timeline.DeriveMissingUID, UIDs: uids, Warn: warn})
		for {
			e, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			if e.Control != nil && e.Control.Kind == timeline.Renew {
				all = append(all, renewals(&e)...)
				continue
			}
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b timeline.Entry) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}

// renewals are the leases that a renew control stands for. Their renewTimes are
// those of the timeline, which nothing is compared with but each other.
func renewals(e *timeline.Entry) (list []timeline.Entry) {
	c := e.Control
	for at := e.At; at <= c.Until; at += c.Every {
		for _, node := range c.Nodes {
			list = append(list, timeline.Entry{
				At: at, HasAt: true, Cluster: e.Cluster, Type: timeline.Modified, Pos: e.Pos,
				Lease: &timeline.Lease{Node: node, RenewTime: timestamppb.New(Epoch.Add(at)), Renewed: true},
			})
		}
	}
	return list
}

// player turns entries into calls of the driver.
type player struct {
	d *Driver
	// listing are clusters with a list under way that came without a synced line:
	// dumps and watch streams, which are complete when they turn to events.
	listing map[string]bool
}

func (p *player) play(ctx context.Context, e *timeline.Entry) error {
	if now := p.d.Now(); e.At < now {
		return fmt.Errorf("at %s is in the time that the process is down (until %s)", e.At, now)
	}
	if err := p.d.AdvanceTo(ctx, e.At); err != nil {
		return err
	}
	if e.Control != nil {
		return p.control(ctx, e)
	}
	ev := e.Event()
	if ev == nil {
		return nil
	}
	if err := p.d.Apply(ctx, e.Cluster, wire.Event(ev)); err != nil {
		return err
	}
	if e.Listed {
		p.listing[e.Cluster] = true
	}
	return nil
}

func (p *player) control(ctx context.Context, e *timeline.Entry) error {
	c := e.Control
	switch c.Kind {
	case timeline.Synced:
		delete(p.listing, e.Cluster)
		return p.d.Synced(ctx, e.Cluster)
	case timeline.Restart:
		return p.d.Restart(ctx, c.Down)
	case timeline.FeedLost:
		return p.d.FeedLost(ctx, e.Cluster)
	case timeline.Pause:
		return p.d.Pause(ctx, e.Cluster)
	case timeline.Resume:
		return p.d.Resume(ctx, e.Cluster)
	case timeline.Policy:
		if faults := wire.PolicyFaults(c.Policy); len(faults) > 0 {
			return fmt.Errorf("policy: %w", errors.Join(faults...))
		}
		fields, err := wire.PolicyFields(c.PolicyFields)
		if err != nil {
			return err
		}
		return p.d.SetPolicy(ctx, e.Cluster, wire.PolicyPatch(c.Policy, fields))
	case timeline.Executor:
		if c.NodeName != "" {
			p.d.SetNodeOutcome(e.Cluster, c.NodeName, engine.Outcome(c.Outcome))
			return nil
		}
		p.d.SetOutcome(e.Cluster, c.PodNamespace, c.PodName, engine.Outcome(c.Outcome))
		return nil
	}
	return fmt.Errorf("unknown control %q", c.Kind)
}

// finishLists ends the lists of dumps.
func (p *player) finishLists(ctx context.Context) error {
	for name := range p.listing {
		if err := p.d.Synced(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// runOut lets time pass to the end.
func (p *player) runOut(ctx context.Context, until time.Duration) error {
	if until > 0 {
		return p.d.RunUntil(ctx, until)
	}
	return p.d.RunOut(ctx, p.d.Now()+maxAfter)
}

// Supposition is what simulate supposes of a node.
type Supposition = engine.HypotheticalTaint

// Suppositions for the two taints of the node lifecycle.
const (
	NotReadyKey    = corev1.TaintNodeNotReady
	UnreachableKey = corev1.TaintNodeUnreachable
)

// SimulateOptions configure [Simulate].
type SimulateOptions struct {
	Sources []Source
	Taints  []Supposition
	// Silent are nodes that are supposed to send no heartbeat any more. What
	// [Silence] found of them goes into Silence.
	Silent  []string
	Silence []Event
	// Selector narrows the pods that are told of; nil means all.
	Selector labels.Selector
	Warn     func(timeline.Warning)
}

// Fate is what would become of one pod.
type Fate struct {
	Cluster, Namespace, Pod, UID, Node string
	Tolerations                        []corev1.Toleration
	engine.Decision
	// In is how long until the pod leaves, for VerdictLeave.
	In time.Duration
}

// Simulate takes the decision of every pod of dumps over the taints that the
// nodes have and those that are supposed, all of which start now: a dump does
// not tell what was seen when. Pods that leave come first, by time.
func Simulate(o SimulateOptions) ([]Fate, error) {
	entries, err := readAll(o.Sources, o.Warn)
	if err != nil {
		return nil, err
	}
	nodes, pods := latest(entries)
	for _, t := range o.Taints {
		if !slices.ContainsFunc(entries, func(e timeline.Entry) bool {
			return e.Node.GetName() == t.Node || e.Pod.GetNodeName() == t.Node
		}) {
			return nil, fmt.Errorf("no node %q in the dump, and no pod on one of that name", t.Node)
		}
	}
	policy := engine.DefaultPolicy()
	silent := silentFrom(o.Silence)
	var out []Fate
	for _, e := range pods {
		if o.Selector != nil && !o.Selector.Matches(labels.Set(e.Pod.GetLabels())) {
			continue
		}
		out = append(out, fate(e, nodes, suppositions{o.Taints, silent}, &policy))
	}
	slices.SortStableFunc(out, func(a, b Fate) int {
		return cmp.Or(cmp.Compare(b.Verdict, a.Verdict), a.Due.Compare(b.Due), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return out, nil
}

type nodeKey struct{ cluster, name string }

// latest returns the last state of each node and pod that is not deleted.
func latest(entries []timeline.Entry) (nodes map[nodeKey]*engine.Node, pods []timeline.Entry) {
	nodes = map[nodeKey]*engine.Node{}
	last := map[string]int{}
	for _, e := range entries {
		switch {
		case e.Node != nil && e.Type == timeline.Deleted:
			delete(nodes, nodeKey{e.Cluster, e.Node.GetName()})
		case e.Node != nil:
			nodes[nodeKey{e.Cluster, e.Node.GetName()}] = wire.Node(e.Node)
		case e.Pod != nil:
			key := e.Cluster + "\x00" + e.Pod.GetUid()
			if i, seen := last[key]; seen {
				pods[i] = e
			} else {
				last[key] = len(pods)
				pods = append(pods, e)
			}
		}
	}
	return nodes, slices.DeleteFunc(pods, func(e timeline.Entry) bool { return e.Type == timeline.Deleted })
}

// suppositions are all that is supposed of nodes: taints from now on, and silence,
// for which a node is unreachable from an instant to come.
type suppositions struct {
	taints []Supposition
	silent map[nodeKey]time.Duration
}

func fate(e timeline.Entry, nodes map[nodeKey]*engine.Node, suppose suppositions, policy *engine.Policy) Fate {
	p := wire.Pod(e.Pod)
	n := nodes[nodeKey{e.Cluster, p.Node}]
	// All waits begin at the epoch, so that Due is a distance from it.
	var there []engine.Taint
	if n != nil {
		for _, t := range n.Taints {
			if t.Effect == string(corev1.TaintEffectNoExecute) {
				there = append(there, engine.Taint{Key: t.Key, Value: t.Value, TimeAdded: t.TimeAdded, Start: Epoch})
			}
		}
	}
	supposed := slices.DeleteFunc(slices.Clone(suppose.taints), func(t Supposition) bool { return t.Node != p.Node })
	taints := engine.HypotheticalTaints(there, supposed, Epoch)
	if from, silent := suppose.silent[nodeKey{e.Cluster, p.Node}]; silent && !slices.ContainsFunc(taints, func(t engine.Taint) bool {
		return t.Key == NotReadyKey || t.Key == UnreachableKey // An episode that runs already counts from its own start.
	}) {
		taints = append(taints, engine.Taint{Key: UnreachableKey, Start: Epoch.Add(from)})
	}
	d := engine.Decide(engine.DecideInput{
		Subject: engine.Subject{
			Namespace: p.Namespace, Tolerations: p.Tolerations, Unscheduled: p.Node == "",
			Terminating: p.Terminating, Finished: p.Finished, Mirror: p.Mirror,
		},
		// A taint supposed on a node supposes the node: a dump of pods alone has none.
		NodeKnown: n != nil || len(supposed) > 0, Taints: taints, Policy: policy, Detail: true,
	})
	f := Fate{
		Cluster: e.Cluster, Namespace: p.Namespace, Pod: p.Name, UID: p.UID, Node: p.Node,
		Tolerations: p.Tolerations, Decision: d,
	}
	if d.Verdict == engine.VerdictLeave {
		f.In = d.Due.Sub(Epoch)
	}
	return f
}
