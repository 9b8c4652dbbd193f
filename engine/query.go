package engine

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// listBudget bounds how many evictions a shard looks at for a reader before its
// other work has a turn.
const listBudget = 10_000

// listCursor is a place in the order of open evictions: (due, cluster, seq).
type listCursor struct {
	due     time.Time
	cluster string
	seq     uint64
}

func (c listCursor) String() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.due.Unix()))
	b = binary.BigEndian.AppendUint32(b, uint32(c.due.Nanosecond()))
	b = binary.BigEndian.AppendUint64(b, c.seq)
	return base64.RawURLEncoding.EncodeToString(append(b, c.cluster...))
}

func parseListCursor(s string) (c listCursor, err error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) <= 20 {
		return c, fmt.Errorf("%w: page token is not one of this service's", ErrInvalid)
	}
	c.due = time.Unix(int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint32(b[8:]))).UTC()
	c.seq, c.cluster = binary.BigEndian.Uint64(b[12:]), string(b[20:])
	return c, nil
}

// place is where an open eviction's version stands in the order.
func (v *Version) place() listCursor {
	return listCursor{v.grounds.due, v.grounds.node.sc.name, v.Seq()}
}

func (c listCursor) compare(o listCursor) int {
	return cmp.Or(c.due.Compare(o.due), cmp.Compare(c.cluster, o.cluster), cmp.Compare(c.seq, o.seq))
}

// List returns open evictions by due instant, a page at a time. It reads memory
// only. Errors: ErrInvalid (cursor), ErrClusterUnknown, ErrUnavailable.
func (g *Engine) List(ctx context.Context, q ListQuery) (ListPage, error) {
	c, err := g.current()
	if err != nil {
		return ListPage{}, err
	}
	if q.Cluster != "" && c.cluster(q.Cluster) == nil {
		return ListPage{}, fmt.Errorf("%w: %q", ErrClusterUnknown, q.Cluster)
	}
	l := lister{q: &q}
	if q.Cursor != "" {
		cur, err := parseListCursor(q.Cursor)
		if err != nil {
			return ListPage{}, err
		}
		l.after = &cur
	}
	shards := c.shards
	if q.Cluster != "" && q.Node != "" {
		shards = []*shard{c.shardOf(q.Cluster, q.Node)}
	}
	for _, s := range shards {
		if err := l.readShard(ctx, c, s); err != nil {
			return ListPage{}, err
		}
	}
	return l.result(), nil
}

// lister reads one page from shard after shard. What it holds is light: only what
// is in the page in the end is spread out into records.
type lister struct {
	q *ListQuery
	// after is the end of the page before; nil for the first page.
	after *listCursor
	// page has the first Limit+1 of what was read so far, in order.
	page []Version
	// got and merged are room, for what a shard gives and for the next page.
	got, merged []Version
}

// readShard adds a shard's evictions, cluster by cluster and in turns.
func (l *lister) readShard(ctx context.Context, c *core, s *shard) error {
	var names []string
	if err := c.ask(ctx, s, func(s *shard) {
		for name := range s.clusters {
			if (l.q.Cluster == "" || l.q.Cluster == name) && (l.q.Allowed == nil || l.q.Allowed(name)) {
				names = append(names, name)
			}
		}
	}); err != nil {
		return err
	}
	for _, name := range names {
		got := l.got[:0]
		for from, more := l.after, true; more; {
			err := c.ask(ctx, s, func(s *shard) {
				more = false
				if sc := s.clusters[name]; sc != nil {
					got, from, more = s.listCluster(sc, l, from, got)
				}
			})
			if err != nil {
				return err
			}
		}
		l.got = got
		l.merge(got)
	}
	return nil
}

// beyond reports whether the page is full without what stands there.
func (l *lister) beyond(at listCursor) bool {
	return len(l.page) > l.q.Limit && at.compare(l.page[l.q.Limit].place()) > 0
}

