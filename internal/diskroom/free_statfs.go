//go:build linux || darwin

package diskroom

import "golang.org/x/sys/unix"

// Free is how many bytes the file system of a folder has left for this user. It is
// not known if the file system does not tell.
func Free(dir string) (bytes uint64, known bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true
}
