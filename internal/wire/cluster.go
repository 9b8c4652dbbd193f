package wire

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// Cluster translates a cluster's status.
func Cluster(st *engine.ClusterStatus) *reprievev1.Cluster {
	out := &reprievev1.Cluster{
		Name: st.Record.Name, ClusterUid: st.Record.UID, Mode: reprievev1.Mode(st.Policy.Mode),
		SyncState: reprievev1.Cluster_SyncState(st.Sync), LastLiveTime: Timestamp(st.Record.LastLiveAt),
		AdoptTime: Timestamp(st.Record.AdoptedAt), FeederId: st.Feed.FeederID, FeederEpoch: st.Feed.Epoch,
		AgentVersion: st.Feed.AgentVersion, KubernetesVersion: st.Feed.KubernetesVersion,
		Nodes: uint64(st.Nodes), Pods: uint64(st.Pods), StuckEvictions: uint64(st.Stuck), OldestDueTime: Timestamp(st.OldestDue),
		Policy: Policy(st.Policy, engine.PolicyAllFields), Reprieves: uint64(st.Reprieves), Warnings: st.Warnings,
		Ignored: st.Ignored, Damaged: st.Damaged,
		BlastRadiusTrips: uint64(len(st.Trips)), LoopingOwners: uint64(st.Looping),
		NodeHealth: ClusterHealth(st.Health),
	}
	if !st.LastMessage.IsZero() {
		out.FeedAge = durationpb.New(st.FeedAge)
	}
	for state, n := range st.Open {
		out.OpenEvictions = append(out.OpenEvictions, &reprievev1.Cluster_StateCount{State: reprievev1.EvictionState(state), Count: uint64(n)})
	}
	slices.SortFunc(out.OpenEvictions, func(a, b *reprievev1.Cluster_StateCount) int { return cmp.Compare(a.State, b.State) })
	for hold, n := range st.Holds {
		if hold != engine.HoldNone {
			out.Holds = append(out.Holds, &reprievev1.Cluster_HoldCount{Hold: reprievev1.HoldReason(hold), Count: uint64(n)})
		}
	}
	slices.SortFunc(out.Holds, func(a, b *reprievev1.Cluster_HoldCount) int { return cmp.Compare(a.Hold, b.Hold) })
	for _, x := range st.Executors {
		out.Executors = append(out.Executors, &reprievev1.Cluster_Executor{
			ExecutorId: x.ID, Capacity: uint32(x.Capacity), Outstanding: uint32(max(x.Outstanding, 0)), ConnectTime: Timestamp(x.ConnectedAt),
		})
	}
	for i := range st.Record.Pauses {
		out.Pauses = append(out.Pauses, Pause(st.Record.Name, &st.Record.Pauses[i]))
	}
	return out
}

// BlastTrips translates a cluster's trips.
func BlastTrips(cluster string, trips []engine.BlastTrip) []*reprievev1.BlastRadiusTrip {
	out := make([]*reprievev1.BlastRadiusTrip, 0, len(trips))
	for i := range trips {
		t := &trips[i]
		out = append(out, &reprievev1.BlastRadiusTrip{
			Cluster: cluster, Key: t.Key, TripTime: Timestamp(t.TrippedAt), NodeLimit: uint64(t.Limit), ClusterNodes: uint64(t.ClusterNodes),
			Nodes: uint64(t.Nodes), HeldNodes: uint64(t.Held), RejectedNodes: uint64(t.Rejected), NodeNames: t.NodeNames,
			HeldEvictions: uint64(t.HeldEvictions), RejectTime: Timestamp(t.RejectedAt), Actor: t.Actor, Reason: t.Reason,
		})
	}
	return out
}
