//go:build unix

package bolt

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// release closes a file that bbolt has mapped and locked and lost in a panic.
// The mapping keeps the lock past the close, so it is given back first.
func release(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// unused reports an error if a process has the data file open. The file may be
// damaged beyond opening.
func unused(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open data file %s: %w", path, err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return inUse(path)
	}
	return nil
}
