package timeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// maxHeld bounds the entries of one input that are held until all are complete. An
// input with more is not read on until then.
const maxHeld = 10_000

// DefaultSyncedAfter is the silence after which a watch's stream has shown its whole list.
const DefaultSyncedAfter = 2 * time.Second

// Input is one file or stream of several that make one feed.
type Input struct {
	Name string
	R    io.Reader
}

// MergeOptions configure [Merge].
type MergeOptions struct {
	Options
	// SyncedAfter is the silence after which a watch's stream has shown its whole
	// list; zero means [DefaultSyncedAfter].
	SyncedAfter time.Duration
	// AfterFunc calls f in a goroutine of its own once d has passed, unless stop is
	// called before. Nil: silence completes no list.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
	// Ended is called when an input has ended, with its name, between two calls of
	// emit; may be nil.
	Ended func(name string)
}

// Merge reads several inputs side by side, each one resource's list or watch
// stream, and hands their entries to emit one at a time. When every input is
// complete it calls synced once: an input is complete at its first entry that is
// not ADDED, after SyncedAfter of silence, or at its end. That entry and those
// after it are not of the list: they come after the call of synced, but for leases,
// which no list has. Silence counts while the input is waited for, not while emit
// takes its time; that of an input which has shown nothing yet counts from the first
// entry of another, because until then the programs that write may not have reached
// their server. Merge returns
// when all inputs have ended, with the first error of one, of emit or of synced,
// or ctx's cause. A read that blocks is not waited for: close the inputs.
func Merge(ctx context.Context, inputs []Input, o MergeOptions, emit func(Entry) error, synced func() error) error {
	if len(inputs) == 0 {
		return errors.New("nothing to read")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &merger{
		ctx: ctx, opts: o, events: make(chan mergeEvent), whole: make(chan struct{}), inputs: make([]inputState, len(inputs)),
		open: len(inputs), incomplete: len(inputs), emit: emit, synced: synced,
	}
	for i := range inputs {
		m.inputs[i].name = inputs[i].Name
	}
	if m.opts.UIDs == nil {
		m.opts.UIDs = NewUIDs()
	}
	if m.opts.SyncedAfter <= 0 {
		m.opts.SyncedAfter = DefaultSyncedAfter
	}
	if warn := m.opts.Warn; warn != nil {
		var mu sync.Mutex // Lets one reader at a time warn.
		m.opts.Warn = func(w Warning) {
			mu.Lock()
			defer mu.Unlock()
			warn(w)
		}
	}
	for i := range inputs {
		go m.read(i, inputs[i])
	}
	return m.run()
}

type mergeEvent struct {
	input int
	entry Entry
	// silent: nothing came after the first seen entries.
	silent bool
	seen   int64
	err    error // io.EOF at the end
}

type merger struct {
	ctx    context.Context
	opts   MergeOptions
	events chan mergeEvent
	// whole is closed when every input is complete.
	whole  chan struct{}
	inputs []inputState
	// held are entries of complete inputs while others are not.
	held   []Entry
	emit   func(Entry) error
	synced func() error
	// open and incomplete count inputs.
	open, incomplete int
	started          bool
}

type inputState struct {
	name string
	// seen counts what was read, its end included, also while it waits to be taken.
	seen atomic.Int64
	// complete and held, how many of its entries are held, are set by run alone.
	complete atomic.Bool
	held     atomic.Int64
}

// read reads one input in a goroutine of its own.
func (m *merger) read(i int, in Input) {
	r := NewReader(in.R, in.Name, m.opts.Options)
	state := &m.inputs[i]
	for {
		stop := func() bool { return true }
		if state.held.Load() >= maxHeld && !m.waitWhole() {
			return
		}
		if seen := state.seen.Load(); seen > 0 {
			stop = m.listen(i, seen)
		}
		e, err := r.Next()
		state.seen.Add(1)
		stop()
		if !m.send(mergeEvent{input: i, entry: e, err: err}) || err != nil {
			return
		}
	}
}

// waitWhole waits until every input is complete, and reports whether they are.
func (m *merger) waitWhole() bool {
	select {
	case <-m.whole:
		return true
	case <-m.ctx.Done():
		return false
	}
}

// listen begins to count an input's silence.
func (m *merger) listen(i int, seen int64) (stop func() bool) {
	if m.opts.AfterFunc == nil || m.inputs[i].complete.Load() {
		return func() bool { return true }
	}
	return m.opts.AfterFunc(m.opts.SyncedAfter, func() { m.send(mergeEvent{input: i, silent: true, seen: seen}) })
}

func (m *merger) send(e mergeEvent) bool {
	select {
	case m.events <- e:
		return true
	case <-m.ctx.Done():
		return false
	}
}

func (m *merger) run() error {
	var stops []func() bool
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for m.open > 0 {
		if m.ctx.Err() != nil {
			return context.Cause(m.ctx)
		}
		var ev mergeEvent
		select {
		case ev = <-m.events:
		case <-m.ctx.Done():
			return context.Cause(m.ctx)
		}
		if err := m.take(ev); err != nil {
			return err
		}
		if !m.started {
			m.started = true
			for i := range m.inputs {
				if m.inputs[i].seen.Load() == 0 {
					stops = append(stops, m.listen(i, 0))
				}
			}
		}
	}
	return nil
}

// take handles one event of an input.
func (m *merger) take(ev mergeEvent) error {
	var done bool
	switch {
	case ev.silent:
		done = m.inputs[ev.input].seen.Load() == ev.seen
	case errors.Is(ev.err, io.EOF):
		m.open--
		done = true
		if m.opts.Ended != nil {
			m.opts.Ended(m.inputs[ev.input].name)
		}
	case ev.err != nil:
		return ev.err
	default:
		done = ev.entry.Type != Added
	}
	state := &m.inputs[ev.input]
	if done && state.complete.CompareAndSwap(false, true) {
		if m.incomplete--; m.incomplete == 0 {
			if err := m.endOfList(); err != nil {
				return err
			}
		}
	}
	switch {
	case ev.err != nil || ev.silent:
		return nil //nolint:nilerr // only io.EOF comes here: an input's end is no fault
	case m.incomplete > 0 && state.complete.Load() && ev.entry.Lease == nil:
		m.held = append(m.held, ev.entry)
		state.held.Add(1)
		return nil
	}
	return m.emit(ev.entry)
}

// endOfList tells that every input is complete and hands out what was held until then.
func (m *merger) endOfList() error {
	if err := m.synced(); err != nil {
		return fmt.Errorf("end of the list: %w", err)
	}
	close(m.whole)
	for _, e := range m.held {
		if err := m.emit(e); err != nil {
			return err
		}
	}
	m.held = nil
	return nil
}
