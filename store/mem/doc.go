// Package mem keeps the engine's records in memory, for replays and tests. What
// is committed outlives the handle that committed it, so that a restart can be
// played, but not the process. It must not know how records are encoded.
package mem
