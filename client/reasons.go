package client

import "google.golang.org/grpc/codes"

// IsUnavailable reports whether the service could not be reached, is stopping or
// has no store just now: the call may be tried again. An unsynced cluster, which
// has the same code, is [IsNotSynced].
func IsUnavailable(err error) bool {
	return codeOf(err) == codes.Unavailable && !IsNotSynced(err)
}

// IsNotSynced reports whether the cluster's feed was not live.
func IsNotSynced(err error) bool { return ReasonOf(err) == ReasonClusterNotSynced }

// IsClusterUnknown reports whether the cluster was not known.
func IsClusterUnknown(err error) bool { return ReasonOf(err) == ReasonClusterUnknown }

// IsClusterUIDMismatch reports whether the cluster's name was bound to another UID.
func IsClusterUIDMismatch(err error) bool { return ReasonOf(err) == ReasonClusterUIDMismatch }

// IsClusterDamaged reports whether the cluster's record was damaged.
func IsClusterDamaged(err error) bool { return ReasonOf(err) == ReasonClusterDamaged }

// IsFeedHeld reports whether another feeder held the cluster.
func IsFeedHeld(err error) bool { return ReasonOf(err) == ReasonFeedHeld }

// IsSuperseded reports whether a newer stream took this one's place.
func IsSuperseded(err error) bool { return ReasonOf(err) == ReasonSuperseded }

// IsPodUnknown reports whether the pod was not known to a synced cluster.
func IsPodUnknown(err error) bool { return ReasonOf(err) == ReasonPodUnknown }

// IsPodNotSubject reports whether the pod is one that is never evicted.
func IsPodNotSubject(err error) bool { return ReasonOf(err) == ReasonPodNotSubject }

// IsRequestConflict reports whether the request id was used with other content.
func IsRequestConflict(err error) bool { return ReasonOf(err) == ReasonRequestConflict }

// IsEtagMismatch reports whether the policy changed since it was read.
func IsEtagMismatch(err error) bool { return ReasonOf(err) == ReasonEtagMismatch }

// IsRevisionTooOld reports whether a watch must list again because its revision
// is no longer in memory.
func IsRevisionTooOld(err error) bool { return ReasonOf(err) == ReasonRevisionTooOld }

// IsReaderTooSlow reports whether a watch must list again because it fell behind.
func IsReaderTooSlow(err error) bool { return ReasonOf(err) == ReasonReaderTooSlow }

// IsLimited reports whether the caller asked for too much, and may try again
// after [Error.RetryAfter].
func IsLimited(err error) bool { return ReasonOf(err) == ReasonLimited }

// IsNotFound reports whether what the call named does not exist, whatever it is.
func IsNotFound(err error) bool { return codeOf(err) == codes.NotFound }

// IsDenied reports whether the credentials were missing, bad or without a role for the call.
func IsDenied(err error) bool {
	code := codeOf(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// IsInvalid reports whether the request was bad; [Error.Fields] says where.
func IsInvalid(err error) bool { return codeOf(err) == codes.InvalidArgument }
