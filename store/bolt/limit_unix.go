//go:build unix

package bolt

import "syscall"

// limitMemory bounds the data that the process may hold. The mapped file does not count.
func limitMemory(bytes uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: bytes, Max: bytes})
}
