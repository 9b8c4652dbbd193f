package proto_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// files are those of the public API.
var files = []protoreflect.FileDescriptor{
	reprievev1.File_reprieve_v1_objects_proto, reprievev1.File_reprieve_v1_types_proto, reprievev1.File_reprieve_v1_feed_proto,
	reprievev1.File_reprieve_v1_eviction_proto, reprievev1.File_reprieve_v1_query_proto, reprievev1.File_reprieve_v1_admin_proto,
}

// free are fields of requests in which every value has a meaning.
var free = map[protoreflect.FullName]string{
	"reprieve.v1.FeedRequest.sequence":                 "counts without end; the lower bound is probed by TestMessageRules",
	"reprieve.v1.FeedHello.feeder_epoch":               "any number of leader elections",
	"reprieve.v1.Toleration.toleration_seconds":        "negative and huge values have a meaning in Kubernetes",
	"reprieve.v1.Pod.priority":                         "Kubernetes gives the whole range a meaning",
	"reprieve.v1.Pod.termination_grace_period_seconds": "carried, never computed with",
	"reprieve.v1.SetPolicyRequest.update_mask":         "checked against the fields of ClusterPolicy where it is applied",
}

// methods calls f for every RPC of the API.
func methods(f func(protoreflect.MethodDescriptor)) {
	for _, file := range files {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				f(s.Methods().Get(j))
			}
		}
	}
}

// requestMessages are all messages that a client can send, nested ones too.
func requestMessages() []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		if md.ParentFile().Package() != "reprieve.v1" || seen[md.FullName()] {
			return
		}
		seen[md.FullName()] = true
		if !md.IsMapEntry() {
			out = append(out, md)
		}
		for i := range md.Fields().Len() {
			if sub := md.Fields().Get(i).Message(); sub != nil {
				visit(sub)
			}
		}
	}
	methods(func(m protoreflect.MethodDescriptor) { visit(m.Input()) })
	return out
}

func allMessages() []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	var visit func(protoreflect.MessageDescriptors)
	visit = func(mds protoreflect.MessageDescriptors) {
		for i := range mds.Len() {
			out = append(out, mds.Get(i))
			visit(mds.Get(i).Messages())
		}
	}
	for _, file := range files {
		visit(file.Messages())
	}
	return slices.DeleteFunc(out, protoreflect.MessageDescriptor.IsMapEntry)
}

// newValidator has the rules of all messages compiled and compiles no more.
func newValidator(t *testing.T) protovalidate.Validator {
	t.Helper()
	v, err := protovalidate.New(protovalidate.WithMessageDescriptors(allMessages()...), protovalidate.WithDisableLazy())
	if err != nil {
		t.Fatalf("compile the rules of all messages: %v", err)
	}
	return v
}

// violations validates m; anything but a list of violations fails the test.
func violations(t *testing.T, v protovalidate.Validator, m proto.Message) []*protovalidate.Violation {
	t.Helper()
	err := v.Validate(m)
	if err == nil {
		return nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		t.Fatalf("%s: not a rule that can be checked: %v", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return invalid.Violations
}

func TestRulesCompile(t *testing.T) {
	v := newValidator(t)
	for _, md := range allMessages() {
		violations(t, v, dynamicpb.NewMessage(md))
	}
}

// probe is a value of one field and whether the rules must refuse it.
type probe struct {
	name   string
	refuse bool
	set    func(protoreflect.Message, protoreflect.FieldDescriptor)
}

// TestRequestFieldsAreBounded walks every field of every request: each has a
// bound, the value at the bound is taken, the one beyond it is refused in the
// field's name.
func TestRequestFieldsAreBounded(t *testing.T) {
	v := newValidator(t)
	unused := map[protoreflect.FullName]bool{}
	for name := range free {
		unused[name] = true
	}
	for _, md := range requestMessages() {
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			if free[fd.FullName()] != "" {
				delete(unused, fd.FullName())
				continue
			}
			t.Run(string(fd.FullName()), func(t *testing.T) { checkField(t, v, fd) })
		}
	}
	for name := range unused {
		t.Errorf("%s is listed as free and is not a field of a request", name)
	}
}

func checkField(t *testing.T, v protovalidate.Validator, fd protoreflect.FieldDescriptor) {
	rules, err := protovalidate.ResolveFieldRules(fd)
	if err != nil {
		t.Fatal(err)
	}
	probes, err := probesOf(fd, rules)
	if err != nil {
		t.Fatalf("unbounded: %v", err)
	}
	for _, p := range probes {
		m := dynamicpb.NewMessage(fd.ContainingMessage())
		p.set(m, fd)
		refused := slices.ContainsFunc(violations(t, v, m), func(x *protovalidate.Violation) bool {
			path := x.Proto.GetField().GetElements()
			return len(path) > 0 && path[0].GetFieldName() == string(fd.Name())
		})
		if refused != p.refuse {
			t.Errorf("%s: refused is %t, want %t", p.name, refused, p.refuse)
		}
	}
}

func probesOf(fd protoreflect.FieldDescriptor, rules *validate.FieldRules) ([]probe, error) {
	switch {
	case fd.IsMap():
		return mapProbes(fd, rules.GetMap())
	case fd.IsList():
		return listProbes(fd, rules.GetRepeated())
	case rules.GetRequired():
		ps, err := scalarProbes(fd, rules)
		return append(ps, probe{"absent", true, func(protoreflect.Message, protoreflect.FieldDescriptor) {}}), err
	}
	return scalarProbes(fd, rules)
}

func scalarProbes(fd protoreflect.FieldDescriptor, rules *validate.FieldRules) ([]probe, error) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return nil, nil
	case protoreflect.StringKind:
		return stringProbes(rules.GetString())
	case protoreflect.EnumKind:
		return enumProbes(rules.GetEnum())
	case protoreflect.Uint32Kind:
		return uint32Probes(rules.GetUint32())
	case protoreflect.DoubleKind:
		return doubleProbes(rules.GetDouble())
	case protoreflect.MessageKind:
		return messageProbes(fd, rules)
	}
	return nil, fmt.Errorf("no way to bound kind %s is known to this test", fd.Kind())
}