// merge puts evictions into the page that are in order among themselves.
func (l *lister) merge(got []Version) {
	if len(l.page) == 0 {
		l.page, l.got = got, l.page
		return
	}
	had := l.page
	l.page, l.merged = slices.Grow(l.merged[:0], min(len(had)+len(got), l.q.Limit+1)), had
	for len(l.page) <= l.q.Limit && len(had)+len(got) > 0 {
		next := &had
		if len(had) == 0 || len(got) > 0 && got[0].place().compare(had[0].place()) < 0 {
			next = &got
		}
		l.page = append(l.page, (*next)[0])
		*next = (*next)[1:]
	}
}

// result is the page as records, which share one allocation.
func (l *lister) result() ListPage {
	var page ListPage
	if len(l.page) > l.q.Limit {
		l.page = l.page[:l.q.Limit]
		page.Cursor = l.page[l.q.Limit-1].place().String()
	}
	records := make([]EvictionRecord, len(l.page))
	page.Evictions = make([]*EvictionRecord, len(l.page))
	for i := range l.page {
		l.page[i].Fill(&records[i])
		page.Evictions[i] = &records[i]
	}
	return page
}

// listCluster appends matches to got until the page is full, the budget is
// spent, or the end is reached; more says that there may be some left.
func (s *shard) listCluster(sc *shardCluster, l *lister, after *listCursor, got []Version) (_ []Version, last *listCursor, more bool) {
	q, visited := l.q, 0
	visit := func(e *eviction) bool {
		at := listCursor{e.due(), sc.name, e.seq()}
		if after != nil && at.compare(*after) <= 0 {
			return true
		}
		if !q.DueBefore.IsZero() && !e.due().Before(q.DueBefore) {
			return false
		}
		if l.beyond(at) {
			return false
		}
		visited++
		last = &at
		if s.matches(sc, q, e) {
			got = append(got, s.view(sc, e))
		}
		more = visited >= listBudget
		return len(got) <= q.Limit && !more
	}
	if q.Node != "" {
		s.listNode(sc, q.Node, visit)
		return got, last, false
	}
	if after == nil {
		sc.index.ascend(time.Time{}, 0, visit)
	} else {
		var seq uint64
		if after.cluster == sc.name {
			seq = after.seq
		}
		sc.index.ascend(after.due, seq, visit)
	}
	return got, last, more && len(got) <= q.Limit
}

// listNode visits a node's evictions by due instant: a node has few.
func (s *shard) listNode(sc *shardCluster, name string, visit func(*eviction) bool) {
	n := sc.nodes[name]
	if n == nil {
		return
	}
	var all []*eviction
	for _, p := range n.pods {
		if p.ev != nil && p.ev.indexed {
			all = append(all, p.ev)
		}
	}
	for e := range sc.active(s.now) {
		if e.pod.gone && e.pod.node.name == name && e.indexed {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *eviction) int {
		return cmp.Or(a.due().Compare(b.due()), cmp.Compare(a.seq(), b.seq()))
	})
	for _, e := range all {
		if !visit(e) {
			return
		}
	}
}

func (s *shard) matches(sc *shardCluster, q *ListQuery, e *eviction) bool {
	p := e.pod
	if q.Namespace != "" && p.namespace.Value() != q.Namespace || q.Pod != "" && p.name != q.Pod ||
		q.UID != "" && p.uid != q.UID || q.Node != "" && p.node.name != q.Node {
		return false
	}
	if len(q.States) > 0 && !slices.Contains(q.States, s.stateNow(e)) {
		return false
	}
	if len(q.Holds) > 0 && (s.stateNow(e) != StateDue || !slices.Contains(q.Holds, s.holdNow(sc, e))) {
		return false
	}
	return q.Requester == "" || slices.ContainsFunc(e.requests(), func(r Request) bool { return r.Requester == q.Requester })
}

// stateNow is the state that a reader sees: what is past its due instant is due.
func (s *shard) stateNow(e *eviction) State {
	if e.state == StateWaiting && !e.due().After(s.now) {
		return StateDue
	}
	return e.state
}

// holdNow is the hold that a reader sees: of what the shard lets through, the dispatcher knows.
func (s *shard) holdNow(sc *shardCluster, e *eviction) Hold {
	switch {
	case e.hold != HoldNone || s.stateNow(e) != StateDue:
		return e.hold
	case e.leaving():
		return Hold(sc.dispatcher.blocked.Load())
	}
	// What has become of it is on its way to the disk, and it is gated after that.
	hold, _ := s.held(sc, e)
	return hold
}

