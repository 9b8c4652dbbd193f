package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/server"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/mem"
)

const (
	clusterName = "bench"
	// waitKey is tolerated for a while, goKey not at all.
	waitKey = "bench.example/wait"
	goKey   = "bench.example/go"
	hour    = int64(3600)
)

// tolerations are those of every pod of every row and side.
func tolerations(wait int64) []corev1.Toleration {
	five := int64(300)
	return []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &five},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &five},
		{Key: waitKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &wait},
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }
func podName(i int) string  { return fmt.Sprintf("web-7d4b9c6f5d-%07d", i) }
func podUID(i int) string   { return fmt.Sprintf("5f0c7d52-8a34-4a6e-9b1e-%012d", i) }
func nodeUID(i int) string  { return fmt.Sprintf("0e7a1f80-3c55-4f0b-a2d6-%012d", i) }

// ours is an engine and the feed of its one cluster.
type ours struct {
	eng  *engine.Engine
	feed *engine.FeedSession
	seq  uint64
	acks *ackSink
	clk  *clock.Real
}

// ackSink knows what was acknowledged.
type ackSink struct {
	mu    sync.Mutex // guards what follows
	upTo  uint64
	ended error
	moved chan struct{} // closed when that changes
}

func newAckSink() *ackSink { return &ackSink{moved: make(chan struct{})} }

func (s *ackSink) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *ackSink) Ack(seq uint64, _ bool)       { s.change(func() { s.upTo = seq }) }
func (s *ackSink) Resync(reason string)         { s.Ended(fmt.Errorf("resync: %s", reason)) }
func (s *ackSink) Mode(engine.Mode)             {}
func (s *ackSink) NodeHealth(engine.NodeHealth) {}
func (s *ackSink) Ended(err error)              { s.change(func() { s.ended = err }) }

// wait waits until a message is acknowledged.
func (s *ackSink) wait(ctx context.Context, seq uint64) error {
	for {
		s.mu.Lock()
		upTo, ended, moved := s.upTo, s.ended, s.moved
		s.mu.Unlock()
		switch {
		case upTo >= seq:
			return nil
		case ended != nil:
			return ended
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// benchPolicy sends what is due, as fast as it can.
func benchPolicy(string) engine.PolicyPatch {
	return engine.PolicyPatch{
		Policy: engine.Policy{Mode: engine.ModeEnforce, UnlimitedRate: true, Method: engine.MethodDelete, DisableBlastRadius: true},
		Fields: engine.PolicyMode | engine.PolicyRate | engine.PolicyMethod | engine.PolicyDisableBlastRadius,
	}
}

func start(ctx context.Context, open engine.StoreOpener) (*ours, error) {
	o := &ours{acks: newAckSink(), clk: clock.NewReal()}
	o.eng = engine.New(engine.Options{Clock: o.clk, Open: open, FeedTimeout: -1, ClusterPolicy: benchPolicy, CommitRest: server.CommitRest})
	return o, o.eng.Start(ctx)
}

func (o *ours) stop() { o.eng.Stop(context.Background()) }

func openMem() engine.StoreOpener { return mem.New().Open }

func openBolt(dir string) engine.StoreOpener {
	return func(ctx context.Context) (engine.Store, error) {
		return bolt.Open(ctx, bolt.Options{Path: filepath.Join(dir, "reprieve.db")})
	}
}

// onBolt runs a row on files of its own.
func onBolt(r *run1, row func(*run1, engine.StoreOpener) (figures, error)) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "bolt-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return row(r, openBolt(dir))
}

// discard keeps nothing, for rows that measure all but the store.
type discard struct{ engine.Store }

func (discard) Commit(context.Context, *engine.Batch) error { return nil }

func openDiscard(ctx context.Context) (engine.Store, error) {
	s, err := mem.New().Open(ctx)
	return discard{s}, err
}

// list feeds a whole list of so many nodes, with so many pods each, and waits for its end.
func (o *ours) list(ctx context.Context, nodes, perNode int, taints ...engine.ObservedTaint) (err error) {
	if o.feed, _, err = o.eng.OpenFeed(engine.FeedHello{Cluster: clusterName, ClusterUID: "c", FeederID: "f"}, o.acks); err != nil {
		return err
	}
	o.seq++
	if err := o.feed.SyncBegin(ctx, o.seq); err != nil {
		return err
	}
	o.seq++
	if err := o.feed.Batch(ctx, o.seq, nodeEvents(nodes, taints...)); err != nil {
		return err
	}
	for i := range nodes {
		o.seq++
		if err := o.feed.Batch(ctx, o.seq, podEvents(i, perNode, hour)); err != nil {
			return err
		}
	}
	o.seq++
	if err := o.feed.SyncEnd(ctx, o.seq); err != nil {
		return err
	}
	return o.acks.wait(ctx, o.seq)
}

// batch feeds events and waits until what follows from them is on disk.
func (o *ours) batch(ctx context.Context, events []engine.Event) error {
	o.seq++
	if err := o.feed.Batch(ctx, o.seq, events); err != nil {
		return err
	}
	return o.acks.wait(ctx, o.seq)
}

func nodeEvents(nodes int, taints ...engine.ObservedTaint) []engine.Event {
	out := make([]engine.Event, nodes)
	for i := range out {
		out[i] = engine.Event{Type: engine.EventUpsert, Node: &engine.Node{Name: nodeName(i), UID: nodeUID(i), Taints: taints}}
	}
	return out
}

// podEvents are the pods of one node.
func podEvents(node, perNode int, wait int64) []engine.Event {
	out := make([]engine.Event, perNode)
	for k := range out {
		out[k] = podEvent(node*perNode+k, node, wait)
	}
	return out
}

func podEvent(i, node int, wait int64) engine.Event {
	return engine.Event{Type: engine.EventUpsert, Pod: &engine.Pod{
		Namespace: "shop-" + strconv.Itoa(node%50), Name: podName(i), UID: podUID(i), Node: nodeName(node),
		Tolerations: tolerations(wait), BoundAt: time.Unix(1_700_000_000, 0).UTC(), Owner: "1b0c2a94-77d1-4c1c-8e0c-" + fmt.Sprintf("%012d", i/20),
	}}
}

func taint(key string) engine.ObservedTaint {
	return engine.ObservedTaint{Key: key, Effect: string(corev1.TaintEffectNoExecute)}
}

// expect checks how many evictions are open in a state.
func (o *ours) expect(ctx context.Context, state engine.State, want int) error {
	st, err := o.eng.Cluster(ctx, clusterName)
	if err != nil {
		return err
	}
	if got := st.Open[state]; got != want {
		return fmt.Errorf("%d evictions are %s, want %d; open are %v", got, state, want, st.Open)
	}
	return nil
}