// at is a probe of a plain value.
func at(name string, refuse bool, value any) probe {
	return probe{name, refuse, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
		m.Set(fd, protoreflect.ValueOf(value))
	}}
}

func stringProbes(r *validate.StringRules) ([]probe, error) {
	if !r.HasMaxLen() {
		return nil, errors.New("no max_len")
	}
	n := int(r.GetMaxLen())
	ps := []probe{at("longest", false, longest(n)), at("too long", true, longest(n+1))}
	if r.GetMinLen() > 0 {
		ps = append(ps, at("too short", true, strings.Repeat("a", int(r.GetMinLen())-1)))
	}
	if r.HasPattern() {
		ps = append(ps, at("against the pattern", true, "A_b"))
	}
	return ps, nil
}

// longest is a string of n bytes that every rule of its length takes: one as long
// as a qualified name of Kubernetes has a prefix and a name of 63.
func longest(n int) string {
	const prefix, name = 253, 63
	if n < prefix+1+name {
		return strings.Repeat("a", n)
	}
	return strings.Repeat("a", n-1-name) + "/" + strings.Repeat("a", name)
}

func enumProbes(r *validate.EnumRules) ([]probe, error) {
	if !r.GetDefinedOnly() || !slices.Contains(r.GetNotIn(), 0) {
		return nil, errors.New("an enum needs defined_only and not_in 0")
	}
	return []probe{
		at("unspecified", true, protoreflect.EnumNumber(0)), at("undefined", true, protoreflect.EnumNumber(9999)),
		at("the first", false, protoreflect.EnumNumber(1)),
	}, nil
}

func uint32Probes(r *validate.UInt32Rules) ([]probe, error) {
	if !r.HasLte() {
		return nil, errors.New("no lte")
	}
	ps := []probe{at("most", false, r.GetLte()), at("too much", true, r.GetLte()+1)}
	if r.GetGte() > 0 {
		ps = append(ps, at("too little", true, r.GetGte()-1))
	}
	return ps, nil
}

func doubleProbes(r *validate.DoubleRules) ([]probe, error) {
	if !r.HasLte() || !r.HasGt() && !r.HasGte() || !r.GetFinite() {
		return nil, errors.New("a double needs gt or gte, lte and finite")
	}
	tooLittle := r.GetGt()
	if r.HasGte() {
		tooLittle = math.Nextafter(r.GetGte(), math.Inf(-1))
	}
	return []probe{
		at("most", false, r.GetLte()), at("too much", true, r.GetLte()*2), at("too little", true, tooLittle),
		at("not a number", true, math.NaN()), at("infinite", true, math.Inf(1)),
	}, nil
}

