package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// core is one incarnation of the engine's state: what was loaded from the
// store, and the goroutines that work on it. A commit error ends it; the engine
// then loads a new one, and nothing is rolled back in memory.
type core struct {
	opts       *Options
	clock      clock.Clock
	observer   Observer
	quotas     HistoryQuotas
	store      Store
	activity   activity
	committer  *committer
	shards     []*shard
	ring       *ring
	deliveries *deliveries
	executors  *executors

	pruning clock.Timer

	ctx    context.Context
	cancel context.CancelCauseFunc
	group  *errgroup.Group

	mu       sync.RWMutex // guards clusters and stopped
	clusters map[string]*cluster
	stopped  bool // no goroutine may be started any more
}

func newCore(ctx context.Context, opts *Options, store Store) *core {
	c := &core{opts: opts, clock: opts.Clock, observer: opts.Observer, quotas: opts.HistoryQuotas, store: store, clusters: map[string]*cluster{}}
	ctx, c.cancel = context.WithCancelCause(ctx)
	c.group, c.ctx = errgroup.WithContext(ctx)
	c.committer = newCommitter(c)
	c.deliveries = newDeliveries()
	c.executors = newExecutors(c)
	for i := range opts.Shards {
		c.shards = append(c.shards, newShard(c, i))
	}
	return c
}

// start runs the goroutines. Everything loaded is in place before.
func (c *core) start() {
	c.spawn(c.committer.run)
	for _, s := range c.shards {
		s.rearm()
		c.spawn(s.run)
	}
	for _, cl := range c.clusters {
		c.spawnDispatcher(cl)
		c.spawnHealth(cl)
		// What ended while nothing ran goes at once.
		cl.mu.Lock()
		cl.armExpiry()
		cl.mu.Unlock()
	}
	c.schedulePrune()
}

// spawn runs f until it ends; its error, or its panic, ends the core.
func (c *core) spawn(f func(context.Context) error) {
	c.group.Go(func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = c.panicked(r)
			}
		}()
		return f(c.ctx)
	})
}

// newTimer returns a stopped timer that calls f. Its panic ends the core, too.
func (c *core) newTimer(f func()) clock.Timer {
	return c.clock.NewTimer(func() {
		defer func() {
			if r := recover(); r != nil {
				c.cancel(c.panicked(r))
			}
		}()
		f()
	})
}

// panicked makes an error of a panic, and tells of it.
func (c *core) panicked(r any) error {
	c.opts.Logger.Error("engine goroutine panicked", "panic", r, "stack", stack())
	return fmt.Errorf("panic: %v", r)
}

func (c *core) spawnDispatcher(cl *cluster) {
	c.spawn(func(context.Context) error { return cl.dispatcher.run(cl.ctx) })
}

// spawnHealth runs a cluster's owner of node health, if it has one, or removes
// what an earlier one left.
func (c *core) spawnHealth(cl *cluster) {
	if h := cl.health; h != nil {
		c.spawn(func(context.Context) error { return h.run(cl.ctx) })
		return
	}
	for _, name := range cl.strayHealth {
		c.commit(nil, deleteHealth(cl.name, name))
	}
	cl.strayHealth = nil
}

// stop ends the goroutines, waits for them, and closes the store.
func (c *core) stop(cause error) error {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.cancel(cause)
	err := c.group.Wait()
	c.ring.close(cause)
	c.executors.end(cause)
	for _, cl := range c.all() {
		cl.end(cause)
	}
	c.pruning.Stop()
	return errors.Join(err, c.store.Close())
}

// drain waits until everything under way is on disk.
func (c *core) drain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	settled := make(chan error, 1)
	go func() { settled <- c.activity.settle(ctx) }()
	select {
	case err := <-settled:
		return err
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// shardOf returns the shard that owns a node.
func (c *core) shardOf(cluster, node string) *shard {
	h := fnv.New64a()
	// Writes to a hash do not fail.
	_, _ = h.Write([]byte(cluster))
	_, _ = h.Write([]byte{'/'})
	_, _ = h.Write([]byte(node))
	return c.shards[h.Sum64()%uint64(len(c.shards))]
}

func (c *core) cluster(name string) *cluster {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.clusters[name]
}

// all returns all clusters, in no order.
func (c *core) all() []*cluster {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*cluster, 0, len(c.clusters))
	for _, cl := range c.clusters {
		out = append(out, cl)
	}
	return out
}

