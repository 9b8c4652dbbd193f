// Package failpoint names the points of the program at which a crash test kills
// it. Without the build tag failpoints, as in everything that is shipped, a point
// is an empty function that the compiler removes. It knows nothing of the rest.
package failpoint

// The points, in the order in which an eviction passes them.
const (
	// CommitBefore and CommitAfter are around each transaction.
	CommitBefore = "commit.before"
	CommitAfter  = "commit.after"
	// OrderBefore is between a delivery on disk and its order; OrderAfter is once
	// the order is with the stream.
	OrderBefore = "order.before"
	OrderAfter  = "order.after"
	// ResultReceived is between an executor's answer and what it changes.
	ResultReceived = "result.received"
	// NodeOrderBefore, NodeOrderAfter and NodeResultReceived are the same for an
	// order that concerns a node.
	NodeOrderBefore    = "node.order.before"
	NodeOrderAfter     = "node.order.after"
	NodeResultReceived = "node.result.received"
	// AckBefore is between the commit and what waited for it, such as a feed's
	// acknowledgement.
	AckBefore = "ack.before"
	// PruneBefore and PruneAfter are around a transaction that removes history.
	PruneBefore = "prune.before"
	PruneAfter  = "prune.after"
	// Reload is after the store was read at a start, before anything runs on it.
	Reload = "reload"
	// MigrateBefore is after a data file of an older schema version was copied,
	// MigrateWithin in the transaction that migrates it, MigrateAfter behind that.
	MigrateBefore = "migrate.before"
	MigrateWithin = "migrate.within"
	MigrateAfter  = "migrate.after"
)

// Migration are the points that a start passes only if it migrates.
func Migration() []string { return []string{MigrateBefore, MigrateWithin, MigrateAfter} }

// Nodes are the points that a life passes only with node health.
func Nodes() []string { return []string{NodeOrderBefore, NodeOrderAfter, NodeResultReceived} }

// All are the points that every life may pass.
func All() []string {
	return []string{CommitBefore, CommitAfter, OrderBefore, OrderAfter, ResultReceived, AckBefore, PruneBefore, PruneAfter, Reload}
}
