package engine

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine/health"
)

// EventType says what an [Event] does to its object.
type EventType uint8

// The event types. ADDED and MODIFIED of a watch are both upserts.
const (
	EventUpsert EventType = iota + 1
	EventDelete
)

// Event is one change of a node or a pod, or tells of node leases. Exactly one of
// Node, Pod and Leases is set; with none the event is of an unknown kind and only counted.
type Event struct {
	Type   EventType
	Node   *Node
	Pod    *Pod
	Leases *LeaseRenewals
}

// LeaseRenewals names nodes whose Lease was renewed since the last event of it.
type LeaseRenewals struct {
	Nodes []string
	// Times are the Leases' renewTimes, in the same order, or nil.
	Times []time.Time
}

// Node is a node as the feed shows it.
type Node struct {
	Name, UID string
	// Taints are all of the node's taints, of every effect, as they stand.
	Taints []ObservedTaint
	// Health is what node health looks at; nil if the feed tells nothing of it.
	Health *health.Node
}

// ObservedTaint is a taint as the node object has it.
type ObservedTaint struct {
	Key, Value, Effect string
	// TimeAdded is zero if the object has none.
	TimeAdded time.Time
}

// Pod is a pod as the feed shows it.
type Pod struct {
	Namespace, Name, UID, Node string
	Tolerations                []corev1.Toleration
	// Terminating: it has a deletionTimestamp. Finished: phase Succeeded or Failed.
	Terminating, Finished, Mirror bool
	// BoundAt is the binding's time as the object tells it (D8), zero if it tells none.
	BoundAt time.Time
	// Owner is the UID of the pod's controller, or else of another owner; empty if it has none.
	Owner string
	// DisruptionReason is the reason of the pod's condition DisruptionTarget, if
	// that is True: somebody has marked the pod for removal.
	DisruptionReason string
}

// FeedHello opens a feed.
type FeedHello struct {
	Cluster, ClusterUID, FeederID   string
	Epoch                           uint64
	AgentVersion, KubernetesVersion string
	// NodeLifecycle is what the feeder knows of another controller of the nodes' health; empty if it knows of none.
	NodeLifecycle string
}

// FeedWelcome answers a [FeedHello].
type FeedWelcome struct {
	HeartbeatInterval time.Duration
	Mode              Mode
	NodeHealth        NodeHealth
}

// FeedSink takes what the engine says to a feed. Its methods are called in
// order, must not block, and are not called after Ended.
type FeedSink interface {
	// Ack says that the message of that sequence number, all before it, and all
	// that follows from them is on disk. synced is set for the end of a list.
	Ack(sequence uint64, synced bool)
	// Resync asks for a whole new list, beginning with SyncBegin. Messages before that are dropped.
	Resync(reason string)
	// Mode tells the cluster's mode: once before OpenFeed returns, and whenever it changes.
	Mode(mode Mode)
	// NodeHealth does the same for the mode of node health. When it was off, Resync follows.
	NodeHealth(mode NodeHealth)
	// Ended says that the feed has lost its place: ErrSuperseded, ErrFeedSilent, ErrStopped.
	Ended(err error)
}

// ExecutorHello attaches an executor.
type ExecutorHello struct {
	ID string
	// Clusters are names, or "*" for all that Allowed allows.
	Clusters []string
	// Allowed is the executor's authorization; nil allows every cluster.
	Allowed func(cluster string) bool
	// Capacity is how many orders of one cluster may be outstanding.
	Capacity int
	// NodeOrders: the executor takes orders for nodes too.
	NodeOrders bool
	// HeldTokens are orders of an earlier stream that are still being worked on. One
	// that is named twice counts once.
	HeldTokens []string
}

// Order tells an executor to evict one pod, or to set what follows from a node's health.
type Order struct {
	Token      string
	DeadlineIn time.Duration
	// Attempt counts from 1.
	Attempt    uint32
	EvictionID string
	Method     Method
	// BudgetWait is how much longer a disruption budget may refuse; it counts for
	// MethodEvictThenDelete only, and 0 there means that its time is over.
	BudgetWait time.Duration
	// Eviction is the record as committed with this delivery; nil in an order for a
	// node. It is the engine's again when the sink's Order has returned.
	Eviction *EvictionRecord
	// Node is set in an order for a node.
	Node *NodeOrder
}

// Cluster is the cluster that the order is for.
func (o *Order) Cluster() string {
	if o.Node != nil {
		return o.Node.Cluster
	}
	return o.Eviction.Cluster
}

// NodeOrder says what a node must look like.
type NodeOrder struct {
	Cluster, Name string
	health.Want
}

// RecallOrder calls an order back.
type RecallOrder struct {
	Token  string
	Reason RecallReason
}

// OrderSink takes what the engine says to an executor. Its methods must not block.
type OrderSink interface {
	// Order hands out an order and reports whether it was taken.
	Order(Order) bool
	Recall(RecallOrder)
	// Ended says that a newer stream of the same executor took over, or that the engine stops.
	Ended(err error)
}

// Result is an executor's answer.
type Result struct {
	Token      string
	Outcome    Outcome
	Message    string
	RetryAfter time.Duration
}

// PodRef names a pod by UID or by namespace and name.
type PodRef struct{ UID, Namespace, Name string }

// EvictionRequest asks for a pod's eviction (RequestEviction).
type EvictionRequest struct {
	Cluster, ID, Requester, Reason string
	Pod                            PodRef
	NotBefore                      time.Time
}

