package bolt

import (
	"fmt"
	"path/filepath"
	"syscall"
)

// checkRoom fails, with ENOSPC, if the file system of path has less than need
// bytes free for this user. A file system that does not tell is taken to have room.
func checkRoom(path string, need uint64) error {
	if need == 0 {
		return nil
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &st); err != nil {
		return nil //nolint:nilerr // as the comment says: the commit will tell
	}
	if free := st.Bavail * uint64(st.Bsize); free < need {
		return fmt.Errorf("data file %s: its disk was full and has %d MiB free, %d MiB are needed to go on (make room on its disk): %w",
			path, free>>20, need>>20, syscall.ENOSPC)
	}
	return nil
}
