package engine

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors of a [Store].
var (
	// ErrNotFound means that the store has no such record.
	ErrNotFound = errors.New("not found")
	// ErrStoreLocked means that another process has the data file open.
	ErrStoreLocked = errors.New("data file is in use by another process")
	// ErrSchemaVersion means that the data was written by a version this one cannot read.
	ErrSchemaVersion = errors.New("unknown schema version")
)

// Store keeps what must survive a restart. One committer calls Commit and
// Prune, never at once; the other methods may run beside them.
//
// Atomic units are small so that a store with bounded transactions can take a
// batch apart: one eviction with its history entry and its reprieve, one node,
// one node's health, one cluster record. Within a cluster changes must reach the disk in their
// order; a crash may cut the order at any unit.
type Store interface {
	// Load reads all that is open into v: first Meta, then for each cluster in
	// name order its Cluster, Nodes, Healths, Reprieves and Evictions (ascending Seq).
	// A record that cannot be read is set aside in quarantine, reported by
	// Damaged, and does not stop the load. An error of v ends the load.
	Load(ctx context.Context, v Visitor) error
	// Commit makes the batch durable: all of it is on disk when it returns nil.
	// An error is an unknown outcome: the caller must close, reopen and reload.
	Commit(ctx context.Context, b *Batch) error
	// History reads closed evictions, newest first.
	History(ctx context.Context, q HistoryQuery) (HistoryPage, error)
	// HistoryEviction reads one closed eviction, or ErrNotFound.
	HistoryEviction(ctx context.Context, cluster string, seq uint64) (*EvictionRecord, error)
	// Prune removes history beyond the quotas, at most limit entries in one
	// transaction, and returns how many it removed. Errors are as Commit's.
	Prune(ctx context.Context, cluster string, now time.Time, q HistoryQuotas, limit int) (int, error)
	// Size is the size of the data on disk in bytes, 0 for a store without one.
	Size() int64
	// Free is how much of that is room of removed records, which new ones use
	// before the file grows.
	Free() int64
	// Close releases the store. After it Size and Free may still be asked, and say
	// what was so last; all else fails.
	Close() error
}

// Snapshotter is a [Store] that can be copied while it is in use.
type Snapshotter interface {
	// WriteSnapshot writes a copy of the store as it is at one instant and returns
	// its size in bytes. It waits for no commit, and no commit waits for it.
	WriteSnapshot(ctx context.Context, w io.Writer) (int64, error)
}

// Visitor takes what [Store.Load] reads.
type Visitor interface {
	Meta(Meta) error
	// Cluster begins a cluster. A damaged record has Damaged set and only Record.Name.
	Cluster(LoadedCluster) error
	Node(*NodeRecord) error
	Health(*NodeHealthRecord) error
	Reprieve(*ReprieveRecord) error
	Eviction(*EvictionRecord) error
	// Damaged reports a record that was set aside; where is its bucket path and key.
	Damaged(where string, err error)
}

// Meta is what the store keeps about itself.
type Meta struct {
	// Revision is that of the last commit.
	Revision uint64
	// ClockFloor is the latest engine time that a commit carried.
	ClockFloor time.Time
}

// LoadedCluster is a cluster's record as read at start.
type LoadedCluster struct {
	Record ClusterRecord
	// LastSeq is the highest eviction sequence the cluster has ever had.
	LastSeq uint64
	// Damaged means that the record could not be read: nothing of it is known.
	Damaged bool
}

// Batch is what one transaction writes. The store may keep what the changes point
// to, but not the batch or its slice.
type Batch struct {
	// Now becomes the clock floor.
	Now time.Time
	// Revision is the store's revision after the batch.
	Revision uint64
	Changes  []Change
}

// ChangeKind says what a [Change] does.
type ChangeKind uint8

// The kinds of change.
const (
	// ChangePutEviction writes an open eviction under (Cluster, Seq).
	ChangePutEviction ChangeKind = iota + 1
	// ChangeCloseEviction removes the open eviction and writes it to history, in one unit.
	// With DropReprieve the pod's reprieve goes with it.
	ChangeCloseEviction
	ChangePutNode
	ChangeDeleteNode
	ChangePutCluster
	ChangePutReprieve
	ChangeDeleteReprieve
	// ChangeForgetCluster removes the cluster and all its records, history too.
	ChangeForgetCluster
	// ChangeNotify writes nothing: it carries a change that readers should see
	// (an eviction that fell due, a hold) through the order of commits.
	ChangeNotify
	ChangePutHealth
	ChangeDeleteHealth
)

// EvictionVersion is an eviction as one change left it. It never changes, so that a
// store may keep it.
type EvictionVersion interface {
	// Seq is the eviction's sequence.
	Seq() uint64
	// UID is that of the eviction's pod.
	UID() string
	// Fill writes the version into r. What r then points to is shared and must not be
	// changed.
	Fill(r *EvictionRecord)
}

// Change is one step of a batch. Only the field of its kind is set.
type Change struct {
	Kind    ChangeKind
	Cluster string
	// Eviction is set for ChangePutEviction, ChangeCloseEviction and ChangeNotify.
	Eviction     EvictionVersion
	DropReprieve bool
	// Node is set for ChangePutNode and ChangeDeleteNode (name only).
	Node *NodeRecord
	// Health is set for ChangePutHealth and ChangeDeleteHealth (name only).
	Health *NodeHealthRecord
	// Record is set for ChangePutCluster.
	Record *ClusterRecord
	// Reprieve is set for ChangePutReprieve and ChangeDeleteReprieve (UID only).
	Reprieve *ReprieveRecord
}

// HistoryQuery selects closed evictions. Zero fields select everything.
type HistoryQuery struct {
	// Cluster is required.
	Cluster                   string
	Namespace, Pod, UID, Node string
	Requester                 string
	// Reasons selects by close reason; empty means all.
	Reasons []CloseReason
	// After and Before bound ClosedAt: After <= ClosedAt < Before.
	After, Before time.Time
	// Limit is the page size; it must be positive.
	Limit int
	// Cursor continues after a page; empty begins at the newest.
	Cursor string
}

// HistoryPage is one page of history.
type HistoryPage struct {
	Evictions []*EvictionRecord
	// Cursor continues after this page; empty at the end. It is opaque.
	Cursor string
}

// HistoryQuotas bound what history keeps of a cluster.
type HistoryQuotas struct {
	// Sent bounds evictions that fell due or were sent; Early those closed before (see EvictionRecord.Early).
	SentAge, EarlyAge     time.Duration
	SentCount, EarlyCount int
}

// DefaultHistoryQuotas are 7 days or 1,000,000 for what fell due, 24 hours or
// 100,000 for what was cancelled before.
func DefaultHistoryQuotas() HistoryQuotas {
	return HistoryQuotas{SentAge: 7 * 24 * time.Hour, SentCount: 1_000_000, EarlyAge: 24 * time.Hour, EarlyCount: 100_000}
}

// StoreOpener opens the store; the engine calls it again after a commit error.
type StoreOpener func(ctx context.Context) (Store, error)
