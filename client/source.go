package client

import (
	"context"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// ErrRelist, returned by [Source.Watch], makes the feeder list again on the same
// stream: the source has lost track of changes.
var ErrRelist = errors.New("list again")

// Source is where a feeder takes a cluster's events from. The feeder calls its
// methods in turn from one goroutine, never two at once. An event must not be
// changed after it was emitted.
//
// An error of emit means that the list or watch has no reader any more; return
// it, or any other error: the feeder knows. An error that the source returns of
// its own accord ends [Feeder.Run] with it, so a source tries again by itself
// what is worth trying again, or asks for a new list with [ErrRelist].
type Source interface {
	// List emits every node and pod that exists, as upserts. It is called at the
	// beginning of each stream and whenever the service asks for a new list.
	List(ctx context.Context, emit func(*reprievev1.Event) error) error
	// Watch emits every change since the last List began, in the order of each
	// object's changes, until ctx is done. It returns nil when there will be no
	// more: the feeder then waits until all is acknowledged and ends.
	Watch(ctx context.Context, emit func(...*reprievev1.Event) error) error
}

// errNilEvent is a fault of the source's.
var errNilEvent = errors.New("the source emitted a nil event")

// maxBatchBytes bounds a batch well below MaxSendBytes. An event that is larger
// than this goes alone.
const maxBatchBytes = 3 << 20

// batcher gathers events into batches that the service takes.
type batcher struct {
	max  int
	send func([]*reprievev1.Event) error

	events []*reprievev1.Event
	bytes  int
}

// add takes an event and sends those before it if it does not fit any more.
func (b *batcher) add(e *reprievev1.Event) error {
	if e == nil {
		return errNilEvent
	}
	size := proto.Size(e)
	size += protowire.SizeTag(1) + protowire.SizeVarint(uint64(size))
	if len(b.events) >= b.max || b.bytes+size > maxBatchBytes {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.events = append(b.events, e)
	b.bytes += size
	return nil
}

// flush sends what is gathered.
func (b *batcher) flush() error {
	if len(b.events) == 0 {
		return nil
	}
	events := b.events
	b.events, b.bytes = nil, 0
	return b.send(events)
}
