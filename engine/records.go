package engine

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine/health"
)

// State is where an eviction stands in its life.
type State uint8

// The states of an eviction. A record on disk says StateWaiting for both
// waiting and due: which of them it is follows from Due and the time.
const (
	StateUnspecified State = iota
	// StateWaiting means that the pod's wait is running, or over but not sent.
	StateWaiting
	// StateDue is StateWaiting after the due instant; readers see it, the store does not.
	StateDue
	// StateDelivered means that an order is on disk and may be with an executor.
	StateDelivered
	// StateRecalling means that a delivered order is no longer wanted and its answer is awaited.
	StateRecalling
	// StateConfirming means that the executor said EVICTED and the feed has yet to show it.
	StateConfirming
	// StateClosed means that the eviction is in history.
	StateClosed
)

// Outcome is an executor's answer to an order, or what stands for one.
type Outcome uint8

// The outcomes of an order.
const (
	OutcomeUnspecified Outcome = iota
	OutcomeEvicted
	OutcomeGone
	OutcomeSuperseded
	OutcomeStale
	OutcomeBlocked
	OutcomeDenied
	OutcomeFailed
	OutcomeRecalled
	// OutcomeNoAnswer is never sent by an executor: the deadline passed or its stream ended.
	OutcomeNoAnswer
	// OutcomeApplied answers orders for nodes.
	OutcomeApplied
)

// CloseReason says why an eviction is in history.
type CloseReason uint8

// The close reasons.
const (
	CloseUnspecified CloseReason = iota
	CloseEvicted
	CloseGone
	CloseSuperseded
	CloseCancelled
	ClosePodDeleted
	ClosePodFinished
	CloseNodeDeleted
	CloseWouldEvict
)

// CancelCause says what cancelled an eviction closed with CloseCancelled.
type CancelCause uint8

// The causes of a cancellation.
const (
	CancelUnspecified CancelCause = iota
	CancelTaintRemoved
	CancelToleration
	CancelPolicy
	CancelRequestWithdrawn
	CancelReprieve
	CancelRejected
)

// Hold is the gate that keeps a due eviction back. The order of the values is
// the order in which the gates are tested.
type Hold uint8

// The holds.
const (
	HoldNone Hold = iota
	HoldClusterNotSynced
	HoldRecordDamaged
	HoldPaused
	HoldReprieved
	HoldBackingOff
	HoldBlastRadius
	HoldDisruption
	HoldNoExecutor
	HoldRateLimited
)

// CauseKind tells what makes a pod due.
type CauseKind uint8

// The kinds of cause.
const (
	CauseNone CauseKind = iota
	CauseTaint
	CauseRequest
)

// Taint is a NoExecute taint as it stands on a node. Its identity is (Key, Value).
type Taint struct {
	Key, Value string
	// TimeAdded is the object's own timeAdded; the zero time means none.
	TimeAdded time.Time
	// Start is when it began to count (D9 to D11).
	Start time.Time
}

// Cause is what gives an eviction its due instant.
type Cause struct {
	Kind CauseKind
	// Taint, Start and the toleration fields are set for CauseTaint.
	Taint Taint
	// Start is the instant the pod's wait counts from (D8).
	Start time.Time
	// Toleration is the one used; nil if no toleration matched.
	Toleration *corev1.Toleration
	// Default says that the toleration was the policy's default (D12).
	Default bool
	// RequestID and Requester are set for CauseRequest.
	RequestID, Requester string
}

// Request is another party's wish that a pod leaves.
type Request struct {
	ID, Requester, Reason string
	NotBefore             time.Time
	RequestedAt           time.Time
}

// Delivery is an order on its way: a token that one executor may answer with
// until the deadline.
type Delivery struct {
	Token      string
	ExecutorID string
	SentAt     time.Time
	Deadline   time.Time
	// Recall is set while the order is being recalled and says why.
	Recall RecallReason
	// RecallCause is the cancellation behind a recall of kind RecallCancelled.
	RecallCause CancelCause
}

// RecallReason says why an order that is out is called back.
type RecallReason uint8

// The reasons of a recall.
const (
	RecallNone RecallReason = iota
	// RecallCancelled means that the decision no longer stands.
	RecallCancelled
	// RecallPaused means that a pause came after the order left.
	RecallPaused
	// RecallReprieved means that a reprieve came after the order left.
	RecallReprieved
	// RecallNodeDeleted means that the node object is gone.
	RecallNodeDeleted
	// RecallShadow means that the cluster's mode became SHADOW.
	RecallShadow
)