func messageProbes(fd protoreflect.FieldDescriptor, rules *validate.FieldRules) ([]probe, error) {
	message := func(name string, refuse bool, m proto.Message) probe {
		return probe{name, refuse, func(to protoreflect.Message, fd protoreflect.FieldDescriptor) {
			b, err := proto.Marshal(m)
			if err != nil {
				panic(err)
			}
			into := to.Mutable(fd).Message().Interface()
			if err := proto.Unmarshal(b, into); err != nil {
				panic(err)
			}
		}}
	}
	switch fd.Message().FullName() {
	case "google.protobuf.Duration":
		r := rules.GetDuration()
		if !r.HasGte() || !r.HasLte() {
			return nil, errors.New("a duration needs gte and lte")
		}
		return []probe{
			message("longest", false, r.GetLte()), message("too long", true, &durationpb.Duration{Seconds: r.GetLte().GetSeconds() + 1}),
			message("shortest", false, r.GetGte()), message("too short", true, &durationpb.Duration{Seconds: r.GetGte().GetSeconds() - 1}),
		}, nil
	case "google.protobuf.Timestamp":
		r := rules.GetTimestamp()
		if !r.HasGte() || !r.HasLte() {
			return nil, errors.New("a timestamp needs gte and lte")
		}
		return []probe{
			message("last", false, r.GetLte()), message("too late", true, &timestamppb.Timestamp{Seconds: r.GetLte().GetSeconds() + 1}),
			message("first", false, r.GetGte()), message("too early", true, &timestamppb.Timestamp{Seconds: r.GetGte().GetSeconds() - 1}),
			message("beyond all calendars", true, &timestamppb.Timestamp{Seconds: math.MaxInt64}),
			message("before all calendars", true, &timestamppb.Timestamp{Seconds: math.MinInt64}),
		}, nil
	}
	if fd.Message().ParentFile().Package() == "reprieve.v1" {
		return nil, nil // Its own fields are walked.
	}
	return nil, fmt.Errorf("no way to bound %s is known to this test", fd.Message().FullName())
}

// listProbes are for the number of items, and for one item what a single value has.
func listProbes(fd protoreflect.FieldDescriptor, r *validate.RepeatedRules) ([]probe, error) {
	if !r.HasMaxItems() {
		return nil, errors.New("no max_items")
	}
	tooMany := probe{"too many", true, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
		list := m.Mutable(fd).List()
		for range r.GetMaxItems() + 1 {
			list.Append(list.NewElement())
		}
	}}
	ps := []probe{tooMany}
	if r.GetMinItems() > 0 {
		ps = append(ps, probe{"none", true, func(protoreflect.Message, protoreflect.FieldDescriptor) {}})
	}
	if fd.Kind() == protoreflect.MessageKind {
		return ps, nil
	}
	items, err := scalarProbes(fd, r.GetItems())
	if err != nil {
		return nil, fmt.Errorf("items: %w", err)
	}
	for _, p := range items {
		ps = append(ps, probe{"item " + p.name, p.refuse, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			m.Mutable(fd).List().Append(valueOf(p, fd))
		}})
	}
	return ps, nil
}

// valueOf is the value that a probe sets, read back from a field of one message.
func valueOf(p probe, fd protoreflect.FieldDescriptor) protoreflect.Value {
	var got protoreflect.Value
	p.set(capture{value: &got}, fd)
	return got
}

// capture is a message that only remembers what is set.
type capture struct {
	protoreflect.Message
	value *protoreflect.Value
}

func (c capture) Set(_ protoreflect.FieldDescriptor, v protoreflect.Value) { *c.value = v }

func mapProbes(_ protoreflect.FieldDescriptor, r *validate.MapRules) ([]probe, error) {
	keys, values := r.GetKeys().GetString(), r.GetValues().GetString()
	if !r.HasMaxPairs() || !keys.HasMaxLen() || !values.HasMaxLen() {
		return nil, errors.New("a map of strings needs max_pairs and the max_len of keys and values")
	}
	pairs := func(name string, refuse bool, n int, key, value string) probe {
		return probe{name, refuse, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			for i := range n {
				k := fmt.Sprintf("%d%s", i, key)
				m.Mutable(fd).Map().Set(protoreflect.ValueOf(k).MapKey(), protoreflect.ValueOf(value))
			}
		}}
	}
	most, key, value := int(r.GetMaxPairs()), int(keys.GetMaxLen()), int(values.GetMaxLen())
	return []probe{
		pairs("most", false, most, "", ""), pairs("too many", true, most+1, "", ""),
		pairs("longest", false, 1, strings.Repeat("k", key-1), strings.Repeat("v", value)),
		pairs("key too long", true, 1, strings.Repeat("k", key), ""),
		pairs("value too long", true, 1, "", strings.Repeat("v", value+1)),
	}, nil
}

