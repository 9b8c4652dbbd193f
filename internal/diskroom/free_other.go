//go:build !linux && !darwin

package diskroom

// Free is not known here.
func Free(string) (bytes uint64, known bool) { return 0, false }
