package engine_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
)

// ending is how a held commit ends.
type ending uint8

const (
	committed ending = iota
	notDone
	doneInPart
	doneAndFailed
)

var errHeld = errors.New("the held commit was made to fail")

// watchedStore stands before a store. It remembers which deliveries are on disk
// (I1) and can hold the next commit of a delivery while other things happen.
type watchedStore struct {
	mu    sync.Mutex // guards what follows
	saved map[string]bool
	// held is called, once, before the next batch with a new delivery is written.
	held func(*engine.Batch) ending
}

type watchedHandle struct {
	engine.Store
	w *watchedStore
}

func (w *watchedStore) opener(open engine.StoreOpener) engine.StoreOpener {
	return func(ctx context.Context) (engine.Store, error) {
		s, err := open(ctx)
		return watchedHandle{s, w}, err
	}
}

func (w *watchedStore) holdNext(held func(*engine.Batch) ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
}

func (w *watchedStore) isSaved(token string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.saved[token]
}

// newDeliveries are the records with deliveries that are not on disk yet.
func (w *watchedStore) newDeliveries(b *engine.Batch) (out []*engine.EvictionRecord) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range b.Changes {
		if b.Changes[i].Kind != engine.ChangePutEviction {
			continue
		}
		e := &engine.EvictionRecord{}
		if b.Changes[i].Eviction.Fill(e); e.State == engine.StateDelivered && !w.saved[e.Delivery.Token] {
			out = append(out, e)
		}
	}
	return out
}

// Commit implements [engine.Store].
func (h watchedHandle) Commit(ctx context.Context, b *engine.Batch) error {
	fresh, end := h.w.newDeliveries(b), committed
	if len(fresh) > 0 {
		h.w.mu.Lock()
		held := h.w.held
		h.w.held = nil
		h.w.mu.Unlock()
		if held != nil {
			end = held(b)
		}
	}
	switch end {
	case notDone:
		return errHeld
	case doneInPart:
		cut := *b
		cut.Changes = b.Changes[:len(b.Changes)/2]
		b = &cut
		fresh = h.w.newDeliveries(b)
	}
	err := h.Store.Commit(ctx, b)
	h.w.mu.Lock()
	for _, e := range fresh {
		h.w.saved[e.Delivery.Token] = err == nil
	}
	h.w.mu.Unlock()
	if end != committed {
		return errors.Join(errHeld, err)
	}
	return err
}

// during is what happens while a commit is held.
type during struct {
	before   snapshot
	at       time.Time // the instant of the commit
	calls    []duringCall
	ending   ending
	batch    []*engine.EvictionRecord // the deliveries in the commit
	panicked any                      // rapid ends a case so; it is passed on in the test's goroutine
}

// duringCall is a call that returns when its own commit is done, after the held one.
type duringCall struct {
	result chan error
	check  func(error)
}

// snapshot is what is put back when what came after it was lost.
type snapshot struct {
	model
	ledger
	requests map[string]map[string]time.Time
	open     map[string]*engine.EvictionRecord
}

func (r *rig) snapshot() snapshot {
	s := snapshot{model: *r.m, ledger: r.ledger, requests: map[string]map[string]time.Time{}, open: r.open()}
	s.known, s.defaults, s.ignored, s.reprieves = maps.Clone(s.known), maps.Clone(s.defaults), maps.Clone(s.ignored), maps.Clone(s.reprieves)
	s.out, s.tokens, s.retryAt, s.attempts = maps.Clone(s.out), maps.Clone(s.tokens), maps.Clone(s.retryAt), maps.Clone(s.attempts)
	s.silent, s.lingering, s.failed = maps.Clone(s.silent), maps.Clone(s.lingering), maps.Clone(s.failed)
	for uid, p := range r.m.pods {
		s.requests[uid] = maps.Clone(p.requests)
	}
	return s
}

// restore puts everything back but the cluster, and the time.
func (r *rig) restore(s snapshot) {
	s.now, s.nodes, s.pods = r.m.now, r.m.nodes, r.m.pods
	*r.m, r.ledger = s.model, s.ledger
	for uid, p := range r.m.pods {
		if p.requests = s.requests[uid]; p.requests == nil {
			p.requests = map[string]time.Time{}
		}
		if p.terminating || p.finished {
			clear(p.requests)
		}
	}
}

// duringSteps are what can happen while a commit is held.
var duringSteps = []string{
	"taint", "taint", "swap", "tolerations", "addPod", "replacePod", "deletePod", "terminate", "finish", "deleteNode", "addNode",
	"replaceNode", "lose", "lose", "pause", "pause", "policy", "policy", "request", "withdraw", "reprieve", "reprieve", "revoke",
	"mode", "mode", "attach",
}