// view is the eviction as readers see it.
func (s *shard) view(sc *shardCluster, e *eviction) (v Version) {
	e.version(&v)
	v.state = s.stateNow(e)
	if v.state == StateDue {
		v.hold = s.holdNow(sc, e)
	}
	return v
}

// Get returns one eviction, open or closed, by its id. Errors: ErrEvictionUnknown,
// ErrInvalid, ErrUnavailable.
func (g *Engine) Get(ctx context.Context, id string) (*EvictionRecord, error) {
	name, seq, err := ParseEvictionID(id)
	if err != nil {
		return nil, err
	}
	c, err := g.current()
	if err != nil {
		return nil, err
	}
	if c.cluster(name) == nil {
		return nil, fmt.Errorf("%w: %q", ErrEvictionUnknown, id)
	}
	// Looked for among the open ones first: one that closes in between is found in history.
	rec, err := c.openBySeq(ctx, name, seq)
	if rec != nil || err != nil {
		return rec, err
	}
	rec, err = c.store.HistoryEviction(ctx, name, seq)
	if errors.Is(err, ErrNotFound) {
		// It may have closed and be on its way there.
		if err := c.settled(ctx, name); err != nil {
			return nil, err
		}
		rec, err = c.store.HistoryEviction(ctx, name, seq)
	}
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: %q", ErrEvictionUnknown, id)
	}
	return rec, err
}

// History returns closed evictions, newest first, from disk. All that is no
// longer among the open ones when it is called is there.
func (g *Engine) History(ctx context.Context, q HistoryQuery) (HistoryPage, error) {
	c, _, err := g.find(q.Cluster)
	if err != nil {
		return HistoryPage{}, err
	}
	if q.Cursor == "" {
		if err := c.settled(ctx, q.Cluster); err != nil {
			return HistoryPage{}, err
		}
	}
	return c.store.History(ctx, q)
}

// Revision is that of the last commit.
func (g *Engine) Revision() (uint64, error) {
	c, err := g.current()
	if err != nil {
		return 0, err
	}
	return c.ring.revision(), nil
}

// StoreSize is the size of the data on disk in bytes, and how much of it is free
// for new records. Errors: ErrUnavailable, ErrStopped.
func (g *Engine) StoreSize() (size, free int64, err error) {
	c, err := g.current()
	if err != nil {
		return 0, 0, err
	}
	return c.store.Size(), c.store.Free(), nil
}

// Watch returns a reader of the changes after a revision. Errors: ErrRevisionTooOld, ErrUnavailable.
func (g *Engine) Watch(revision uint64) (*Watcher, error) {
	c, err := g.current()
	if err != nil {
		return nil, err
	}
	return c.ring.watch(revision)
}

// Clusters returns the status of all clusters that allowed lets through, by name.
func (g *Engine) Clusters(ctx context.Context, allowed func(string) bool) ([]*ClusterStatus, error) {
	c, err := g.current()
	if err != nil {
		return nil, err
	}
	var out []*ClusterStatus
	for _, cl := range c.all() {
		if allowed != nil && !allowed(cl.name) {
			continue
		}
		st, err := c.status(ctx, cl)
		if errors.Is(err, ErrClusterUnknown) {
			continue // Forgotten since.
		}
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b *ClusterStatus) int { return cmp.Compare(a.Record.Name, b.Record.Name) })
	return out, nil
}

// Cluster returns one cluster's status. Errors: ErrClusterUnknown, ErrUnavailable.
func (g *Engine) Cluster(ctx context.Context, name string) (*ClusterStatus, error) {
	c, cl, err := g.find(name)
	if err != nil {
		return nil, err
	}
	return c.status(ctx, cl)
}

