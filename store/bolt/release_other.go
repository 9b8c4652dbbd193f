//go:build !unix

package bolt

import (
	"errors"
	"os"

	"github.com/reprieve-dev/reprieve/engine"
)

// release closes a file that bbolt has mapped and locked and lost in a panic.
func release(f *os.File) error { return f.Close() }

// unused reports an error if a process has the data file open.
func unused(path string) error {
	db, err := openFile(Options{Path: path, LockTimeout: DefaultLockTimeout}, 0, false)
	switch {
	case err == nil:
		return db.Close()
	case errors.Is(err, engine.ErrStoreLocked):
		return err
	}
	// What cannot be opened is in nobody's use.
	return nil
}