// ensure returns the cluster of that name, made known if it is new.
func (c *core) ensure(name string) *cluster {
	c.mu.Lock()
	cl := c.clusters[name]
	if cl != nil {
		c.mu.Unlock()
		return cl
	}
	cl = c.addCluster(LoadedCluster{Record: ClusterRecord{Name: name}})
	conf := cl.conf
	for _, s := range c.shards {
		s.inbox.put(shardMsg{task: func(s *shard) { s.clusters[name] = newShardCluster(cl, conf) }})
	}
	if !c.stopped {
		c.spawnDispatcher(cl)
		c.spawnHealth(cl)
	}
	c.mu.Unlock()
	c.executors.clusterAdded(cl)
	return cl
}

// lock returns the cluster of that name with its mu held, made known if it is
// new. One that is being forgotten has to be off the disk before, or the new one
// could go with it. Its error is ErrUnavailable.
func (c *core) lock(name string) (*cluster, error) {
	for {
		cl := c.ensure(name)
		cl.mu.Lock()
		err := cl.over()
		if err == nil {
			return cl, nil
		}
		cl.mu.Unlock()
		if !errors.Is(err, ErrClusterUnknown) {
			return nil, err
		}
		select {
		case <-cl.gone:
		case <-c.ctx.Done():
			return nil, ErrUnavailable
		}
	}
}

// addCluster makes a cluster from its record. c.mu is held, or nothing runs yet.
func (c *core) addCluster(l LoadedCluster) *cluster {
	cl := newCluster(c, l)
	c.clusters[cl.name] = cl
	return cl
}

// onShards runs f in every shard's goroutine and then, after the last, then.
func (c *core) onShards(f func(*shard), then func()) {
	left := newCountdown(len(c.shards), then)
	for _, s := range c.shards {
		s.inbox.put(shardMsg{task: func(s *shard) {
			f(s)
			s.flush()
			left.done()
		}})
	}
}

// ask runs f in the shard's goroutine and waits for it.
func (c *core) ask(ctx context.Context, s *shard, f func(*shard)) error {
	done := make(chan struct{})
	s.inbox.put(shardMsg{task: func(s *shard) {
		f(s)
		close(done)
	}})
	return c.await(ctx, done)
}

// await waits for done, the caller's context, or the end of the core.
func (c *core) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return ErrUnavailable
	}
}

// settled waits until all that the shards have changed of a cluster is on disk.
func (c *core) settled(ctx context.Context, cluster string) error {
	done := make(chan struct{})
	c.onShards(func(*shard) {}, func() {
		c.commit(func() { close(done) }, Change{Cluster: cluster})
	})
	return c.await(ctx, done)
}

// commit queues changes and calls then when they are on disk.
func (c *core) commit(then func(), changes ...Change) {
	items := make([]pending, len(changes))
	for i := range changes {
		items[i] = pending{kind: changes[i].Kind, cluster: changes[i].Cluster, other: &changes[i]}
	}
	items[len(items)-1].then = then
	c.committer.put(items...)
}

func (c *core) newToken() string { return c.opts.NewToken() }

func (c *core) jitter(d time.Duration) time.Duration { return c.opts.Jitter(d) }

// schedulePrune makes the committer look at history now and then.
func (c *core) schedulePrune() {
	var timer clock.Timer
	timer = c.newTimer(func() {
		c.committer.put(pending{prune: true})
		timer.Reset(c.clock.Now().Add(c.opts.PruneEvery))
		if c.ctx.Err() != nil {
			timer.Stop() // The core's own stop may have come before the reset.
		}
	})
	c.pruning = timer
	if c.opts.PruneEvery > 0 {
		timer.Reset(c.clock.Now().Add(c.opts.PruneEvery))
	}
}
