package engine

import "errors"

// Sentinel errors of the engine. The server maps each to a code and a reason.
var (
	// ErrUnavailable means that the engine has no store just now and is reopening it.
	ErrUnavailable = errors.New("the store is unavailable; the service is reopening it")
	// ErrStopped means that the engine has been stopped.
	ErrStopped = errors.New("the service is stopping")
	// ErrInvalid means that an argument is bad; the text says which and why.
	ErrInvalid = errors.New("invalid argument")
	// ErrClusterUnknown means that no cluster of that name is known.
	ErrClusterUnknown = errors.New("cluster not found")
	// ErrClusterUID means that a feed's cluster is not the one the name is bound to.
	ErrClusterUID = errors.New("cluster UID does not match")
	// ErrClusterDamaged means that the cluster's record is damaged and must be repaired or forgotten first.
	ErrClusterDamaged = errors.New("cluster record is damaged")
	// ErrFeedHeld means that another feeder holds the cluster.
	ErrFeedHeld = errors.New("cluster is fed by another feeder")
	// ErrSuperseded ends a stream whose place a newer one took.
	ErrSuperseded = errors.New("superseded by a newer stream")
	// ErrFeedSilent ends a feed that was silent for longer than the feed timeout.
	ErrFeedSilent = errors.New("feed was silent for too long")
	// ErrFeedOrder means that a feed's messages came out of order.
	ErrFeedOrder = errors.New("feed message out of order")
	// ErrUIDConflict means that one UID was seen under two names.
	ErrUIDConflict = errors.New("one UID under two names")
	// ErrNotSynced means that the cluster's feed is not live, so that nothing can be said of its pods.
	ErrNotSynced = errors.New("cluster is not synced")
	// ErrPodUnknown means that a synced cluster has no such pod.
	ErrPodUnknown = errors.New("pod not found")
	// ErrNodeUnknown means that a cluster has no such node.
	ErrNodeUnknown = errors.New("node not found")
	// ErrOtherController means that another controller was seen at work on the health of a cluster's nodes.
	ErrOtherController = errors.New("another controller works on the nodes' health")
	// ErrNotSubject means that the pod is never evicted (D2, excluded namespace).
	ErrNotSubject = errors.New("pod is not subject to eviction")
	// ErrRequestConflict means that a request id was used before with other content.
	ErrRequestConflict = errors.New("request id was used with other content")
	// ErrRequestUnknown means that there is no such request.
	ErrRequestUnknown = errors.New("request not found")
	// ErrEvictionUnknown means that there is no such eviction.
	ErrEvictionUnknown = errors.New("eviction not found")
	// ErrPauseUnknown means that no pause has that scope or id.
	ErrPauseUnknown = errors.New("pause not found")
	// ErrReprieveUnknown means that the pod has no reprieve.
	ErrReprieveUnknown = errors.New("reprieve not found")
	// ErrBlastUnknown means that no taint key of that name is tripped or rejected.
	ErrBlastUnknown = errors.New("taint key is not held by the blast radius")
	// ErrEtag means that the policy changed since it was read.
	ErrEtag = errors.New("policy was changed by another; read it again")
	// ErrRevisionTooOld means that the revision is older than the ring of changes, or of another run.
	ErrRevisionTooOld = errors.New("revision is no longer in memory")
	// ErrReaderTooSlow means that a watcher fell behind the ring of changes.
	ErrReaderTooSlow = errors.New("reader is too slow")
	// ErrNoBackup means that the store cannot be copied, or there is no room for the copy.
	ErrNoBackup = errors.New("no backup can be made")
)
