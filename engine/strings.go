package engine

import "fmt"

func name[T ~uint8](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("UNKNOWN_%d", v)
}

// String returns the name used in the API.
func (s State) String() string {
	return name([]string{"UNSPECIFIED", "WAITING", "DUE", "DELIVERED", "RECALLING", "CONFIRMING", "CLOSED"}, s)
}

// String returns the name used in the API.
func (o Outcome) String() string {
	return name([]string{"UNSPECIFIED", "EVICTED", "GONE", "SUPERSEDED", "STALE", "BLOCKED", "DENIED", "FAILED", "RECALLED", "NO_ANSWER", "APPLIED"}, o)
}

// String returns the name used in the API.
func (r CloseReason) String() string {
	return name([]string{"UNSPECIFIED", "EVICTED", "GONE", "SUPERSEDED", "CANCELLED", "POD_DELETED", "POD_FINISHED", "NODE_DELETED", "WOULD_EVICT"}, r)
}

// String returns the name used in the API.
func (c CancelCause) String() string {
	return name([]string{"UNSPECIFIED", "TAINT_REMOVED", "TOLERATION", "POLICY", "REQUEST_WITHDRAWN", "REPRIEVE", "REJECTED"}, c)
}

// String says in words what stood against a pod's eviction; empty if nothing did.
func (s Standing) String() string {
	return name([]string{
		"nothing is known of it", "", "its node had no NoExecute taint", "it tolerates its node's taints for ever",
		"its tolerationSeconds is longer than the longest duration, which is for ever", "the policy ignores the taint's key",
		"it was not scheduled to a node", "it was terminating already", "it had finished", "it is a mirror pod of a static pod",
		"the policy excludes its namespace", "its node object was gone",
	}, s)
}

// String returns the name used in the API.
func (h Hold) String() string {
	return name([]string{"NONE", "CLUSTER_NOT_SYNCED", "RECORD_DAMAGED", "PAUSED", "REPRIEVED", "BACKING_OFF", "BLAST_RADIUS", "DISRUPTION", "NO_EXECUTOR", "RATE_LIMITED"}, h)
}

// String returns the name used in the API.
func (m Mode) String() string { return name([]string{"UNSPECIFIED", "SHADOW", "ENFORCE"}, m) }

// String returns the name used in the API.
func (n NodeHealth) String() string {
	return name([]string{"UNSPECIFIED", "OFF", "OBSERVE", "ENFORCE"}, n)
}

// String returns the name used in the API.
func (m Method) String() string {
	return name([]string{"UNSPECIFIED", "DELETE", "EVICT", "EVICT_THEN_DELETE"}, m)
}

// String returns the name used in the API.
func (r RecallReason) String() string {
	return name([]string{"NONE", "CANCELLED", "PAUSED", "REPRIEVED", "NODE_DELETED", "SHADOW"}, r)
}

// String returns the name used in the API.
func (s SyncState) String() string {
	return name([]string{"UNSPECIFIED", "NEVER_SYNCED", "SYNCING", "SYNCED", "LOST"}, s)
}

// String says in words why a pod is exempt.
func (e Exemption) String() string {
	return name([]string{
		"not exempt", "the pod is not scheduled to a node", "the pod is terminating already", "the pod has finished",
		"the pod is a mirror pod of a static pod", "the policy excludes the pod's namespace", "the pod's node is not known",
	}, e)
}

// String returns the name used in the API.
func (k DifferenceKind) String() string {
	return name([]string{"NONE", "EARLIER", "LATER", "ONLY_HERE", "ONLY_ELSEWHERE"}, k)
}

// String returns the name used in the API.
func (r DifferenceReason) String() string {
	return name([]string{
		"UNSPECIFIED", "WAIT_RESTARTED", "TOLERATION_CHANGED", "DEFAULT_TOLERATION", "NOT_A_SUBJECT", "TAINT_SWAP", "NODE_GONE",
		"ADOPTION", "TOLERATION_OVERFLOW", "POLICY", "NOT_DELETED_YET", "UNEXPLAINED",
	}, r)
}