// TestMessageRules checks the rules that look at more than one field, and that
// an event of a kind this service does not know is no error.
func TestMessageRules(t *testing.T) {
	v := newValidator(t)
	end := &timestamppb.Timestamp{Seconds: 1}
	for _, c := range []struct {
		name   string
		m      proto.Message
		ruleID string
	}{
		{"a pod by uid", &reprievev1.PodRef{Uid: "u"}, ""},
		{"a pod by name", &reprievev1.PodRef{Namespace: "ns", Name: "p"}, ""},
		{"a pod by half a name", &reprievev1.PodRef{Name: "p"}, "pod_ref.named"},
		{"a pod by nothing", &reprievev1.PodRef{}, "pod_ref.named"},
		{"a pause of a cluster", &reprievev1.PauseEvictionsRequest{Cluster: "c", Reason: "r", EndTime: end}, ""},
		{"a pause of two scopes", &reprievev1.PauseEvictionsRequest{Cluster: "c", Reason: "r", Node: "n", Namespace: "ns"}, "pause.scope"},
		{"a confirmed end", &reprievev1.ForgetClusterRequest{Cluster: "c", Confirm: "c"}, ""},
		{"an end not confirmed", &reprievev1.ForgetClusterRequest{Cluster: "c"}, "forget.confirm"},
		{"a watch from a revision", &reprievev1.WatchEvictionsRequest{ResumeRevision: "1"}, ""},
		{"a watch with a list", &reprievev1.WatchEvictionsRequest{InitialList: true}, ""},
		{"a watch from two places", &reprievev1.WatchEvictionsRequest{InitialList: true, ResumeRevision: "1"}, "watch.start"},
		{"a feed message", &reprievev1.FeedRequest{Sequence: 1, Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}, ""},
		{"a feed message without number", &reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}, "uint64.gte"},
		{"a feed message without content", &reprievev1.FeedRequest{Sequence: 1}, "required"},
		{"an executor message without content", &reprievev1.EvictRequest{}, "required"},
		{"an executor for all", &reprievev1.ExecutorHello{ExecutorId: "e", Clusters: []string{"*"}, Capacity: 1}, ""},
		{"an executor that says it did not answer", &reprievev1.Result{Token: "t", Outcome: reprievev1.Outcome_OUTCOME_NO_ANSWER}, "enum.not_in"},
		{"an event of an unknown kind", &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT}, ""},
		{"an event of no type", &reprievev1.Event{}, "enum.not_in"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ids []string
			for _, x := range violations(t, v, c.m) {
				ids = append(ids, x.Proto.GetRuleId())
			}
			if c.ruleID == "" && len(ids) > 0 || c.ruleID != "" && !slices.Contains(ids, c.ruleID) {
				t.Errorf("violated are %q, want %q", ids, c.ruleID)
			}
		})
	}
}

// TestViolationNamesTheField checks that bad content deep in a batch can be
// answered with the path of its field.
func TestViolationNamesTheField(t *testing.T) {
	got := violations(t, newValidator(t), &reprievev1.FeedRequest{Sequence: 1, Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: []*reprievev1.Event{
		{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: &reprievev1.Node{Name: "n", Uid: "u"}}},
		{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{Namespace: "ns", Name: "p"}}},
	}}}})
	if len(got) != 1 || protovalidate.FieldPathString(got[0].Proto.GetField()) != "batch.events[1].pod.uid" {
		t.Errorf("got %v, want batch.events[1].pod.uid alone", got)
	}
}

var (
	rpcLine  = regexp.MustCompile(`^\s*rpc (\w+)\(`)
	allCaps  = regexp.MustCompile(`\b[A-Z][A-Z_]{3,}\b`)
	canon    = []string{"CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	everyRPC = []string{"UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE"}
)

// TestRPCCommentsNameCodesAndRetry reads the sources, since generated code has no comments.
func TestRPCCommentsNameCodesAndRetry(t *testing.T) {
	comments := rpcComments(t)
	methods(func(m protoreflect.MethodDescriptor) {
		t.Run(string(m.FullName()), func(t *testing.T) {
			comment := comments[string(m.Name())]
			_, rest, ok := strings.Cut(comment, "\nCodes: ")
			if !ok {
				t.Fatalf("no paragraph that begins with Codes: in %q", comment)
			}
			codes, retry, ok := strings.Cut(rest, "\nRetry: ")
			if !ok || strings.TrimSpace(retry) == "" {
				t.Fatalf("no paragraph that begins with Retry: in %q", comment)
			}
			named := allCaps.FindAllString(codes, -1)
			for _, code := range everyRPC {
				if !slices.Contains(named, code) {
					t.Errorf("Codes: does not name %s, which every call can end with", code)
				}
			}
			for _, code := range named {
				if code != "RBAC" && !slices.Contains(canon, code) {
					t.Errorf("Codes: names %s, which is no code", code)
				}
			}
		})
	})
}

// rpcComments has the comment above each rpc in the sources, by the RPC's name.
func rpcComments(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("reprieve/v1/*.proto")
	if err != nil || len(paths) != len(files) {
		t.Fatalf("found %d sources, want %d: %v", len(paths), len(files), err)
	}
	out := map[string]string{}
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		comment := ""
		for line := range strings.Lines(string(src)) {
			text := strings.TrimSpace(line)
			if m := rpcLine.FindStringSubmatch(line); m != nil {
				out[m[1]] = comment
			}
			if rest, ok := strings.CutPrefix(text, "//"); ok {
				comment += "\n" + strings.TrimPrefix(rest, " ")
			} else {
				comment = ""
			}
		}
	}
	return out
}
