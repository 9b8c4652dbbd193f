//go:build unix

package bolt

import (
	"fmt"
	"os"
	"syscall"
)

// giveTo makes the owner of one file, or folder, that of another. Who maintains a
// data file may be root, and the service must be able to open it afterwards.
func giveTo(path, like string) error {
	from, err := os.Stat(like)
	if err != nil {
		return err
	}
	to, err := os.Stat(path)
	if err != nil {
		return err
	}
	want, ok := from.Sys().(*syscall.Stat_t)
	have, ok2 := to.Sys().(*syscall.Stat_t)
	if !ok || !ok2 || want.Uid == have.Uid && want.Gid == have.Gid {
		return nil
	}
	if err := os.Chown(path, int(want.Uid), int(want.Gid)); err != nil {
		return fmt.Errorf("give it to the owner of %s: %w", like, err)
	}
	return nil
}
