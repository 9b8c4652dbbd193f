//go:build !failpoints

package bolt

// rehearsal is a step for crash tests: this build has none.
func rehearsal() []step { return nil }
