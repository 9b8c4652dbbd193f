package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestFeedAcknowledgesWhatIsOnDisk(t *testing.T) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	w := x.recv().GetWelcome()
	if w.GetMode() != reprievev1.Mode_MODE_SHADOW || w.GetHeartbeatInterval().AsDuration() <= 0 || w.GetMaxBatchEvents() != maxBatchEvents {
		t.Fatalf("welcome %v", w)
	}
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")))
	c, err := f.query().GetCluster(f.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
	if err != nil || c.GetCluster().GetSyncState() != reprievev1.Cluster_SYNC_STATE_SYNCED || c.GetCluster().GetPods() != 1 {
		t.Fatalf("cluster %v, %v", c, err)
	}
	// What was sent before the peer's half of the stream ended is still answered.
	x.batch(deletePod("p1"))
	last := x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}})
	if err := x.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	x.acked(last, false)
	if m, err := x.stream.Recv(); err == nil {
		t.Fatalf("%v after the last acknowledgement", m)
	} else if err.Error() != "EOF" {
		t.Fatal(err)
	}
}

func TestFeedRefusals(t *testing.T) {
	heartbeat := func() *reprievev1.FeedRequest {
		return &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}
	}
	for name, tc := range map[string]struct {
		send   func(*feed)
		code   codes.Code
		reason string
		field  string
	}{
		"second hello": {func(x *feed) {
			x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: hello("east")}})
		},
			codes.FailedPrecondition, "FEED_OUT_OF_ORDER", ""},
		"gap in the sequence":  {func(x *feed) { x.seq++; x.send(heartbeat()) }, codes.FailedPrecondition, "FEED_OUT_OF_ORDER", ""},
		"repeated sequence":    {func(x *feed) { x.seq--; x.send(heartbeat()) }, codes.FailedPrecondition, "FEED_OUT_OF_ORDER", ""},
		"batch without a list": {func(x *feed) { x.batch(upsertNode("n1")) }, codes.FailedPrecondition, "FEED_OUT_OF_ORDER", ""},
		"end without a list":   {func(x *feed) { x.end() }, codes.FailedPrecondition, "FEED_OUT_OF_ORDER", ""},
		"no message":           {func(x *feed) { x.send(&reprievev1.FeedRequest{}) }, codes.InvalidArgument, "INVALID_ARGUMENT", "message"},
		"pod without uid": {func(x *feed) {
			x.begin()
			bad := upsertPod("p1", "n1")
			bad.GetPod().Uid = ""
			x.batch(upsertNode("n1"), bad)
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "batch.events[1].pod.uid"},
		"one uid under two names": {func(x *feed) {
			x.begin()
			bad := upsertPod("p2", "n1")
			bad.GetPod().Uid = "uid-p1"
			x.batch(upsertPod("p1", "n1"))
			x.batch(bad)
		}, codes.InvalidArgument, "UID_CONFLICT", "batch.events"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, memory(), nil)
			x := f.feed(f.ctx, hello("east"))
			if x.recv().GetWelcome() == nil {
				t.Fatal("no welcome")
			}
			tc.send(x)
			var err error
			for err == nil {
				_, err = x.stream.Recv()
			}
			st := wantError(t, err, tc.code, tc.reason)
			if tc.field != "" && !slices.Contains(fieldsOf(st), tc.field) {
				t.Fatalf("fields %v; want %s", fieldsOf(st), tc.field)
			}
		})
	}
}

