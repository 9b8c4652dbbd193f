package bolt

import (
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/reprieve-dev/reprieve/internal/diskroom"
)

// checkRoom fails, with ENOSPC, if the file system of path has less than need
// bytes free for this user. One that does not tell is taken to have room: the
// commit will tell.
func checkRoom(path string, need uint64) error {
	if need == 0 {
		return nil
	}
	if free, known := diskroom.Free(filepath.Dir(path)); known && free < need {
		return fmt.Errorf("data file %s: its disk was full and has %d MiB free, %d MiB are needed to go on (make room on its disk): %w",
			path, free>>20, need>>20, syscall.ENOSPC)
	}
	return nil
}
