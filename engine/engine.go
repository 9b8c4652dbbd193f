package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

// Options configure an [Engine]. Clock and Open are required; zero values of
// the rest mean their defaults.
type Options struct {
	Clock clock.Clock
	// Open opens the store, at start and after a commit error.
	Open StoreOpener
	// Shards is the number of shards; default 8.
	Shards int
	// ClusterPolicy returns the policy fields that the configuration sets for a cluster.
	ClusterPolicy func(cluster string) PolicyPatch
	HistoryQuotas HistoryQuotas
	// SelfPodUID is the UID of the pod that the engine runs in; empty if in none.
	// A cluster whose feed shows it is warned of.
	SelfPodUID string
	// MaxGap is the longest gap that is no adoption (D10); default 24 h.
	MaxGap time.Duration
	// FeedTimeout is the silence that ends a feed; default 30 s, negative means never.
	FeedTimeout time.Duration
	// HeartbeatInterval is what feeds are asked for; default 10 s.
	HeartbeatInterval time.Duration
	// ReopenBackOff is the first wait before the store is opened again, doubled up
	// to 30 s each time until commits have succeeded for 30 s; default 100 ms.
	ReopenBackOff time.Duration
	// PruneEvery is how often history is brought back within its quotas; default a minute, negative means never.
	PruneEvery time.Duration
	// CommitRest is how long the committer rests at most between two transactions
	// while few changes wait, so that they share one; default not at all. It rests as
	// long as the last transaction took. On a clock that stands still it must not.
	CommitRest time.Duration
	// Jitter spreads a back-off; default is 80 to 120 % of it.
	Jitter func(time.Duration) time.Duration
	// NewToken makes a delivery token; default is 128 random bits.
	NewToken func() string
	Observer Observer
	Logger   *slog.Logger
	// OnHealth is told whether the engine serves, whenever that changes.
	OnHealth func(serving bool, cause error)
}

// Observer is told what happens, for metrics. Its methods must not block.
type Observer interface {
	// Sent: an order left, lateness after its due instant; attempts failed before it.
	Sent(cluster string, lateness time.Duration, attempts uint32)
	// Result: an order ended with an outcome, took after its delivery was written.
	Result(cluster string, outcome Outcome, took time.Duration)
	// NodeResult: an order for a node ended with an outcome, took after its delivery was written.
	NodeResult(cluster string, outcome Outcome, took time.Duration)
	// Closed: an eviction went to history.
	Closed(cluster string, reason CloseReason)
	// Committed: a transaction of so many changes ended.
	Committed(changes int, took time.Duration, err error)
	// UnknownToken: an answer came with a token that is not live.
	UnknownToken()
	// Damaged: the load set a record aside.
	Damaged(where string)
	// Forgotten: a cluster was forgotten. Nothing more is told of it, unless it joins anew.
	Forgotten(cluster string)
}

type noObserver struct{}

func (noObserver) Sent(string, time.Duration, uint32)        {}
func (noObserver) Result(string, Outcome, time.Duration)     {}
func (noObserver) NodeResult(string, Outcome, time.Duration) {}
func (noObserver) Closed(string, CloseReason)                {}
func (noObserver) Committed(int, time.Duration, error)       {}
func (noObserver) UnknownToken()                             {}
func (noObserver) Damaged(string)                            {}
func (noObserver) Forgotten(string)                          {}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.MaxGap, 24*time.Hour)
	def(&o.FeedTimeout, 30*time.Second)
	def(&o.HeartbeatInterval, 10*time.Second)
	def(&o.ReopenBackOff, 100*time.Millisecond)
	def(&o.PruneEvery, failpoint.Often(time.Minute))
	if o.Shards == 0 {
		o.Shards = 8
	}
	if o.ClusterPolicy == nil {
		o.ClusterPolicy = func(string) PolicyPatch { return PolicyPatch{} }
	}
	if o.HistoryQuotas == (HistoryQuotas{}) {
		o.HistoryQuotas = DefaultHistoryQuotas()
	}
	if o.Jitter == nil {
		o.Jitter = func(d time.Duration) time.Duration {
			return time.Duration(float64(d) * (0.8 + 0.4*mathrand.Float64()))
		}
	}
	if o.NewToken == nil {
		o.NewToken = rand.Text
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnHealth == nil {
		o.OnHealth = func(bool, error) {}
	}
}

