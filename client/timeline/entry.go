package timeline

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// EventType is what a watch says happened to an object.
type EventType string

// The event types of Kubernetes watches.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK"
)

// ControlKind is what a control line of a timeline does.
type ControlKind string

// The controls.
const (
	Synced   ControlKind = "synced"
	Restart  ControlKind = "restart"
	FeedLost ControlKind = "feed-lost"
	Pause    ControlKind = "pause"
	Resume   ControlKind = "resume"
	Policy   ControlKind = "policy"
	Executor ControlKind = "executor"
	// Renew stands for leases that are renewed again and again.
	Renew ControlKind = "renew"
)

// DefaultCluster is the cluster of entries that name none.
const DefaultCluster = "default"

// Entry is one line of a timeline, one event of a watch, or one object of a
// list. Either Control is set, or Type and, except for bookmarks and kinds that
// are skipped, one of Node, Pod and Lease.
type Entry struct {
	// At is the time from the start. HasAt is false where the input has no times.
	At      time.Duration
	HasAt   bool
	Cluster string
	Type    EventType
	Node    *reprievev1.Node
	Pod     *reprievev1.Pod
	Lease   *Lease
	Control *Control
	// Listed: the object was part of a list, stood alone, or was shown by a
	// watch's stream before its first event that is not ADDED. In a timeline,
	// which has times and controls, a line says when the list is complete.
	Listed bool
	Pos    Position
}

// Lease is a node's Lease, of namespace kube-node-lease.
type Lease struct {
	Node string
	// RenewTime is its spec.renewTime; nil if it has none.
	RenewTime *timestamppb.Timestamp
	// Renewed: this input has not shown this RenewTime of the node before.
	Renewed bool
}

// Control is a control line.
type Control struct {
	Kind ControlKind
	// Down is for Restart.
	Down time.Duration
	// Nodes, Every and Until (from the start) are for Renew.
	Nodes        []string
	Every, Until time.Duration
	// Policy and PolicyFields (field mask paths) are for Policy.
	Policy       *reprievev1.ClusterPolicy
	PolicyFields []string
	// PodNamespace and PodName, or NodeName, and Outcome are for Executor.
	PodNamespace, PodName, NodeName string
	Outcome                         reprievev1.Outcome
}

// Event turns an entry's object into an event of a feed; nil if it has none, as a
// Lease that was not renewed.
func (e *Entry) Event() *reprievev1.Event {
	out := &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT}
	if e.Type == Deleted {
		out.Type = reprievev1.Event_EVENT_TYPE_DELETE
	}
	switch {
	case e.Node != nil:
		out.Object = &reprievev1.Event_Node{Node: e.Node}
	case e.Pod != nil:
		out.Object = &reprievev1.Event_Pod{Pod: e.Pod}
	case e.Lease != nil && e.Lease.Renewed:
		out.Object = &reprievev1.Event_LeaseRenewals{LeaseRenewals: &reprievev1.NodeLeaseRenewals{
			NodeNames: []string{e.Lease.Node}, RenewTimes: []*timestamppb.Timestamp{e.Lease.RenewTime},
		}}
	default:
		return nil
	}
	return out
}

// Position is a place in an input.
type Position struct {
	File string
	// Line counts from 1; Document counts YAML documents from 1. One of them is set.
	Line, Document int
}

// String writes the position as compilers do.
func (p Position) String() string {
	switch {
	case p.Document > 0:
		return fmt.Sprintf("%s: document %d", p.File, p.Document)
	case p.Line > 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return p.File
}

// Error is a fault of an input: where it is, what it is, and what to do.
type Error struct {
	Pos    Position
	Reason string
	// Hint may be empty.
	Hint string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Hint == "" {
		return fmt.Sprintf("%s: %s", e.Pos, e.Reason)
	}
	return fmt.Sprintf("%s: %s; %s", e.Pos, e.Reason, e.Hint)
}

// Warning is something odd that is no fault.
type Warning struct {
	Pos  Position
	Text string
}

// UIDPolicy says what to do with an object without a UID.
type UIDPolicy int

// The UID policies.
const (
	// RefuseMissingUID makes it an error.
	RefuseMissingUID UIDPolicy = iota
	// DeriveMissingUID makes one from kind, namespace and name, with a warning.
	DeriveMissingUID
)

// DefaultMaxObject is the largest line, object or list item that is read, in bytes.
const DefaultMaxObject = 64 << 20

// Options configure a [Reader].
type Options struct {
	MissingUID UIDPolicy
	// Warn takes warnings; nil drops them.
	Warn func(Warning)
	// UIDs finds one UID under two names over all readers that share it; nil checks one reader.
	UIDs *UIDs
	// MaxObject bounds one line, object or list item, in bytes; zero means [DefaultMaxObject].
	MaxObject int64
}
