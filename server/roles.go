package server

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// Role is what a caller is to a cluster.
type Role string

// The roles.
const (
	// RoleFeeder feeds events.
	RoleFeeder Role = "feeder"
	// RoleExecutor takes orders.
	RoleExecutor Role = "executor"
	// RoleAgent is feeder and executor, and follows its clusters.
	RoleAgent Role = "agent"
	// RoleRequester requests evictions and reads what becomes of them.
	RoleRequester Role = "requester"
	// RoleViewer reads.
	RoleViewer Role = "viewer"
	// RoleOperator reads, requests, and changes what the service does.
	RoleOperator Role = "operator"
)

// allRoles are the roles in the order of the documentation.
var allRoles = []Role{RoleFeeder, RoleExecutor, RoleAgent, RoleRequester, RoleViewer, RoleOperator}

func parseRole(s string) (Role, error) {
	if r := Role(s); slices.Contains(allRoles, r) {
		return r, nil
	}
	return "", fmt.Errorf("role %q is none of %v", s, allRoles)
}

var (
	readers   = []Role{RoleViewer, RoleOperator}
	followers = []Role{RoleRequester, RoleViewer, RoleOperator}
	// watchers are followers, and agents, which write events on the pods of their
	// clusters and tell of the clusters' state.
	watchers   = []Role{RoleAgent, RoleRequester, RoleViewer, RoleOperator}
	requesters = []Role{RoleRequester, RoleOperator}
	operators  = []Role{RoleOperator}
)

// rolesOf says which roles may call an RPC, by its full method name. An RPC of
// this service that is not here is refused to everyone. Health and reflection
// are open and not here.
var rolesOf = map[string][]Role{
	reprievev1.FeedService_Feed_FullMethodName:                  {RoleFeeder, RoleAgent},
	reprievev1.EvictionService_Evict_FullMethodName:             {RoleExecutor, RoleAgent},
	reprievev1.EvictionService_RequestEviction_FullMethodName:   requesters,
	reprievev1.EvictionService_WithdrawEviction_FullMethodName:  requesters,
	reprievev1.QueryService_ListEvictions_FullMethodName:        followers,
	reprievev1.QueryService_GetEviction_FullMethodName:          followers,
	reprievev1.QueryService_WatchEvictions_FullMethodName:       watchers,
	reprievev1.QueryService_ListClusters_FullMethodName:         followers,
	reprievev1.QueryService_GetCluster_FullMethodName:           watchers,
	reprievev1.QueryService_ExplainPod_FullMethodName:           followers,
	reprievev1.QueryService_ExplainNode_FullMethodName:          readers,
	reprievev1.QueryService_ListNodes_FullMethodName:            readers,
	reprievev1.QueryService_ListReprieves_FullMethodName:        readers,
	reprievev1.QueryService_Simulate_FullMethodName:             readers,
	reprievev1.QueryService_GetShadowReport_FullMethodName:      readers,
	reprievev1.AdminService_GetPolicy_FullMethodName:            readers,
	reprievev1.AdminService_SetPolicy_FullMethodName:            operators,
	reprievev1.AdminService_PauseEvictions_FullMethodName:       operators,
	reprievev1.AdminService_ResumeEvictions_FullMethodName:      operators,
	reprievev1.AdminService_GrantReprieve_FullMethodName:        operators,
	reprievev1.AdminService_RevokeReprieve_FullMethodName:       operators,
	reprievev1.AdminService_ListBlastRadiusTrips_FullMethodName: readers,
	reprievev1.AdminService_ReleaseBlastRadius_FullMethodName:   operators,
	reprievev1.AdminService_RejectBlastRadius_FullMethodName:    operators,
	reprievev1.AdminService_ForgetCluster_FullMethodName:        operators,
	// For all clusters only: see clustersOf.
	reprievev1.AdminService_BackupStore_FullMethodName: operators,
}

// everyCluster, as a cluster's name in a grant, stands for all of them.
const everyCluster = "*"

// grant is a role bound to clusters.
type grant struct {
	role     Role
	clusters []string
}

// callerKind is by what a caller is known.
type callerKind string

const (
	byToken       callerKind = "token"
	byCertificate callerKind = "certificate"
	byNothing     callerKind = "anonymous"
	byProcess     callerKind = "in-process"
)

// caller is who calls, as the credentials say. It does not change.
type caller struct {
	name   string
	kind   callerKind
	grants []grant
	// uris are the certificate's names that say the grants.
	uris []string
}

// identity tells callers apart: tokens by their names, certificates by all that
// they say.
func (c *caller) identity() string {
	return strings.Join(append([]string{string(c.kind), c.name}, c.uris...), " ")
}

// access is what a caller may touch with one RPC. Its caller changes when the
// credentials do, as of a stream whose token has other clusters now.
type access struct {
	who atomic.Pointer[caller]
	// sum is the hash of the bearer token; nil for other callers.
	sum   *tokenSum
	roles []Role
}

func newAccess(who *caller, sum *tokenSum, roles []Role) *access {
	a := &access{sum: sum, roles: roles}
	a.who.Store(who)
	return a
}

// caller is who calls, as the credentials say now.
func (a *access) caller() *caller { return a.who.Load() }

// role reports whether the caller has a role for the RPC, for any cluster.
func (a *access) role() bool { return len(a.clusters()) > 0 }

// clusters are those for which the caller has a role for the RPC, in order.
func (a *access) clusters() []string {
	var out []string
	for _, g := range a.caller().grants {
		if slices.Contains(a.roles, g.role) {
			out = append(out, g.clusters...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// allows reports whether the caller has a role for the RPC and the cluster.
func (a *access) allows(cluster string) bool {
	return slices.ContainsFunc(a.caller().grants, func(g grant) bool {
		return slices.Contains(a.roles, g.role) && (slices.Contains(g.clusters, everyCluster) || slices.Contains(g.clusters, cluster))
	})
}