func TestFeedFirstMessageIsHello(t *testing.T) {
	f := newFixture(t, memory(), nil)
	stream, err := reprievev1.NewFeedServiceClient(f.conn).Feed(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	x := &feed{t: t, stream: stream}
	x.begin()
	_, err = stream.Recv()
	wantError(t, err, codes.FailedPrecondition, "FEED_OUT_OF_ORDER")
}

func TestFeedHasOneHolder(t *testing.T) {
	f := newFixture(t, memory(), nil)
	first := f.feed(f.ctx, hello("east"))
	first.recv()
	first.list()

	wrong := hello("east")
	wrong.ClusterUid = "another"
	_, err := f.feed(f.ctx, wrong).stream.Recv()
	wantError(t, err, codes.FailedPrecondition, "CLUSTER_UID_MISMATCH")

	other := hello("east")
	other.FeederId = "other"
	_, err = f.feed(f.ctx, other).stream.Recv()
	wantError(t, err, codes.AlreadyExists, "FEED_HELD")

	other.FeederEpoch = 1
	if f.feed(f.ctx, other).recv().GetWelcome() == nil {
		t.Fatal("a higher epoch was not welcomed")
	}
	for err = nil; err == nil; {
		_, err = first.stream.Recv()
	}
	wantError(t, err, codes.Aborted, "SUPERSEDED")
}

func TestStopEndsStreams(t *testing.T) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list()
	f.svc.Stop()
	var err error
	for err == nil {
		_, err = x.stream.Recv()
	}
	wantError(t, err, codes.Unavailable, "STOPPING")
}

func TestFeedIsToldOfTheMode(t *testing.T) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	if m := x.recv().GetWelcome().GetMode(); m != reprievev1.Mode_MODE_SHADOW {
		t.Fatalf("welcome with mode %v", m)
	}
	x.list()
	for _, mode := range []reprievev1.Mode{reprievev1.Mode_MODE_ENFORCE, reprievev1.Mode_MODE_SHADOW} {
		_, err := f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{
			Cluster: "east", Policy: &reprievev1.ClusterPolicy{Mode: &mode}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"mode"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if m := x.recv(); m.GetModeChanged().GetMode() != mode {
			t.Fatalf("%v after the mode became %v", m, mode)
		}
	}
}

// A node lifecycle controller that appears on a living stream is shown as one in its hello is, though ENFORCE stands.
func TestFeedTellsOfAnotherNodeController(t *testing.T) {
	f := newFixture(t, memory(), nil)
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list()
	set := func(mode reprievev1.NodeHealthMode) error {
		_, err := f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{
			Cluster: "east", Policy: &reprievev1.ClusterPolicy{NodeHealth: &mode}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"node_health"}},
		})
		return err
	}
	if err := set(reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE); err != nil {
		t.Fatal(err)
	}
	if m := x.recv(); m.GetNodeHealthChanged() == nil {
		t.Fatalf("%v after node health was switched on", m)
	}
	x.recv() // It asks for a new list.
	x.list()
	const text = "pod kube-system/kcm"
	for _, other := range []string{text, ""} {
		beat := &reprievev1.Heartbeat{NodeLifecycleController: &other}
		x.acked(x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: beat}}), false)
		x.acked(x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}), false)
		r, err := f.query().GetCluster(f.ctx, &reprievev1.GetClusterRequest{Cluster: "east"})
		if err != nil {
			t.Fatal(err)
		}
		c := r.GetCluster()
		warned := slices.ContainsFunc(c.GetWarnings(), func(w string) bool { return strings.Contains(w, text) })
		if c.GetNodeHealth().GetOtherController() != other || warned != (other != "") {
			t.Errorf("with %q: %v, warnings %q", other, c.GetNodeHealth(), c.GetWarnings())
		}
		_, metrics := f.get("/metrics")
		if gauge := fmt.Sprintf("reprieve_node_health_other_controller{cluster=\"east\"} %d", len(other)/max(len(text), 1)); !strings.Contains(metrics, gauge) {
			t.Errorf("with %q there is no metric %s", other, gauge)
		}
	}
}

// TestHeartbeatWhileTheStoreIsAway: what a heartbeat tells once is known of the
// session that the stream opens when the store is back.
func TestHeartbeatWhileTheStoreIsAway(t *testing.T) {
	other := "a controller"
	f := &feedStream{hello: engine.FeedHello{Cluster: "c"}}
	beat := &reprievev1.Heartbeat{NodeLifecycleController: &other}
	if err := f.handle(&reprievev1.FeedRequest{Sequence: 2, Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: beat}}); err != nil {
		t.Fatal(err)
	}
	if f.hello.NodeLifecycle != other {
		t.Errorf("the next session begins with %q, want %q", f.hello.NodeLifecycle, other)
	}
}