func (c *core) status(ctx context.Context, cl *cluster) (*ClusterStatus, error) {
	st := &ClusterStatus{Open: map[State]int{}, Holds: map[Hold]int{}}
	done := make(chan struct{})
	parts := make([]shardStatus, len(c.shards))
	cl.mu.Lock()
	now := c.clock.Now()
	st.Record, st.Policy, st.Etag, st.Damaged = cl.rec, cl.conf.policy, cl.etag(), cl.damaged
	st.Record.Pauses = slices.DeleteFunc(slices.Clone(cl.conf.pauses), func(q Pause) bool { return q.over(now) })
	st.Sync, st.Feed, st.LastMessage = cl.sync, cl.last, cl.lastMessage
	st.Nodes, st.Pods, st.Reprieves = len(cl.nodes), cl.pods.len(), len(cl.conf.reprieves)
	if !cl.lastMessage.IsZero() {
		st.FeedAge = now.Sub(cl.lastMessage)
	}
	st.Ignored = map[string]uint64{
		"taint_effect": cl.ignored.taintEffect.Load(), "unknown_kind": cl.ignored.unknownKind.Load(),
		"unknown_uid": cl.ignored.unknownUID.Load(),
	}
	st.Foreign = cl.foreign.status(now)
	if !st.Policy.DisableBlastRadius {
		st.Trips = slices.DeleteFunc(cl.blastTrips(""), func(t BlastTrip) bool { return t.TrippedAt.IsZero() })
	}
	left := newCountdown(2, func() { close(done) })
	cl.dispatcher.inbox.put(dispatchMsg{task: func(d *dispatcher) {
		st.Executors = d.status()
		left.done()
	}})
	self := cl.pods.byUID(c.opts.SelfPodUID)
	c.onShards(func(s *shard) {
		parts[s.id] = s.status(cl.name)
		if self != nil && self.shard() == s && self.alive() {
			st.Self = PodRef{UID: self.uid, Namespace: self.namespace.Value(), Name: self.name}
		}
	}, left.done)
	cl.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-cl.ctx.Done():
		// A dispatcher that has ended does not answer.
		return nil, cl.over()
	}
	for i := range parts {
		parts[i].addTo(st)
	}
	var err error
	if st.Health, _, err = c.healthStatus(ctx, cl, func(string) bool { return false }); err != nil {
		return nil, err
	}
	if st.Health != nil && st.Feed.NodeLifecycle != "" {
		st.Health.Other, st.Health.OtherAt = st.Feed.NodeLifecycle, time.Time{}
	}
	st.Warnings = st.warnings(now)
	return st, nil
}

// EvictsSelf reports whether the engine runs in a pod that it may be the only one to evict.
func (st *ClusterStatus) EvictsSelf() bool {
	return st.Self != PodRef{} && st.Policy.Mode == ModeEnforce
}

// warnings are what an operator should know of a cluster without asking.
func (st *ClusterStatus) warnings(now time.Time) (w []string) {
	if st.Damaged {
		w = append(w, "the cluster's record on disk is damaged: nothing is sent until its policy is set anew or it is forgotten")
	}
	if st.Policy.Mode == ModeEnforce && len(st.Executors) == 0 {
		w = append(w, "no executor is attached: nothing can be sent")
	}
	if st.Foreign.Count > 0 {
		w = append(w, st.Foreign.warning())
	}
	if st.Health != nil {
		w = append(w, st.Health.warnings()...)
	}
	if st.EvictsSelf() {
		w = append(w, fmt.Sprintf("this service runs in %s of this cluster, whose pods it evicts: if its node dies, nobody evicts it, "+
			"and nobody evicts anything here; run it elsewhere, see \"Where to run it\" in docs/operations.md", st.Self))
	}
	for i := range st.Trips {
		w = append(w, st.Trips[i].warning(&st.Policy))
	}
	if st.Looping > 0 {
		w = append(w, fmt.Sprintf("%d owners' pods keep coming back to nodes that they are evicted from; they wait longer each time", st.Looping))
	}
	if st.Stuck > 0 {
		w = append(w, fmt.Sprintf("%d evictions are stuck (%d or more attempts)", st.Stuck, stuckAttempts))
	}
	if n := st.Ignored["taint_effect"]; n > 0 {
		w = append(w, fmt.Sprintf("%d taints with a missing or unknown effect were ignored", n))
	}
	if late := now.Sub(st.OldestDue); !st.OldestDue.IsZero() && late > time.Minute {
		w = append(w, fmt.Sprintf("the oldest due eviction is %s late", late.Round(time.Second)))
	}
	return w
}