// duringStep lets time pass up to the next commit of a delivery, lets other things
// happen until all of the engine has taken them in, and only then lets the commit
// end. What leaves after it must obey what came meanwhile.
func (r *rig) duringStep() {
	// A gap that the commit's failure begins is one from here.
	r.must(r.d.Heartbeat(r.ctx))
	r.judge()
	d := &during{before: r.snapshot()}
	d.before.lastLive = r.m.now
	to := r.d.Now() + time.Duration(rapid.SampledFrom([]int{0, 1, 5, 10, 30, 60, 300, 301}).Draw(r.T, "by"))*time.Second
	r.store.holdNext(func(b *engine.Batch) ending { r.hold(d, b); return d.ending })
	err := r.d.RunUntil(r.ctx, to)
	r.store.holdNext(nil)
	if d.panicked != nil {
		panic(d.panicked)
	}
	if d.ending != committed {
		r.crashed(d)
		return
	}
	r.must(err)
	for _, c := range d.calls {
		c.check(<-c.result)
	}
	r.m.now = epoch.Add(to)
	r.judge()
	r.checkSent()
	r.shadowed()
	if !r.m.live {
		r.unseen()
		r.relist()
	}
}

// hold is called in the committer's goroutine; the test's waits for the commit.
func (r *rig) hold(d *during, b *engine.Batch) {
	defer func() { d.panicked, r.during = recover(), nil }()
	r.during, d.batch = d, r.store.newDeliveries(b)
	r.m.now = epoch.Add(r.d.Now())
	d.at = r.m.now
	for range rapid.IntRange(1, 3).Draw(r.T, "during the commit") {
		r.act(rapid.SampledFrom(duringSteps).Draw(r.T, "step during the commit"))
		// All that is not waiting for the commit has been done.
		synctest.Wait()
	}
	d.ending = rapid.SampledFrom([]ending{committed, committed, committed, committed, notDone, doneInPart, doneAndFailed}).Draw(r.T, "ending")
	if d.ending == doneInPart {
		cut := *b
		cut.Changes = b.Changes[:len(b.Changes)/2]
		d.batch = r.store.newDeliveries(&cut)
	}
}

// call makes a call that changes something; check judges its result.
func (r *rig) call(f func(*engine.Engine) error, check func(error)) {
	eng := r.d.Engine()
	if r.during == nil {
		r.flush()
		check(f(eng))
		r.flush()
		return
	}
	c := duringCall{make(chan error, 1), check}
	r.during.calls = append(r.during.calls, c)
	go func() { c.result <- f(eng) }()
}

// crashed goes on after a commit that failed: all that was not on disk is lost,
// and of the orders that are, nobody knows that they have not left.
func (r *rig) crashed(d *during) {
	r.restore(d.before)
	r.m.now, r.m.live = d.at, false
	r.forgotten()
	if d.ending != notDone {
		for _, e := range d.batch {
			r.unanswered(e.UID, e.Delivery.Token)
			r.failed[e.UID] = true
		}
	}
	r.must(r.d.Reboot(r.ctx, time.Duration(rapid.SampledFrom([]int{0, 1, 30, 400}).Draw(r.T, "down"))*time.Second))
	for _, c := range d.calls {
		if err := <-c.result; err == nil {
			r.Fatal("I7: a call was acknowledged and what it did is not on disk")
		}
	}
	r.m.now = epoch.Add(r.d.Now())
	after := r.open()
	for uid, was := range d.before.open {
		if was.State != engine.StateWaiting && was.State != engine.StateDue {
			continue
		}
		if is := after[uid]; is == nil || !is.Due.Equal(was.Due) || is.Seq != was.Seq {
			r.Fatalf("I2: open before the crash %v, after it %v", describe(d.before.open), describe(after))
		}
	}
	r.judge()
	r.unseen()
	r.relist()
}

// attach brings the executor back on a new stream, with the orders it has; its
// old one ends.
func (r *rig) attach() {
	var held []string
	for uid, until := range r.out {
		if until.After(r.m.now) {
			held = append(held, r.tokens[uid])
		}
	}
	_, err := r.d.Engine().AttachExecutor(engine.ExecutorHello{ID: "replay", Clusters: []string{"*"}, Capacity: 1 << 20, HeldTokens: held}, r.d)
	r.must(err)
}

// left looks at an order at the moment it is handed to the stream, by what the
// engine has acknowledged or taken in until then (I1, I3, I4, I7).
func (r *rig) left(o replay.Order) {
	m := *r.m
	m.now = epoch.Add(o.At)
	why := m.maySend(o.UID)
	if !r.store.isSaved(o.Token) {
		why = "I1: its delivery is not on disk"
	}
	r.early[o.Token] = why
}
