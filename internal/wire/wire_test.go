package wire

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// TestEnums proves that the enums which are translated by their number mean the
// same on both sides, and that neither side has one more.
func TestEnums(t *testing.T) {
	for _, tc := range []struct {
		enum   protoreflect.EnumDescriptor
		prefix string
		name   func(uint8) string
	}{
		{reprievev1.EvictionState(0).Descriptor(), "EVICTION_STATE_", func(i uint8) string { return engine.State(i).String() }},
		{reprievev1.Outcome(0).Descriptor(), "OUTCOME_", func(i uint8) string { return engine.Outcome(i).String() }},
		{reprievev1.CloseReason(0).Descriptor(), "CLOSE_REASON_", func(i uint8) string { return engine.CloseReason(i).String() }},
		{reprievev1.CancelCause(0).Descriptor(), "CANCEL_CAUSE_", func(i uint8) string { return engine.CancelCause(i).String() }},
		{reprievev1.HoldReason(0).Descriptor(), "HOLD_REASON_", func(i uint8) string { return engine.Hold(i).String() }},
		{reprievev1.Mode(0).Descriptor(), "MODE_", func(i uint8) string { return engine.Mode(i).String() }},
		{reprievev1.EvictionMethod(0).Descriptor(), "EVICTION_METHOD_", func(i uint8) string { return engine.Method(i).String() }},
		{reprievev1.Recall_Reason(0).Descriptor(), "REASON_", func(i uint8) string { return engine.RecallReason(i).String() }},
		{reprievev1.Cluster_SyncState(0).Descriptor(), "SYNC_STATE_", func(i uint8) string { return engine.SyncState(i).String() }},
		{reprievev1.ShadowDifference_Kind(0).Descriptor(), "KIND_", func(i uint8) string { return engine.DifferenceKind(i).String() }},
		{reprievev1.ShadowDifference_Reason(0).Descriptor(), "REASON_", func(i uint8) string { return engine.DifferenceReason(i).String() }},
	} {
		values := tc.enum.Values()
		for i := 1; i < values.Len(); i++ {
			want := strings.TrimPrefix(string(values.Get(i).Name()), tc.prefix)
			if got := tc.name(uint8(values.Get(i).Number())); got != want {
				t.Errorf("%s: number %d is %s in the contract and %s in the engine", tc.enum.Name(), i, want, got)
			}
		}
		if got := tc.name(uint8(values.Len())); !strings.HasPrefix(got, "UNKNOWN_") {
			t.Errorf("%s: the engine has %s, the contract has not", tc.enum.Name(), got)
		}
	}
}

// TestBudgetWaitPresence: an order has a budget wait, zero too, for the method that has one.
func TestBudgetWaitPresence(t *testing.T) {
	for method, want := range map[engine.Method]bool{
		engine.MethodDelete: false, engine.MethodEvict: false, engine.MethodEvictThenDelete: true,
	} {
		pod := Order(&engine.Order{Method: method, Eviction: &engine.EvictionRecord{}}).GetEvictPod()
		if got := pod.GetBudgetWait() != nil; got != want {
			t.Errorf("%s: budget_wait is there: %v", method, got)
		}
	}
}

// TestReadyTimes: what condition Ready says of its times reaches node health, and no other condition's do.
func TestReadyTimes(t *testing.T) {
	beat, turned := time.Unix(20, 0), time.Unix(10, 0)
	h := Node(&reprievev1.Node{Name: "n", Conditions: []*reprievev1.NodeCondition{
		{Type: "Ready", Status: "True", LastHeartbeatTime: timestamppb.New(beat), LastTransitionTime: timestamppb.New(turned)},
		{Type: "DiskPressure", Status: "False", LastHeartbeatTime: timestamppb.New(time.Unix(30, 0)), LastTransitionTime: timestamppb.New(time.Unix(30, 0))},
	}}).Health
	if !h.Heartbeat.Equal(beat) || !h.Transition.Equal(turned) {
		t.Errorf("heartbeat %s, transition %s", h.Heartbeat, h.Transition)
	}
}
