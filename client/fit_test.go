package client

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func podEvent(p *reprievev1.Pod) *reprievev1.Event {
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: p}}
}

func nodeEvent(n *reprievev1.Node) *reprievev1.Event {
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: n}}
}

// excess sets a field beyond any bound.
func excess(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	long := strings.Repeat("é", 5000)
	switch {
	case fd.IsMap():
		for i := range 3000 {
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString(fmt.Sprint("k", i)).MapKey(), protoreflect.ValueOfString("v"))
		}
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString("a").MapKey(), protoreflect.ValueOfString(long))
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString("b").MapKey(), protoreflect.ValueOfString("\xff"))
	case fd.IsList():
		for range 3000 {
			e := m.Mutable(fd).List().AppendMutable().Message()
			for i := range e.Descriptor().Fields().Len() {
				if f := e.Descriptor().Fields().Get(i); f.Kind() == protoreflect.StringKind {
					e.Set(f, protoreflect.ValueOfString("x"))
				}
			}
		}
	case fd.Kind() == protoreflect.StringKind:
		m.Set(fd, protoreflect.ValueOfString(long))
	case fd.Kind() == protoreflect.MessageKind:
		m.Set(fd, protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: math.MinInt64, Nanos: -7}).ProtoReflect()))
	}
}

// whole are messages of each kind that the contract takes, in an event.
func whole(kind string) (*reprievev1.Event, proto.Message) {
	pod, node := &reprievev1.Pod{Namespace: "n", Name: "p", Uid: "u"}, &reprievev1.Node{Name: "n", Uid: "u"}
	switch kind {
	case "Pod":
		return podEvent(pod), pod
	case "Node":
		return nodeEvent(node), node
	case "Taint":
		node.Taints = []*reprievev1.Taint{{Key: "k"}}
		return nodeEvent(node), node.Taints[0]
	case "NodeCondition":
		node.Conditions = []*reprievev1.NodeCondition{{Type: "Ready"}}
		return nodeEvent(node), node.Conditions[0]
	case "Toleration":
		pod.Tolerations = []*reprievev1.Toleration{{Key: "k"}}
		return podEvent(pod), pod.Tolerations[0]
	default:
		pod.OwnerReferences = []*reprievev1.OwnerReference{{Name: "o"}}
		return podEvent(pod), pod.OwnerReferences[0]
	}
}

// Whatever field is beyond its bound, the service takes what Fit makes of it.
func TestFitKeepsEveryBound(t *testing.T) {
	names := []string{"Pod.node_name", "Pod.namespace", "Pod.name", "Pod.uid", "Node.name", "Node.uid"}
	for _, kind := range []string{"Pod", "Node", "Taint", "NodeCondition", "Toleration", "OwnerReference"} {
		_, m := whole(kind)
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			e, m := whole(kind)
			fd := fields.Get(i)
			excess(m.ProtoReflect(), fd)
			if protovalidate.Validate(e) == nil && proto.CheckInitialized(e) == nil {
				continue // A flag or number, which has no bound.
			}
			name := kind + "." + string(fd.Name())
			cut, ok := Fit(e)
			if !slices.Contains(cut, name) {
				t.Errorf("%s: cut is %v", name, cut)
			}
			if ok == slices.Contains(names, name) {
				t.Errorf("%s: told is %v", name, ok)
			}
			if err := protovalidate.Validate(e); ok && err != nil {
				t.Errorf("%s: the service refuses it: %v", name, err)
			}
			if _, err := proto.Marshal(e); ok && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Leases renewed in years that the contract does not know are told by the nearest.
func TestFitKeepsRenewTimes(t *testing.T) {
	fine := &timestamppb.Timestamp{Seconds: 1_800_000_000, Nanos: 5}
	e := &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_LeaseRenewals{LeaseRenewals: &reprievev1.NodeLeaseRenewals{
		NodeNames: []string{"a", "b", "c", "d"},
		RenewTimes: []*timestamppb.Timestamp{
			timestamppb.New(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)), timestamppb.New(time.Date(9999, 12, 31, 23, 59, 59, 5e8, time.UTC)), fine, {Seconds: 5, Nanos: 1e9},
		},
	}}}
	cut, ok := Fit(e)
	if !ok || !slices.Equal(cut, []string{"NodeLeaseRenewals.renew_times"}) {
		t.Errorf("cut %q, %t", cut, ok)
	}
	if err := protovalidate.Validate(e); err != nil {
		t.Error(err)
	}
	times := e.GetLeaseRenewals().GetRenewTimes()
	if !proto.Equal(times[2], fine) || times[0].AsTime().Year() != 1 || times[1].AsTime().Year() != 9999 || times[3].GetNanos() != 0 {
		t.Errorf("renew times %v", times)
	}
}

