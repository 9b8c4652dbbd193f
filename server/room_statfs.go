//go:build linux || darwin

package server

import "golang.org/x/sys/unix"

// room is how many bytes the disk of a folder has left for this process.
func room(dir string) (free uint64, known bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true
}
