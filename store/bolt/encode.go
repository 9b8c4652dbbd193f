package bolt

import (
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/internal/codec"
	"github.com/reprieve-dev/reprieve/store/internal/history"
)

const (
	// aheadFrom is the number of changes from which evictions are encoded ahead, and
	// aheadStep of how many at a time it is told that they are.
	aheadFrom, aheadStep = 512, 128
	// maxValues and maxEncoded are how much room is kept from one transaction to the next.
	maxValues, maxEncoded = 8 << 20, 1 << 13
)

// encoded is an eviction as a transaction writes it.
type encoded struct {
	value []byte
	seq   uint64
	// What follows is for one that closes.
	class history.Class
	at    history.Position
	uid   string
	err   error
}

// encoder makes the values of the evictions of a batch. To make one takes longer than
// to put it into the tree, so those of a large batch are made by a goroutine of their
// own, beside the transaction that puts them.
type encoder struct {
	changes []engine.Change
	record  engine.EvictionRecord
	// values are those made: a transaction needs them until its end.
	values []byte
	made   []encoded // of the changes, by their place
	// ready tells of how many changes are made, and is closed at the end of the goroutine;
	// nil if each is made when it is wanted. known is what was told last.
	ready chan int
	known int
}

// begin takes a batch. It is followed by end, until which nobody may change it.
func (e *encoder) begin(changes []engine.Change) {
	if cap(e.made) < len(changes) {
		e.made = make([]encoded, len(changes))
	}
	e.changes, e.made, e.values, e.ready = changes, e.made[:len(changes)], e.values[:0], nil
	if len(changes) < aheadFrom {
		return
	}
	// With room for all that is told the goroutine ends whoever listens.
	e.ready, e.known = make(chan int, len(changes)/aheadStep+1), 0
	go func() {
		defer close(e.ready)
		for i := range e.changes {
			e.encode(i)
			if done := i + 1; done%aheadStep == 0 || done == len(e.changes) {
				e.ready <- done
			}
		}
	}()
}

// end waits until nothing that was begun goes on, and keeps room for the next batch.
func (e *encoder) end() {
	if e.ready != nil {
		for range e.ready {
		}
	}
	clear(e.made)
	e.changes, e.record = nil, engine.EvictionRecord{}
	if cap(e.values) > maxValues {
		e.values = nil
	}
	if cap(e.made) > maxEncoded {
		e.made = nil
	}
}

// eviction is that of the change in a place of the batch.
func (e *encoder) eviction(i int) (*encoded, error) {
	if e.ready == nil {
		e.encode(i)
	} else {
		for i >= e.known {
			e.known = <-e.ready
		}
	}
	return &e.made[i], e.made[i].err
}

// encode makes the value of a change's eviction, if it has one that is to be written.
func (e *encoder) encode(i int) {
	c, r := &e.changes[i], &e.record
	if c.Eviction == nil || c.Kind != engine.ChangePutEviction && c.Kind != engine.ChangeCloseEviction {
		return
	}
	c.Eviction.Fill(r)
	from := len(e.values)
	values, err := codec.AppendEviction(e.values, r)
	e.values = values
	m := encoded{value: values[from:len(values):len(values)], seq: r.Seq, err: err}
	if c.Kind == engine.ChangeCloseEviction {
		m.class, m.at, m.uid = history.ClassOf(r), history.PositionOf(r), r.UID
	}
	e.made[i] = m
}
