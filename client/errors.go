package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrorDomain is the ErrorInfo domain of the service's errors. Reasons of other
// domains, such as a proxy's, are not read.
const ErrorDomain = "reprieve.dev"

// Reasons that the service gives with its errors, in [Error.Reason].
const (
	// ReasonUnavailable means that the store is being reopened. Retry.
	ReasonUnavailable = "UNAVAILABLE"
	// ReasonStopping means that the service is stopping. Retry elsewhere or later.
	ReasonStopping = "STOPPING"
	// ReasonInvalidArgument means that the request is bad; Fields says where.
	ReasonInvalidArgument = "INVALID_ARGUMENT"
	// ReasonClusterUnknown means that no cluster of that name is known.
	ReasonClusterUnknown = "CLUSTER_UNKNOWN"
	// ReasonClusterUIDMismatch means that the cluster's name is bound to another UID.
	ReasonClusterUIDMismatch = "CLUSTER_UID_MISMATCH"
	// ReasonClusterDamaged means that the cluster's record must be repaired or forgotten first.
	ReasonClusterDamaged = "CLUSTER_DAMAGED"
	// ReasonFeedHeld means that another feeder holds the cluster.
	ReasonFeedHeld = "FEED_HELD"
	// ReasonSuperseded means that a newer stream took this one's place.
	ReasonSuperseded = "SUPERSEDED"
	// ReasonFeedSilent means that the feed was silent for longer than the feed timeout.
	ReasonFeedSilent = "FEED_SILENT"
	// ReasonFeedOutOfOrder means that a feed's messages came out of order.
	ReasonFeedOutOfOrder = "FEED_OUT_OF_ORDER"
	// ReasonUIDConflict means that a feed showed one UID under two names.
	ReasonUIDConflict = "UID_CONFLICT"
	// ReasonClusterNotSynced means that the cluster's feed is not live.
	ReasonClusterNotSynced = "CLUSTER_NOT_SYNCED"
	// ReasonPodUnknown means that a synced cluster has no such pod.
	ReasonPodUnknown = "POD_UNKNOWN"
	// ReasonNodeUnknown means that a cluster has no such node.
	ReasonNodeUnknown = "NODE_UNKNOWN"
	// ReasonOtherController means that another controller was seen at work on the
	// health of the cluster's nodes.
	ReasonOtherController = "OTHER_CONTROLLER"
	// ReasonPodNotSubject means that the pod is never evicted.
	ReasonPodNotSubject = "POD_NOT_SUBJECT"
	// ReasonRequestConflict means that the request id was used with other content.
	ReasonRequestConflict = "REQUEST_CONFLICT"
	// ReasonRequestUnknown means that there is no such request.
	ReasonRequestUnknown = "REQUEST_UNKNOWN"
	// ReasonEvictionUnknown means that there is no such eviction.
	ReasonEvictionUnknown = "EVICTION_UNKNOWN"
	// ReasonPauseUnknown means that no pause has that scope or id.
	ReasonPauseUnknown = "PAUSE_UNKNOWN"
	// ReasonReprieveUnknown means that the pod has no reprieve.
	ReasonReprieveUnknown = "REPRIEVE_UNKNOWN"
	// ReasonBlastRadiusUnknown means that no taint key of that name is held or was rejected.
	ReasonBlastRadiusUnknown = "BLAST_RADIUS_UNKNOWN"
	// ReasonEtagMismatch means that the policy changed since it was read.
	ReasonEtagMismatch = "ETAG_MISMATCH"
	// ReasonRevisionTooOld means that the revision is no longer in memory. List again.
	ReasonRevisionTooOld = "REVISION_TOO_OLD"
	// ReasonReaderTooSlow means that a watcher fell behind. List again.
	ReasonReaderTooSlow = "READER_TOO_SLOW"
	// ReasonNoBackup means that the store cannot be copied, or there is no room for the copy.
	ReasonNoBackup = "NO_BACKUP"
	// ReasonUnauthenticated means that no valid credentials came with the call.
	ReasonUnauthenticated = "UNAUTHENTICATED"
	// ReasonPermissionDenied means that the credentials have no role for the call.
	ReasonPermissionDenied = "PERMISSION_DENIED"
	// ReasonLimited means that the caller's identity asked for too much. Nothing was
	// done; retry after [Error.RetryAfter].
	ReasonLimited = "LIMITED"
	// ReasonGrantsChanged means that the credentials of a stream for all clusters
	// have other clusters now. Open it again.
	ReasonGrantsChanged = "GRANTS_CHANGED"
)

// FieldViolation says what is wrong with one field of a request.
type FieldViolation struct {
	// Field is the path of the field, such as pod.uid.
	Field string
	// Description says what is wrong with it.
	Description string
}

// Error is an error of the service, or of the way to it. Calls through a [Conn]
// return it; [FromError] makes one of any gRPC error.
type Error struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is one of the Reason constants; empty if the service gave none, as
	// when it could not be reached.
	Reason string
	// Message is for people.
	Message string
	// Fields are the request's faults, for bad input.
	Fields []FieldViolation
	// RetryAfter is the time to wait before the next attempt, if the service gave one.
	RetryAfter time.Duration

	status *status.Status
}

// Error implements error: code, reason, message and the faulty fields that the
// message does not name, in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Code.String())
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	sep := ": "
	for _, f := range e.Fields {
		// The message of the service's own validation has them in it.
		if !strings.Contains(e.Message, f.Description) {
			b.WriteString(sep + f.Field + ": " + f.Description)
			sep = "; "
		}
	}
	return b.String()
}

// GRPCStatus lets the status package read the error.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Is makes errors.Is find context.Canceled and context.DeadlineExceeded in the
// codes that stand for them.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case codes.Canceled:
		return target == context.Canceled
	case codes.DeadlineExceeded:
		// A feed that was silent ends with this code too; its context did not.
		return target == context.DeadlineExceeded && e.Reason == ""
	default:
		return false
	}
}

// FromError finds the service's error in err. It reports false if err is nil or
// comes from elsewhere.
func FromError(err error) (*Error, bool) {
	if err == nil {
		return nil, false
	}
	if own := (*Error)(nil); errors.As(err, &own) {
		return own, true
	}
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return nil, false
	}
	st := carrier.GRPCStatus()
	if st == nil || st.Code() == codes.OK {
		return nil, false
	}
	e := &Error{Code: st.Code(), Message: st.Message(), status: st}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == ErrorDomain {
				e.Reason = d.GetReason()
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Fields = append(e.Fields, FieldViolation{Field: v.GetField(), Description: v.GetDescription()})
			}
		}
	}
	return e, true
}

// typed is err as an [Error] if it is one of gRPC's, and err itself if not.
func typed(err error) error {
	if e, ok := FromError(err); ok {
		return e
	}
	return err
}

// ReasonOf is the service's reason for err, or empty.
func ReasonOf(err error) string {
	if e, ok := FromError(err); ok {
		return e.Reason
	}
	return ""
}

// codeOf is the gRPC code of err; codes.Unknown if it has none.
func codeOf(err error) codes.Code {
	if e, ok := FromError(err); ok {
		return e.Code
	}
	return codes.Unknown
}
