//go:build !unix

package bolt

// limitMemory does nothing: the system has no such bound.
func limitMemory(uint64) error { return nil }
