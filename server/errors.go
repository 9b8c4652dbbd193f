package server

import (
	"context"
	"errors"
	"fmt"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
)

// errorDomain is the ErrorInfo domain of the service's errors.
const errorDomain = "reprieve.dev"

// limitedReason tells a caller's limit from other exhausted resources.
const limitedReason = "LIMITED"

// Errors of the server itself. The engine knows no callers.
var (
	errUnauthenticated = errors.New("no valid credentials")
	errDenied          = errors.New("permission denied")
	errGrantsChanged   = errors.New("the clusters of these credentials have changed; open the stream again")
)

// errorRule says how callers see a sentinel error.
type errorRule struct {
	err    error
	code   codes.Code
	reason string
}

// errorRules are tried in order; the first that the error wraps counts.
var errorRules = []errorRule{
	{engine.ErrUnavailable, codes.Unavailable, "UNAVAILABLE"},
	{engine.ErrStopped, codes.Unavailable, "STOPPING"},
	{engine.ErrClusterUnknown, codes.NotFound, "CLUSTER_UNKNOWN"},
	{engine.ErrClusterUID, codes.FailedPrecondition, "CLUSTER_UID_MISMATCH"},
	{engine.ErrClusterDamaged, codes.FailedPrecondition, "CLUSTER_DAMAGED"},
	{engine.ErrFeedHeld, codes.AlreadyExists, "FEED_HELD"},
	{engine.ErrSuperseded, codes.Aborted, "SUPERSEDED"},
	{engine.ErrFeedSilent, codes.DeadlineExceeded, "FEED_SILENT"},
	{engine.ErrFeedOrder, codes.FailedPrecondition, "FEED_OUT_OF_ORDER"},
	{engine.ErrUIDConflict, codes.InvalidArgument, "UID_CONFLICT"},
	{engine.ErrNotSynced, codes.Unavailable, "CLUSTER_NOT_SYNCED"},
	{engine.ErrPodUnknown, codes.NotFound, "POD_UNKNOWN"},
	{engine.ErrNodeUnknown, codes.NotFound, "NODE_UNKNOWN"},
	{engine.ErrOtherController, codes.FailedPrecondition, "OTHER_CONTROLLER"},
	{engine.ErrNotSubject, codes.FailedPrecondition, "POD_NOT_SUBJECT"},
	{engine.ErrRequestConflict, codes.AlreadyExists, "REQUEST_CONFLICT"},
	{engine.ErrRequestUnknown, codes.NotFound, "REQUEST_UNKNOWN"},
	{engine.ErrEvictionUnknown, codes.NotFound, "EVICTION_UNKNOWN"},
	{engine.ErrPauseUnknown, codes.NotFound, "PAUSE_UNKNOWN"},
	{engine.ErrReprieveUnknown, codes.NotFound, "REPRIEVE_UNKNOWN"},
	{engine.ErrBlastUnknown, codes.NotFound, "BLAST_RADIUS_UNKNOWN"},
	{engine.ErrEtag, codes.Aborted, "ETAG_MISMATCH"},
	{engine.ErrRevisionTooOld, codes.OutOfRange, "REVISION_TOO_OLD"},
	{engine.ErrReaderTooSlow, codes.ResourceExhausted, "READER_TOO_SLOW"},
	{engine.ErrNoBackup, codes.FailedPrecondition, "NO_BACKUP"},
	{errUnauthenticated, codes.Unauthenticated, "UNAUTHENTICATED"},
	{errDenied, codes.PermissionDenied, "PERMISSION_DENIED"},
	{errLimited, codes.ResourceExhausted, limitedReason},
	{errGrantsChanged, codes.Unavailable, "GRANTS_CHANGED"},
	{engine.ErrInvalid, codes.InvalidArgument, "INVALID_ARGUMENT"},
}

// fieldError is bad input in one field of a request.
type fieldError struct {
	field string
	err   error
}

func badField(field string, format string, args ...any) error {
	return &fieldError{field: field, err: fmt.Errorf("%w: %s", engine.ErrInvalid, fmt.Sprintf(format, args...))}
}

func (e *fieldError) Error() string { return e.field + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

// statusOf translates an error for callers. known is false if it is none that
// they should read: its text is for the log alone.
func statusOf(err error) (st *status.Status, known bool) {
	for _, r := range errorRules {
		if errors.Is(err, r.err) {
			return detailed(r.code, r.reason, err.Error(), detailsOf(err)...), true
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, "the call's deadline passed"), true
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, "the call was cancelled"), true
	}
	if st, ok := status.FromError(err); ok {
		return withViolations(st), true
	}
	return status.New(codes.Internal, "internal error; the service's log says more"), false
}

// detailsOf are the faulty fields that an error names, and when to try again.
func detailsOf(err error) (details []protoadapt.MessageV1) {
	if fe := (*fieldError)(nil); errors.As(err, &fe) {
		details = append(details, &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: fe.field, Description: fe.err.Error()}},
		})
	}
	if le := (*limitError)(nil); errors.As(err, &le) {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(le.retry)})
	}
	return details
}

// maxViolations bounds how many wrong fields a status names. One that names those of
// a whole batch is more than the headers of a client take, who then sees no status.
const maxViolations = 20

// withViolations turns what the validation of messages found into the details
// that all bad input has, or part of it. Other statuses stay as they are.
func withViolations(st *status.Status) *status.Status {
	for _, d := range st.Details() {
		found, ok := d.(*validate.Violations)
		if !ok {
			continue
		}
		bad, list, message := &errdetails.BadRequest{}, found.GetViolations(), st.Message()
		if len(list) > maxViolations {
			message = fmt.Sprintf("%d fields break the contract's rules; the details name %d of them", len(list), maxViolations)
			list = list[:maxViolations]
		}
		for _, v := range list {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: protovalidate.FieldPathString(v.GetField()), Description: v.GetMessage(),
			})
		}
		return detailed(codes.InvalidArgument, "INVALID_ARGUMENT", message, bad)
	}
	return st
}

func detailed(code codes.Code, reason, message string, more ...protoadapt.MessageV1) *status.Status {
	st := status.New(code, message)
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: errorDomain, Reason: reason}}, more...)
	if with, err := st.WithDetails(details...); err == nil {
		return with
	}
	// Only a status of code OK takes no details, and none of the rules has it.
	return st
}