// Engine decides, waits and dispatches for many clusters. It keeps one core of
// state at a time; when the store fails it drops the core, opens the store
// again and loads a new one.
type Engine struct {
	opts Options

	mu      sync.Mutex // guards what follows
	core    *core
	changed chan struct{} // closed when core changes
	stopped bool

	stop     context.CancelFunc
	finished chan struct{}
}

// New returns an engine that has not started.
func New(opts Options) *Engine {
	opts.setDefaults()
	return &Engine{opts: opts, changed: make(chan struct{}), finished: make(chan struct{})}
}

// Start opens and loads the store. Its error is the store's: a locked file, an
// unknown schema, a file that cannot be read. After it the engine serves until
// Stop, through store failures that come later.
func (g *Engine) Start(ctx context.Context) error {
	c, err := g.boot(ctx)
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = stop
	g.install(c)
	g.opts.OnHealth(true, nil)
	go g.supervise(run, c)
	return nil
}

// boot makes a core from the store, with a first commit that shows that the
// store can be written.
func (g *Engine) boot(ctx context.Context) (*core, error) {
	store, err := g.opts.Open(ctx)
	if err != nil {
		return nil, err
	}
	c := newCore(context.WithoutCancel(ctx), &g.opts, store)
	if err := c.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("load the store: %w", err), store.Close())
	}
	probe := &Batch{Now: c.clock.Now(), Revision: c.committer.revision + 1}
	if err := store.Commit(ctx, probe); err != nil {
		return nil, errors.Join(fmt.Errorf("write to the store: %w", err), store.Close())
	}
	c.committer.revision = probe.Revision
	c.ring = newRing(probe.Revision)
	c.start()
	return c, nil
}

func (g *Engine) install(c *core) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.core = c
	close(g.changed)
	g.changed = make(chan struct{})
}

// supervise waits for the core to end and replaces it until the engine stops.
func (g *Engine) supervise(ctx context.Context, c *core) {
	defer close(g.finished)
	wait := g.opts.ReopenBackOff
	for {
		select {
		case <-ctx.Done():
			g.install(nil)
			g.finish(c.stop(ErrStopped))
			return
		case <-c.ctx.Done():
		}
		cause := context.Cause(c.ctx)
		g.install(nil)
		g.opts.OnHealth(false, cause)
		g.opts.Logger.Error("store failed; opening it again", "error", cause)
		if err := c.stop(ErrUnavailable); err != nil && !errors.Is(err, cause) {
			g.opts.Logger.Warn("closing the failed store", "error", err)
		}
		if c.committer.provenFor() >= provenAfter {
			wait = g.opts.ReopenBackOff
		}
		if c = g.reboot(ctx, &wait); c == nil {
			return
		}
		g.install(c)
		g.opts.OnHealth(true, nil)
		g.opts.Logger.Info("store is open again")
	}
}

func (g *Engine) finish(err error) {
	if err != nil {
		g.opts.Logger.Warn("closing the store", "error", err)
	}
}

const (
	// maxReopenBackOff is the longest wait before the store is opened again.
	maxReopenBackOff = 30 * time.Second
	// provenAfter is how long commits must have succeeded for a store to be sound
	// again. That it opens and takes a small commit proves little: one that fails
	// on large commits only would be opened, and every feed be listed, all the time.
	provenAfter = 30 * time.Second
)

