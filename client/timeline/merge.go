package timeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Input is one file or stream of several that make one feed.
type Input struct {
	Name string
	R    io.Reader
}

// MergeOptions configure [Merge].
type MergeOptions struct {
	Options
	// SyncedAfter is the silence after which a watch stream has shown its whole list.
	SyncedAfter time.Duration
	// AfterFunc calls f once d has passed, unless stop is called before.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Merge reads several inputs side by side, each one resource's list or watch
// stream, and hands their entries to emit one at a time. When every input is
// complete it calls synced once: an input is complete at its first entry that is
// not ADDED, after SyncedAfter of silence, or at its end. It returns when all
// inputs have ended, with the first error of one, of emit or of synced, or ctx's.
func Merge(ctx context.Context, inputs []Input, o MergeOptions, emit func(Entry) error, synced func() error) error {
	if len(inputs) == 0 {
		return errors.New("nothing to read")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &merger{ctx: ctx, opts: o, events: make(chan mergeEvent), open: len(inputs), incomplete: len(inputs), emit: emit, synced: synced}
	if m.opts.UIDs == nil {
		m.opts.UIDs = NewUIDs()
	}
	for i := range inputs {
		go m.read(i, inputs[i])
	}
	return m.run(len(inputs))
}

type mergeEvent struct {
	input  int
	entry  Entry
	silent bool
	err    error // io.EOF at the end
}

type merger struct {
	ctx    context.Context
	opts   MergeOptions
	events chan mergeEvent
	emit   func(Entry) error
	synced func() error
	// open and incomplete count inputs.
	open, incomplete int
}

// read reads one input in a goroutine of its own. One that blocks in a read of a
// pipe ends when the pipe does; nothing waits for it after ctx has ended.
func (m *merger) read(i int, in Input) {
	r := NewReader(in.R, in.Name, m.opts.Options)
	for {
		e, err := r.Next()
		if !m.send(mergeEvent{input: i, entry: e, err: err}) || err != nil {
			return
		}
	}
}

func (m *merger) send(e mergeEvent) bool {
	select {
	case m.events <- e:
		return true
	case <-m.ctx.Done():
		return false
	}
}

func (m *merger) run(n int) error {
	complete := make([]bool, n)
	stop := make([]func() bool, n)
	defer func() {
		for _, s := range stop {
			if s != nil {
				s()
			}
		}
	}()
	for m.open > 0 {
		var ev mergeEvent
		select {
		case ev = <-m.events:
		case <-m.ctx.Done():
			return context.Cause(m.ctx)
		}
		if s := stop[ev.input]; s != nil && !ev.silent {
			s()
		}
		if err := m.take(ev, complete); err != nil {
			return err
		}
		if !complete[ev.input] && m.opts.AfterFunc != nil {
			i := ev.input
			stop[i] = m.opts.AfterFunc(m.opts.SyncedAfter, func() { m.send(mergeEvent{input: i, silent: true}) })
		}
	}
	return nil
}

// take handles one event of an input.
func (m *merger) take(ev mergeEvent, complete []bool) error {
	done := ev.silent
	switch {
	case errors.Is(ev.err, io.EOF):
		m.open--
		done, ev.silent = true, true
	case ev.err != nil:
		return ev.err
	case !ev.silent:
		done = ev.entry.Type != Added
	}
	if done && !complete[ev.input] {
		complete[ev.input] = true
		if m.incomplete--; m.incomplete == 0 {
			if err := m.synced(); err != nil {
				return fmt.Errorf("end of the list: %w", err)
			}
		}
	}
	if ev.silent {
		return nil
	}
	return m.emit(ev.entry)
}
