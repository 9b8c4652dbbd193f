package store

import "errors"

// Errors that every backend may return beside those of the engine.
var (
	// ErrClosed means that the handle was closed, or that another one of the same data took over.
	ErrClosed = errors.New("store is closed")
	// ErrBroken means that an earlier write of the handle failed: what is on disk
	// is unknown to it. Close it, open the store again and load.
	ErrBroken = errors.New("an earlier write failed; the store must be closed, opened and loaded again")
	// ErrDamaged means that stored bytes cannot be what was written.
	ErrDamaged = errors.New("stored data is damaged")
	// ErrBadChange means that a change lacks what its kind needs, so that it cannot be written.
	ErrBadChange = errors.New("change cannot be written")
)
