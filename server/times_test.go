package server

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// eachTime calls f with every path of a message to a Duration or a Timestamp, which f is to fill.
func eachTime(md protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor, f func([]protoreflect.FieldDescriptor)) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		next := append(path[:len(path):len(path)], fd)
		switch {
		case fd.Message() == nil || fd.IsMap() || len(path) > 8:
		case isTime(fd.Message()):
			f(next)
		default:
			eachTime(fd.Message(), next, f)
		}
	}
}

// Each Duration and Timestamp that a call may bring is looked at, whatever message it stands in.
func TestEveryTimeIsLookedAt(t *testing.T) {
	seen := map[string]bool{}
	protoregistry.GlobalFiles.RangeFilesByPackage("reprieve.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			for k := range file.Services().Get(i).Methods().Len() {
				in := file.Services().Get(i).Methods().Get(k).Input()
				eachTime(in, nil, func(path []protoreflect.FieldDescriptor) {
					kind, err := protoregistry.GlobalTypes.FindMessageByName(in.FullName())
					if err != nil {
						t.Fatal(err)
					}
					m, name := kind.New(), ""
					at := m
					for _, fd := range path {
						name += "." + string(fd.Name())
						if fd.IsList() {
							at, name = at.Mutable(fd).List().AppendMutable().Message(), name+"[0]"
							continue
						}
						at = at.Mutable(fd).Message()
					}
					at.Set(at.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(60))
					at.Set(at.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOfInt32(-1))
					err = wholeTimes(m.Interface())
					var bad *protovalidate.ValidationError
					if !errors.As(err, &bad) || len(bad.Violations) != 1 || "."+protovalidate.FieldPathString(bad.Violations[0].Proto.GetField()) != name {
						t.Errorf("%s%s: %v", in.FullName(), name, err)
					}
					at.Set(at.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOfInt32(1))
					if err := wholeTimes(m.Interface()); err != nil {
						t.Errorf("%s%s: %v", in.FullName(), name, err)
					}
					seen[string(in.FullName())+name] = true
				})
			}
		}
		return true
	})
	for _, want := range []string{
		"reprieve.v1.SetPolicyRequest.policy.budget_wait", "reprieve.v1.SetPolicyRequest.policy.node_health_figures.grace_period",
		"reprieve.v1.GetShadowReportRequest.tolerance", "reprieve.v1.EvictRequest.result.retry_after",
		"reprieve.v1.GetShadowReportRequest.since", "reprieve.v1.FeedRequest.batch.events[0].node.taints[0].time_added",
	} {
		if !seen[want] {
			t.Errorf("%s was not looked at", want)
		}
	}
}

// A Duration whose nanos have the wrong sign, or a Timestamp that has too many, is
// refused with the field's name, in a call and on a stream, where it was taken for the
// sum of its parts.
func TestBrokenTimeIsRefused(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	broken := &durationpb.Duration{Seconds: 60, Nanos: -1}
	refused := func(err error, field string) {
		t.Helper()
		st := wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
		if !slices.Equal(fieldsOf(st), []string{field}) {
			t.Errorf("fields %q, want %s", fieldsOf(st), field)
		}
	}
	_, err := f.admin().SetPolicy(f.ctx, &reprievev1.SetPolicyRequest{
		Cluster: "east", Policy: &reprievev1.ClusterPolicy{NodeHealthFigures: &reprievev1.NodeHealthFigures{GracePeriod: broken}},
	})
	refused(err, "policy.node_health_figures.grace_period")
	_, err = f.query().GetShadowReport(f.ctx, &reprievev1.GetShadowReportRequest{Cluster: "east", Tolerance: broken})
	refused(err, "tolerance")
	_, err = f.query().GetShadowReport(f.ctx, &reprievev1.GetShadowReportRequest{Cluster: "east", Since: &timestamppb.Timestamp{Nanos: 1e9}})
	refused(err, "since")
	x := f.executor("x", 1, "east")
	x.send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{
		Token: "t", Outcome: reprievev1.Outcome_OUTCOME_BLOCKED, RetryAfter: broken,
	}}})
	_, err = x.stream.Recv()
	refused(err, "result.retry_after")
}

// A batch in which all is wrong is refused in few words: a client's headers take no more.
func TestManyViolationsAreToldInFewWords(t *testing.T) {
	f := newFixture(t, memory(), enforce)
	events := make([]*reprievev1.Event, 1000)
	for i := range events {
		events[i] = &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: &reprievev1.Node{
			Name: fmt.Sprintf("n%d", i), Uid: fmt.Sprintf("u%d", i), CreationTime: &timestamppb.Timestamp{Nanos: 1e9},
		}}}
	}
	x := f.feed(f.ctx, hello("east"))
	x.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}})
	var err error
	for err == nil {
		_, err = x.stream.Recv()
	}
	st := wantError(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	if n := len(fieldsOf(st)); n != maxViolations || len(st.Message()) > 200 {
		t.Errorf("%d fields, message of %d bytes: %.300s", n, len(st.Message()), st.Message())
	}
}

// Every message comes by. To look through those that have times costs no more for many
// objects than for one: protobuf's view of the list is all that is allocated.
func TestWholeTimesAllocateNothingForAnObject(t *testing.T) {
	one, many := wholeTimesAllocations(t, 1), wholeTimesAllocations(t, 100)
	if one > 1 || many != one {
		t.Errorf("%v allocations for a batch of one, %v for one of a hundred, want 1", one, many)
	}
}

// wholeTimesAllocations are those for a batch of so many pods.
func wholeTimesAllocations(t *testing.T, pods int) float64 {
	batch := &reprievev1.Batch{}
	for range pods {
		batch.Events = append(batch.Events, &reprievev1.Event{Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{
			Name: "p", ScheduledTime: timestamppb.Now(), CreationTime: timestamppb.Now(),
			Tolerations: []*reprievev1.Toleration{{Key: "k"}}, OwnerReferences: []*reprievev1.OwnerReference{{Name: "o"}},
		}}})
	}
	m := &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: batch}}
	return testing.AllocsPerRun(100, func() {
		if err := wholeTimes(m); err != nil {
			t.Fatal(err)
		}
	})
}
