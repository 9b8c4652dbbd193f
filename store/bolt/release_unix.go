//go:build unix

package bolt

import (
	"errors"
	"os"
	"syscall"
)

// release closes a file that bbolt has mapped and locked and lost in a panic.
// The mapping keeps the lock past the close, so it is given back first.
func release(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