// ListQuery selects open evictions.
type ListQuery struct {
	// Cluster empty means all that Allowed allows.
	Cluster                   string
	Allowed                   func(cluster string) bool
	Namespace, Pod, UID, Node string
	States                    []State
	Holds                     []Hold
	Requester                 string
	DueBefore                 time.Time
	// Limit is the page size; it must be positive.
	Limit  int
	Cursor string
}

// ListPage is one page of open evictions, by due instant, then cluster and sequence.
type ListPage struct {
	Evictions []*EvictionRecord
	Cursor    string
}

// SyncState says what the engine knows of a cluster's feed.
type SyncState uint8

// The sync states.
const (
	// SyncNever: no whole list has ever been taken, in this or an earlier run.
	SyncNever SyncState = iota + 1
	// SyncListing: a list is under way.
	SyncListing
	// SyncLive: the feed has delivered a whole list and is live.
	SyncLive
	// SyncLost: the feed is gone, or has not come yet since the start.
	SyncLost
)

// ClusterStatus is what is known of a cluster.
type ClusterStatus struct {
	Record      ClusterRecord
	Policy      Policy
	Etag        string
	Damaged     bool
	Sync        SyncState
	LastMessage time.Time
	FeedAge     time.Duration
	Feed        FeedHello
	Nodes, Pods int
	// Open counts by state (WAITING, DUE and so on), Holds by hold of what is due.
	Open  map[State]int
	Holds map[Hold]int
	Stuck int
	// Looping counts owners whose pods keep coming back to a node that they are evicted from.
	Looping int
	// Trips are the taint keys that the blast radius holds, without what takes a look at all evictions.
	Trips     []BlastTrip
	OldestDue time.Time
	Executors []ExecutorStatus
	Reprieves int
	// Health is nil while node health is off.
	Health *ClusterHealth
	// Self is the live pod of this cluster that the engine itself runs in; zero if there is none.
	Self     PodRef
	Warnings []string
	// Foreign are evictions by another controller while this one enforces.
	Foreign ForeignStatus
	// Ignored counts ignored input by kind: taint_effect, unknown_kind, unknown_uid.
	Ignored map[string]uint64
}

// ExecutorStatus is an executor as one cluster sees it.
type ExecutorStatus struct {
	ID                    string
	Capacity, Outstanding int
	ConnectedAt           time.Time
}

// NodeStatus is a node as the engine holds it.
type NodeStatus struct {
	Cluster, Name, UID string
	// Known is false for a name that pods use and the feed has not shown.
	Known        bool
	Taints       []Taint
	EpisodeStart time.Time
	Pods, Open   int
	// Health is nil while node health is off, or knows nothing of the node.
	Health *NodeHealthStatus
}

// NodeHealthStatus is what node health knows and wants of a node, and its orders.
type NodeHealthStatus struct {
	health.NodeView
	Delivery    *Delivery
	Attempts    uint32
	LastOutcome Outcome
	LastMessage string
	// Hold keeps orders for the node back, Until ends it by itself, if that is known.
	Hold  Hold
	Until time.Time
}

// ClusterHealth is what node health knows of a cluster.
type ClusterHealth struct {
	Mode NodeHealth
	health.ClusterView
	// NotReady and Unknown count nodes by their condition Ready, Stuck those whose
	// orders failed 10 times or more in a row.
	NotReady, Unknown, Stuck int
}

// NodeExplanation is all that is known of a node.
type NodeExplanation struct {
	Node    NodeStatus
	Now     time.Time
	Mode    Mode
	Sync    SyncState
	Cluster *ClusterHealth
	// Warnings are the cluster's; Change is what would change the node's taints.
	Warnings, Change []string
}

// ImpactCount tells what a change would release.
type ImpactCount struct {
	// BecomeDue counts pods that would become due or be sent at once.
	BecomeDue int
}

// PauseScope says what a pause or resume is about. ID, if set, names a pause and nothing else counts.
type PauseScope struct{ Cluster, Node, Namespace, ID string }

// PolicyUpdate is a change of a cluster's stored policy.
type PolicyUpdate struct {
	// Patch is laid over the stored fields.
	Patch PolicyPatch
	// Clear names fields that go back to the configuration's.
	Clear PolicyField
	// Etag, if set, must be the current one.
	Etag string
	// ValidateOnly asks for the impact alone.
	ValidateOnly bool
	// Force takes node health ENFORCE although another controller is seen at work.
	Force bool
}

// PolicyStatus is a cluster's policy as it stands.
type PolicyStatus struct {
	Effective Policy
	Stored    PolicyPatch
	Etag      string
	Impact    ImpactCount
	// Warnings say which of the stored fields have no effect (see Policy.Idle).
	Warnings []string
}

// PodExplanation is every step of one pod's decision.
type PodExplanation struct {
	Cluster          string
	Namespace, Pod   string
	UID, Node        string
	NodeStatus       NodeStatus
	Tolerations      []corev1.Toleration
	BoundAt, SeenAt  time.Time
	Decision         Decision
	Now              time.Time
	Mode             Mode
	Sync             SyncState
	Holds            []Hold
	Eviction         *EvictionRecord
	Reprieve         *ReprieveRecord
	Warnings, Change []string
}

// HypotheticalTaint is a taint that Simulate puts on a node.
type HypotheticalTaint struct{ Node, Key, Value string }

// SimulatedPod is one pod's fate under hypothetical taints.
type SimulatedPod struct {
	Cluster, Namespace, Pod, UID, Node string
	// Decision is over the node's taints and the hypothetical ones, which start now.
	Decision Decision
}

// ChangeEvent is one committed change of an eviction, for watchers.
type ChangeEvent struct {
	Revision uint64
	Eviction *EvictionRecord
}
