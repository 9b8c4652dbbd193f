package server

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func batchOf(events ...*reprievev1.Event) *reprievev1.FeedRequest {
	return &reprievev1.FeedRequest{Sequence: 1, Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}}
}

// fullBatch has an object of each kind, with every field set.
func fullBatch() *reprievev1.FeedRequest {
	at, n := &timestamppb.Timestamp{Seconds: 1_700_000_000}, int64(300)
	return batchOf(
		&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{
			Namespace: "n", Name: "p", Uid: "u", NodeName: "n", Labels: map[string]string{"app": "web"}, Phase: "Running",
			OwnerReferences: []*reprievev1.OwnerReference{{ApiVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", Uid: "o", Controller: true}},
			Tolerations:     []*reprievev1.Toleration{{Key: "k", Operator: "Equal", Value: "v", Effect: "NoExecute", TolerationSeconds: &n}},
			Mirror:          true, DeletionTime: at, CreationTime: at, StartTime: at, ScheduledTime: at, Priority: proto.Int32(1),
			PriorityClassName: "c", TerminationGracePeriodSeconds: &n, ResourceVersion: "1", DisruptionReason: "r", DisruptionTime: at,
		}}},
		&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: &reprievev1.Event_Node{Node: &reprievev1.Node{
			Name: "n", Uid: "u", Labels: map[string]string{"zone": "a"}, Taints: []*reprievev1.Taint{{Key: "k", Value: "v", Effect: "NoExecute", TimeAdded: at}},
			Unschedulable: true, CreationTime: at, ResourceVersion: "1",
			Conditions: []*reprievev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "r", LastHeartbeatTime: at, LastTransitionTime: at}},
		}}},
	)
}

// spoilt are values for a field beyond any bound that it may have: too long, too many, absent, of no era.
func spoilt(m protoreflect.Message, fd protoreflect.FieldDescriptor) (out []protoreflect.Value) {
	var texts []string
	for _, n := range []int{0, 64, 65, 129, 254, 257, 513, 1025} {
		texts = append(texts, strings.Repeat("a", n))
	}
	switch {
	case fd.IsMap():
		many, long, key := m.NewField(fd), m.NewField(fd), m.NewField(fd)
		for i := range 1025 {
			many.Map().Set(protoreflect.ValueOfString(fmt.Sprint(i)).MapKey(), protoreflect.ValueOfString("v"))
		}
		long.Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString(texts[6]))
		key.Map().Set(protoreflect.ValueOfString(texts[6]).MapKey(), protoreflect.ValueOfString("v"))
		return []protoreflect.Value{many, long, key}
	case fd.IsList():
		for _, n := range []int{65, 257, 1025, maxBatchEvents + 1} {
			list := m.NewField(fd)
			for range n {
				list.List().Append(m.Get(fd).List().Get(0))
			}
			out = append(out, list)
		}
	case fd.Kind() == protoreflect.StringKind:
		for _, s := range texts {
			out = append(out, protoreflect.ValueOfString(s))
		}
	case fd.Kind() == protoreflect.EnumKind:
		out = append(out, protoreflect.ValueOfEnum(0), protoreflect.ValueOfEnum(99), protoreflect.ValueOfEnum(-1))
	case fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Timestamp":
		for _, t := range []*timestamppb.Timestamp{{Seconds: math.MinInt64}, {Seconds: -62135596801}, {Seconds: 253402300800}, {Seconds: 253402300799, Nanos: 1}, {Seconds: 1, Nanos: -1}, {Nanos: 1e9}, {Seconds: math.MaxInt64}} {
			out = append(out, protoreflect.ValueOfMessage(t.ProtoReflect()))
		}
	case fd.Kind() == protoreflect.Uint64Kind:
		out = append(out, protoreflect.ValueOfUint64(0))
	}
	return out
}

// place is a field of a message that may be within others.
type place struct {
	in    protoreflect.Message
	field protoreflect.FieldDescriptor
}

// places are all fields that are set in a message and in the messages in it.
func places(m protoreflect.Message) (out []place) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if !m.Has(fd) {
			continue
		}
		out = append(out, place{m, fd})
		switch {
		case fd.IsMap() || fd.Message() == nil || fd.Message().FullName() == "google.protobuf.Timestamp":
		case fd.IsList():
			for k := range m.Get(fd).List().Len() {
				out = append(out, places(m.Get(fd).List().Get(k).Message())...)
			}
		default:
			out = append(out, places(m.Get(fd).Message())...)
		}
	}
	return out
}

// Whatever breaks a rule is not taken for plain, and an ordinary batch is. A field
// that the contract gains must be in fullBatch, and one that gains a rule in the code.
func TestBoundsKeepTheRules(t *testing.T) {
	whole := fullBatch()
	if !plainBatch(whole) || protovalidate.Validate(whole) != nil {
		t.Fatal("an ordinary batch is not plain")
	}
	broken := 0
	for i, p := range places(whole.ProtoReflect()) {
		for k := range spoilt(p.in, p.field) {
			r := fullBatch()
			p := places(r.ProtoReflect())[i]
			p.in.Set(p.field, spoilt(p.in, p.field)[k])
			err := protovalidate.Validate(r)
			if err != nil {
				broken++
			}
			if err != nil && plainBatch(r) {
				t.Errorf("%s: taken for plain: %v", p.field.FullName(), err)
			}
		}
		for i := range p.in.Descriptor().Fields().Len() {
			if f := p.in.Descriptor().Fields().Get(i); f.ContainingOneof() == nil && !p.in.Has(f) {
				t.Errorf("%s is not in the batch", f.FullName())
			}
		}
	}
	if broken < 60 {
		t.Errorf("%d values broke a rule: too few to prove anything", broken)
	}
	for name, r := range map[string]*reprievev1.FeedRequest{
		"no message": {Sequence: 1}, "no events": batchOf((*reprievev1.Event)(nil)), "hello": {Sequence: 1, Message: &reprievev1.FeedRequest_Hello{}},
		"no object": batchOf(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT}),
	} {
		if plainBatch(r) {
			t.Errorf("%s: taken for plain", name)
		}
	}
}

// TestPlainBatchAllocatesNothing holds the look at a batch to its purpose.
func TestPlainBatchAllocatesNothing(t *testing.T) {
	r := fullBatch()
	if n := testing.AllocsPerRun(100, func() { plainBatch(r) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