func TestFitLeavesWhatFits(t *testing.T) {
	for _, kind := range []string{"Pod", "Taint", "NodeCondition", "Toleration", "OwnerReference"} {
		e, _ := whole(kind)
		want := proto.Clone(e)
		if cut, ok := Fit(e); !ok || cut != nil || !proto.Equal(e, want) {
			t.Errorf("%s: %v %v %v", kind, cut, ok, e)
		}
	}
	if _, ok := Fit(podEvent(&reprievev1.Pod{Namespace: "n", Name: "p"})); ok {
		t.Error("a pod without uid was told")
	}
}

// A text that is no UTF-8 would end the stream when it is sent.
func TestFitMendsText(t *testing.T) {
	e := podEvent(&reprievev1.Pod{Namespace: "n", Name: "p", Uid: "u", Phase: "a\xffb", Tolerations: []*reprievev1.Toleration{{Key: "\xff"}}})
	if _, err := proto.Marshal(e); err == nil {
		t.Fatal("the case proves nothing")
	}
	if cut, ok := Fit(e); !ok || len(cut) == 0 {
		t.Errorf("%v %v", cut, ok)
	}
	if _, err := proto.Marshal(e); err != nil {
		t.Error(err)
	}
}

// Cutting tolerations may make a pod stay longer, never leave earlier.
func TestFitTolerationsNeverHasten(t *testing.T) {
	seconds := int64(5)
	var list []*reprievev1.Toleration
	for i := range 2000 {
		list = append(list, &reprievev1.Toleration{Key: fmt.Sprint("s", i), Operator: "Exists", Effect: "NoSchedule"},
			&reprievev1.Toleration{Key: "same", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds})
	}
	last := &reprievev1.Toleration{Key: "last", Operator: "Exists"}
	few := &reprievev1.Pod{Namespace: "n", Name: "p", Uid: "u", Tolerations: append(slices.Clone(list), last)}
	if _, ok := Fit(podEvent(few)); !ok || len(few.Tolerations) != 2 || few.Tolerations[0].GetKey() != "same" || few.Tolerations[1] != last {
		t.Errorf("kept %v", few.Tolerations)
	}
	for i := range 2000 {
		list = append(list, &reprievev1.Toleration{Key: fmt.Sprint("e", i), Operator: "Exists", Effect: "NoExecute"})
	}
	many := &reprievev1.Pod{Namespace: "n", Name: "p", Uid: "u", Tolerations: list}
	if _, ok := Fit(podEvent(many)); !ok || len(many.Tolerations) != 1024 || !proto.Equal(many.Tolerations[1023], toleratesAll()) {
		t.Errorf("%d kept, the last is %v", len(many.Tolerations), many.Tolerations[len(many.Tolerations)-1])
	}
	odd := &reprievev1.Pod{Namespace: "n", Name: "p", Uid: "u", Tolerations: []*reprievev1.Toleration{{Operator: "Exists", Value: strings.Repeat("v", 600)}}}
	if _, ok := Fit(podEvent(odd)); !ok || len(odd.Tolerations) != 1 || !proto.Equal(odd.Tolerations[0], toleratesAll()) {
		t.Errorf("kept %v", odd.Tolerations)
	}
}

// The taints that evict, the managing owner and the condition Ready stay.
func TestFitKeepsWhatMatters(t *testing.T) {
	n := &reprievev1.Node{Name: "n", Uid: "u"}
	p := &reprievev1.Pod{Namespace: "n", Name: "p", Uid: "u"}
	for i := range 2000 {
		n.Taints = append(n.Taints, &reprievev1.Taint{Key: fmt.Sprint(i), Effect: "NoSchedule"})
		n.Conditions = append(n.Conditions, &reprievev1.NodeCondition{Type: fmt.Sprint(i)})
		p.OwnerReferences = append(p.OwnerReferences, &reprievev1.OwnerReference{Name: "o"})
	}
	n.Taints = append(n.Taints, &reprievev1.Taint{Key: "k", Effect: "NoExecute"})
	n.Conditions = append(n.Conditions, &reprievev1.NodeCondition{Type: "Ready"}, &reprievev1.NodeCondition{})
	p.OwnerReferences = append(p.OwnerReferences, &reprievev1.OwnerReference{Name: "o", Controller: true})
	if _, ok := Fit(nodeEvent(n)); !ok || n.Taints[0].GetKey() != "k" || n.Conditions[0].GetType() != "Ready" {
		t.Errorf("first are %v and %v", n.Taints[0], n.Conditions[0])
	}
	if _, ok := Fit(podEvent(p)); !ok || !p.OwnerReferences[0].GetController() {
		t.Errorf("first is %v", p.OwnerReferences[0])
	}
}

func BenchmarkFit(b *testing.B) {
	e, m := whole("Toleration")
	pod := e.GetPod()
	pod.Labels = map[string]string{"app": "x", "tier": "y", "hash": "z"}
	pod.Tolerations = append(pod.Tolerations, proto.Clone(m).(*reprievev1.Toleration))
	pod.CreationTime = timestamppb.New(timestamppb.Now().AsTime())
	for b.Loop() {
		Fit(e)
	}
}
