//go:build !unix

package bolt

import "os"

// release closes a file that bbolt has mapped and locked and lost in a panic.
func release(f *os.File) error { return f.Close() }