// reboot boots with back-off until it works; nil when the engine stops. wait is
// the next wait, doubled with each use.
func (g *Engine) reboot(ctx context.Context, wait *time.Duration) *core {
	wake := make(chan struct{}, 1)
	timer := g.opts.Clock.NewTimer(func() { wake <- struct{}{} })
	defer timer.Stop()
	for {
		timer.Reset(g.opts.Clock.Now().Add(*wait))
		*wait = min(2**wait, maxReopenBackOff)
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
		c, err := g.boot(ctx)
		if err == nil {
			return c
		}
		g.opts.OnHealth(false, err)
		g.opts.Logger.Error("store cannot be used yet", "error", err, "retry_in", *wait)
	}
}

// Stop ends the engine: it waits, no longer than ctx, for what is under way to
// reach the disk, ends the streams, and closes the store.
func (g *Engine) Stop(ctx context.Context) {
	g.mu.Lock()
	c := g.core
	first := !g.stopped
	g.stopped = true
	g.mu.Unlock()
	if first && c != nil {
		if err := c.drain(ctx); err != nil {
			g.opts.Logger.Warn("stopping before everything was settled", "error", err)
		}
	}
	g.stop()
	<-g.finished
}

// Settle waits until nothing is queued or being handled, so that only time or a
// call can make something happen. Owners of a virtual clock call it.
func (g *Engine) Settle(ctx context.Context) error {
	c, err := g.current()
	if err != nil {
		return err
	}
	return c.drain(ctx)
}

// current returns the core, or why there is none.
func (g *Engine) current() (*core, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.core != nil:
		return g.core, nil
	case g.stopped:
		return nil, ErrStopped
	}
	return nil, ErrUnavailable
}

// find returns the core and the cluster of that name. Errors: ErrClusterUnknown, and
// those of current.
func (g *Engine) find(name string) (*core, *cluster, error) {
	c, err := g.current()
	if err != nil {
		return nil, nil, err
	}
	cl := c.cluster(name)
	if cl == nil {
		return nil, nil, fmt.Errorf("%w: %q", ErrClusterUnknown, name)
	}
	return c, cl, nil
}

// WaitServing waits until the engine serves.
func (g *Engine) WaitServing(ctx context.Context) error {
	for {
		g.mu.Lock()
		c, changed, stopped := g.core, g.changed, g.stopped
		g.mu.Unlock()
		switch {
		case stopped:
			return ErrStopped
		case c != nil:
			return nil
		}
		select {
		case <-changed:
		case <-g.finished:
			return ErrStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// OpenFeed gives a cluster to a feed. Errors: ErrClusterUID, ErrFeedHeld, ErrUnavailable.
func (g *Engine) OpenFeed(hello FeedHello, sink FeedSink) (*FeedSession, FeedWelcome, error) {
	c, err := g.current()
	if err != nil {
		return nil, FeedWelcome{}, err
	}
	return c.openFeed(hello, sink)
}

// AttachExecutor gives an executor its place. Errors: ErrUnavailable, ErrStopped.
func (g *Engine) AttachExecutor(hello ExecutorHello, sink OrderSink) (*ExecutorSession, error) {
	c, err := g.current()
	if err != nil {
		return nil, err
	}
	return c.executors.attach(hello, sink)
}

// EvictionID makes the id that readers know an eviction by.
func EvictionID(cluster string, seq uint64) string {
	return cluster + "/" + strconv.FormatUint(seq, 10)
}

// ParseEvictionID takes an eviction's id apart.
func ParseEvictionID(id string) (cluster string, seq uint64, err error) {
	cluster, num, ok := strings.Cut(id, "/")
	if seq, err = strconv.ParseUint(num, 10, 64); !ok || cluster == "" || err != nil || seq == 0 {
		return "", 0, fmt.Errorf("%w: eviction id %q is not of the form CLUSTER/NUMBER", ErrInvalid, id)
	}
	return cluster, seq, nil
}

func stack() string { return string(debug.Stack()) }
