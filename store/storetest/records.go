package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	corev1 "k8s.io/api/core/v1"
)

// Eviction is an open eviction with every stored field set.
func Eviction(cluster string, seq uint64) *engine.EvictionRecord {
	seconds := int64(300)
	return &engine.EvictionRecord{
		Cluster: cluster, Seq: seq, Namespace: "default", Pod: fmt.Sprintf("pod-%d", seq), UID: fmt.Sprintf("uid-%d", seq),
		Node: "node-1", NodeUID: "node-uid-1", State: engine.StateDelivered, BoundAt: at(-500), Due: at(300),
		Cause: engine.Cause{
			Kind:       engine.CauseTaint,
			Taint:      engine.Taint{Key: "k", Value: "v", TimeAdded: at(-1), Start: at(0)},
			Start:      at(0).Add(time.Nanosecond),
			Toleration: &corev1.Toleration{Key: "k", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
			Default:    true, RequestID: "r1", Requester: "backend",
		},
		Requests: []engine.Request{
			{ID: "r1", Requester: "backend", Reason: "drain", NotBefore: at(10), RequestedAt: at(5)},
			{ID: "r2", Requester: "operator", Reason: "Ümläute und 漢字", RequestedAt: at(6)},
		},
		Delivery: &engine.Delivery{
			Token: "token", ExecutorID: "executor-1", SentAt: at(300), Deadline: at(330),
			Recall: engine.RecallPaused, RecallCause: engine.CancelToleration,
		},
		Attempts: 3, NoAnswers: 2, NotBefore: at(310), LastOutcome: engine.OutcomeDenied, LastMessage: "admission said no",
		OpenedAt: at(1), FirstSentAt: at(300), LastSentAt: at(320), ResultAt: at(305), ConfirmBy: at(360), Revision: 7,
	}
}

// Closed is a closed eviction. An early one was cancelled before its due instant.
func Closed(cluster string, seq uint64, closedAt time.Time, early bool) *engine.EvictionRecord {
	r := Eviction(cluster, seq)
	r.State, r.Delivery = engine.StateClosed, nil
	r.ClosedAt, r.CloseReason = closedAt, engine.CloseEvicted
	r.Due, r.FirstSentAt = closedAt.Add(-time.Second), closedAt.Add(-time.Second)
	if early {
		r.CloseReason, r.CancelCause = engine.CloseCancelled, engine.CancelTaintRemoved
		r.Due, r.FirstSentAt, r.LastSentAt = closedAt.Add(time.Second), time.Time{}, time.Time{}
	}
	return r
}

// Node is a node with every field set.
func Node(cluster, name string) *engine.NodeRecord {
	return &engine.NodeRecord{
		Cluster: cluster, Name: name, UID: "uid-of-" + name, EpisodeStart: at(-3),
		Taints: []engine.Taint{
			{Key: corev1.TaintNodeNotReady, TimeAdded: at(-3), Start: at(-2)},
			{Key: "maintenance", Value: "disk", Start: at(-1)},
		},
	}
}

// Health is a node's health with every field set.
func Health(cluster, name string) *engine.NodeHealthRecord {
	return &engine.NodeHealthRecord{
		Cluster: cluster,
		Record: health.Record{
			Name: name, UID: "uid-of-" + name, SilentAt: at(-9), Ready: health.StatusUnknown, Since: at(-8), QueuedAt: at(-7), GrantedAt: at(-6),
			PodsPending: true, Heartbeat: at(-60), Renew: at(-59), Removals: 2, RemovedAt: at(-5),
			Ordered: health.Ordered{
				Unknown: true, MarkPods: true,
				Add: health.Set(health.UnreachableNoSchedule, health.UnreachableNoExecute), Remove: health.Set(health.NotReadyNoSchedule, health.Unschedulable),
			},
		},
		Delivery: &engine.Delivery{Token: "token", ExecutorID: "executor-1", SentAt: at(-4), Deadline: at(26), Recall: engine.RecallPaused},
		Attempts: 3, NotBefore: at(1), LastOutcome: engine.OutcomeApplied, LastMessage: "nothing to do",
	}
}

// Reprieve is a reprieve with every field set.
func Reprieve(cluster, uid string) *engine.ReprieveRecord {
	return &engine.ReprieveRecord{
		Cluster: cluster, Namespace: "default", Pod: "pod-of-" + uid, UID: uid,
		Reason: "long computation", Actor: "operator", CreatedAt: at(0), Until: at(3600),
	}
}

// Cluster is a cluster's record with every field set.
func Cluster(name string) *engine.ClusterRecord {
	return &engine.ClusterRecord{
		Name: name, UID: "uid-of-" + name, AdoptedAt: at(-1000), LastLiveAt: at(-1),
		Policy: engine.PolicyPatch{Fields: engine.PolicyAllFields, Policy: engine.Policy{
			Mode: engine.ModeEnforce, DefaultNotReady: time.Minute, DefaultUnreachable: 2 * time.Minute, DisableDefaults: true,
			RatePerSecond: 12.5, Burst: 25, UnlimitedRate: true, Method: engine.MethodEvictThenDelete, BudgetWait: time.Hour,
			IgnoredTaintKeys: []string{"x", "y"}, ExcludedNamespaces: []string{"kube-system"}, ComparisonOperators: true,
			NodeHealth: engine.NodeHealthObserve, HealthFigures: figures(),
		}},
		PolicyVersion: 4,
		Pauses: []engine.Pause{
			{ID: "p1", Node: "node-1", Reason: "maintenance", Actor: "operator", CreatedAt: at(0), Until: at(600)},
			{ID: "p2", Namespace: "batch", Reason: "release", Actor: "operator", CreatedAt: at(1)},
		},
		Health: health.ClusterRecord{
			Grants: []health.Grant{{Zone: "", At: at(-3)}, {Zone: "region/zone", At: at(-2)}}, Other: "somebody", OtherAt: at(-1),
		},
	}
}

// figures have no two alike.
func figures() health.Figures {
	return health.Figures{
		Grace: time.Second, StartupGrace: 2 * time.Second, Rate: 3, FullRate: 4, PartialRate: 5, SmallRate: 6, LargeZone: 7,
		UnhealthyShare: 0.8, UnhealthyNodes: 9, SilenceShare: 0.1, SilenceWindow: 11 * time.Second, DisableSilenceHold: true,
	}
}

// The changes.

// version is an eviction's version that was made of a record.
type version struct{ record *engine.EvictionRecord }

// VersionOf returns a version that is r as it is now.
func VersionOf(r *engine.EvictionRecord) engine.EvictionVersion {
	c := *r
	c.Requests = slices.Clone(r.Requests)
	if r.Cause.Toleration != nil {
		c.Cause.Toleration = r.Cause.Toleration.DeepCopy()
	}
	if r.Delivery != nil {
		d := *r.Delivery
		c.Delivery = &d
	}
	if r.Observed != nil {
		o := *r.Observed
		c.Observed = &o
	}
	return version{&c}
}

// Seq implements [engine.EvictionVersion].
func (v version) Seq() uint64 { return v.record.Seq }

// UID implements [engine.EvictionVersion].
func (v version) UID() string { return v.record.UID }

// Fill implements [engine.EvictionVersion].
func (v version) Fill(r *engine.EvictionRecord) { *r = *v.record }

// recordOf is the version as a record of its own.
func recordOf(v engine.EvictionVersion) *engine.EvictionRecord {
	r := &engine.EvictionRecord{}
	v.Fill(r)
	return r
}

func putEviction(r *engine.EvictionRecord) engine.Change {
	return engine.Change{Kind: engine.ChangePutEviction, Cluster: r.Cluster, Eviction: VersionOf(r)}
}

func closeEviction(r *engine.EvictionRecord) engine.Change {
	return engine.Change{Kind: engine.ChangeCloseEviction, Cluster: r.Cluster, Eviction: VersionOf(r)}
}

func putNode(r *engine.NodeRecord) engine.Change {
	return engine.Change{Kind: engine.ChangePutNode, Cluster: r.Cluster, Node: r}
}

func deleteNode(cluster, name string) engine.Change {
	return engine.Change{Kind: engine.ChangeDeleteNode, Cluster: cluster, Node: &engine.NodeRecord{Name: name}}
}

func putCluster(r *engine.ClusterRecord) engine.Change {
	return engine.Change{Kind: engine.ChangePutCluster, Cluster: r.Name, Record: r}
}

func putHealth(r *engine.NodeHealthRecord) engine.Change {
	return engine.Change{Kind: engine.ChangePutHealth, Cluster: r.Cluster, Health: r}
}

func deleteHealth(cluster, name string) engine.Change {
	return engine.Change{Kind: engine.ChangeDeleteHealth, Cluster: cluster, Health: &engine.NodeHealthRecord{Record: health.Record{Name: name}}}
}

func putReprieve(r *engine.ReprieveRecord) engine.Change {
	return engine.Change{Kind: engine.ChangePutReprieve, Cluster: r.Cluster, Reprieve: r}
}

func deleteReprieve(cluster, uid string) engine.Change {
	return engine.Change{Kind: engine.ChangeDeleteReprieve, Cluster: cluster, Reprieve: &engine.ReprieveRecord{UID: uid}}
}

func forget(cluster string) engine.Change {
	return engine.Change{Kind: engine.ChangeForgetCluster, Cluster: cluster}
}