func (d *dispatcher) status() []ExecutorStatus {
	out := make([]ExecutorStatus, 0, len(d.links))
	for _, l := range d.links {
		out = append(out, ExecutorStatus{ID: l.session.hello.ID, Capacity: l.capacity, Outstanding: l.outstanding, ConnectedAt: l.attachedAt})
	}
	slices.SortFunc(out, func(a, b ExecutorStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// shardStatus is a shard's part of a cluster's status.
type shardStatus struct {
	counts  counts
	offered int
	blocked Hold
	oldest  time.Time
	looping int
}

func (s *shard) status(name string) (st shardStatus) {
	sc := s.clusters[name]
	if sc == nil {
		return st
	}
	st.counts = sc.counts
	st.looping = sc.looping(s.now)
	st.blocked = Hold(sc.dispatcher.blocked.Load())
	for _, w := range [...]*window{&sc.fresh, &sc.retries} {
		st.offered += w.offered + w.behind
	}
	for e := range sc.active(s.now) {
		if e.state == StateDue {
			st.oldest = e.due()
			break
		}
	}
	return st
}

func (p *shardStatus) addTo(st *ClusterStatus) {
	for state, n := range p.counts.states {
		if n != 0 {
			st.Open[State(state)] += n
		}
	}
	for hold, n := range p.counts.holds {
		if Hold(hold) == HoldNone {
			n -= p.offered
		}
		if n != 0 {
			st.Holds[Hold(hold)] += n
		}
	}
	if p.offered > 0 {
		st.Holds[p.blocked] += p.offered
	}
	st.Stuck += p.counts.stuck
	st.Looping += p.looping
	if !p.oldest.IsZero() && (st.OldestDue.IsZero() || p.oldest.Before(st.OldestDue)) {
		st.OldestDue = p.oldest
	}
}

// Nodes returns a cluster's nodes by name: those with NoExecute taints and those
// whose health is to change something, or all.
func (g *Engine) Nodes(ctx context.Context, name string, all bool) ([]NodeStatus, error) {
	c, cl, err := g.find(name)
	if err != nil {
		return nil, err
	}
	var out []NodeStatus
	_, healths, err := c.healthStatus(ctx, cl, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	for _, s := range c.shards {
		err := c.ask(ctx, s, func(s *shard) {
			sc := s.clusters[name]
			if sc == nil {
				return
			}
			for _, n := range sc.nodes {
				h := healths[n.name]
				if n.name != "" && (all || len(n.taints) > 0 || h != nil && h.news()) {
					st := n.status()
					st.Health = h
					out = append(out, st)
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b NodeStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func (n *node) status() NodeStatus {
	st := NodeStatus{
		Cluster: n.sc.name, Name: n.name, UID: n.uid, Known: n.known, Taints: n.force,
		EpisodeStart: n.episodeStart, Pods: len(n.pods),
	}
	for _, p := range n.pods {
		if p.ev != nil {
			st.Open++
		}
	}
	return st
}

// openBySeq finds an open eviction.
func (c *core) openBySeq(ctx context.Context, name string, seq uint64) (*EvictionRecord, error) {
	for _, s := range c.shards {
		var rec *EvictionRecord
		err := c.ask(ctx, s, func(s *shard) {
			if sc := s.clusters[name]; sc != nil {
				if e := sc.bySeq.find(seq, isOpen); e != nil {
					v := s.view(sc, e)
					rec = v.Record()
				}
			}
		})
		// After an error the shard may yet write rec.
		if err != nil {
			return nil, err
		}
		if rec != nil {
			return rec, nil
		}
	}
	return nil, nil
}

// Snapshot writes a copy of the store as it is at one instant. Commits go on
// meanwhile. w should be fast: what it waits for keeps room of the store from being
// used again, and a failed store from being closed.
func (g *Engine) Snapshot(ctx context.Context, w io.Writer) error {
	c, err := g.current()
	if err != nil {
		return err
	}
	s, ok := c.store.(Snapshotter)
	if !ok {
		return fmt.Errorf("%w: the store has no file", ErrNoBackup)
	}
	if _, err := s.WriteSnapshot(ctx, w); err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	return nil
}