// EvictionRecord is one eviction as it is written to disk and shown to readers.
// Once handed to a store or a reader it is never changed.
type EvictionRecord struct {
	Cluster string
	// Seq is unique in the cluster and given at the first commit.
	Seq                                uint64
	Namespace, Pod, UID, Node, NodeUID string
	State                              State
	// Hold is not stored: it follows from the gates.
	Hold Hold
	// HoldUntil is when the hold ends by itself, if that is known. Not stored.
	HoldUntil time.Time
	// BoundAt is when the pod was bound to its node (D8); once known it never moves.
	BoundAt  time.Time
	Due      time.Time
	Cause    Cause
	Requests []Request
	Delivery *Delivery
	// Attempts counts orders that ended in DENIED, FAILED or no answer.
	Attempts uint32
	// NoAnswers counts orders in a row without an answer.
	NoAnswers uint32
	// NotBefore ends the back-off.
	NotBefore   time.Time
	LastOutcome Outcome
	LastMessage string
	OpenedAt    time.Time
	FirstSentAt time.Time
	LastSentAt  time.Time
	ResultAt    time.Time
	// ConfirmBy ends the wait for the feed to show what the executor reported.
	ConfirmBy   time.Time
	ClosedAt    time.Time
	CloseReason CloseReason
	CancelCause CancelCause
	// FirstDue is the due instant it was opened with, if that has moved since.
	FirstDue time.Time
	// Observed is what shadow mode saw of another controller's deletion of the pod; nil if nothing.
	Observed *Observation
	// Revision is the store's revision at the last commit of the record.
	Revision uint64
}

// Stuck reports whether so many orders have failed that people should look.
func (r *EvictionRecord) Stuck() bool { return r.Attempts >= stuckAttempts }

// Early reports whether a closed eviction was cancelled before it fell due and
// was never sent: such records have a history quota of their own. One that
// another controller made true is none of them.
func (r *EvictionRecord) Early() bool {
	return r.FirstSentAt.IsZero() && r.ClosedAt.Before(r.Due) && r.Observed == nil
}

// NodeRecord is what must be remembered of a node: its NoExecute taints with
// their starts. A taint that is not in the record was not there.
type NodeRecord struct {
	Cluster, Name, UID string
	Taints             []Taint
	// EpisodeStart is the start of the running not-ready/unreachable episode (D11); zero if none.
	EpisodeStart time.Time
	// Guards are what the blast radius remembers of the taints' keys.
	Guards []Guard
}

// NodeHealthRecord is what must be remembered of a node's health, and of the order
// that may be out for it. A node without one is ready and heard.
type NodeHealthRecord struct {
	Cluster string
	health.Record
	Delivery *Delivery
	// Attempts counts orders in a row that failed; NotBefore ends the back-off.
	Attempts    uint32
	NotBefore   time.Time
	LastOutcome Outcome
	LastMessage string
}

// ReprieveRecord is a stay that an operator granted one pod.
type ReprieveRecord struct {
	Cluster, Namespace, Pod, UID string
	Reason, Actor                string
	CreatedAt, Until             time.Time
}

// Pause holds what falls due in a cluster, on one node or in one namespace.
type Pause struct {
	ID string
	// Node and Namespace narrow the scope; at most one is set, neither means the cluster.
	Node, Namespace string
	Reason, Actor   string
	CreatedAt       time.Time
	// Until ends the pause by itself; zero means until resumed.
	Until time.Time
}

// ClusterRecord is what must be remembered of a cluster.
type ClusterRecord struct {
	Name string
	// UID is the cluster's own, bound at adoption.
	UID string
	// AdoptedAt is when the first whole list ended; zero before.
	AdoptedAt time.Time
	// LastLiveAt is the last batch or heartbeat while synced.
	LastLiveAt time.Time
	// Policy holds the fields an operator set; they override the config file's.
	Policy PolicyPatch
	// PolicyVersion grows with each SetPolicy; the etag is made of it.
	PolicyVersion uint64
	Pauses        []Pause
	// Blasts are taint keys that the blast radius holds, or that were rejected.
	Blasts []BlastRecord
	// Health is what node health remembers besides the nodes.
	Health health.ClusterRecord
}
