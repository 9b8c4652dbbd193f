package server

import (
	"slices"
	"sync"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// wholeTimes checks that each Duration and Timestamp of a message is one: the rules
// of the contract compare them as numbers, for which nanos of the wrong sign, or a
// second or more of them, are quietly added up. It answers as the rules do.
func wholeTimes(m proto.Message) error {
	found := brokenTimes(m.ProtoReflect())
	if len(found) == 0 {
		return nil
	}
	violations := make([]*protovalidate.Violation, len(found))
	for i, b := range found {
		violations[i] = b.violation()
	}
	return &protovalidate.ValidationError{Violations: violations}
}

// brokenTime is a Duration or a Timestamp that is none, and the way to it, from its end.
type brokenTime struct {
	kind string
	err  error
	path []step
}

// step is a field on the way to another, and which of its elements if it is repeated.
type step struct {
	field protoreflect.FieldDescriptor
	index int
}

// brokenTimes looks through a message. Every message of every stream comes by, so
// that it allocates nothing for an object while all is well.
func brokenTimes(m protoreflect.Message) (found []brokenTime) {
	switch t := m.Interface().(type) {
	case *durationpb.Duration:
		if err := t.CheckValid(); err != nil {
			return []brokenTime{{kind: "duration", err: err}}
		}
		return nil
	case *timestamppb.Timestamp:
		if err := t.CheckValid(); err != nil {
			return []brokenTime{{kind: "timestamp", err: err}}
		}
		return nil
	}
	through := func(sub protoreflect.Message, by step) {
		for _, b := range brokenTimes(sub) {
			b.path = append(b.path, by)
			found = append(found, b)
		}
	}
	for _, fd := range timeFields(m.Descriptor()) {
		switch {
		case !m.Has(fd):
		case fd.IsList():
			list := m.Get(fd).List()
			for i := range list.Len() {
				through(list.Get(i).Message(), step{fd, i})
			}
		default:
			through(m.Get(fd).Message(), step{fd, 0})
		}
	}
	return found
}

func (b *brokenTime) violation() *protovalidate.Violation {
	elements := make([]*validate.FieldPathElement, 0, len(b.path))
	for _, s := range slices.Backward(b.path) {
		e := validate.FieldPathElement_builder{FieldNumber: proto.Int32(int32(s.field.Number())), FieldName: proto.String(string(s.field.Name()))}
		if s.field.IsList() {
			e.Index = proto.Uint64(uint64(s.index))
		}
		elements = append(elements, e.Build())
	}
	return &protovalidate.Violation{Proto: validate.Violation_builder{
		Field: validate.FieldPath_builder{Elements: elements}.Build(), RuleId: proto.String(b.kind + ".valid"),
		Message: proto.String("must be a valid " + b.kind + ": " + b.err.Error()),
	}.Build()}
}

// knownTimeFields are the timeFields of the kinds of messages seen so far, all of the contract.
var knownTimeFields sync.Map // protoreflect.MessageDescriptor -> []protoreflect.FieldDescriptor

// timeFields are the fields of a kind of message that are, or may have in them, a
// Duration or a Timestamp. The others are not looked through, nor are maps.
func timeFields(md protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if known, ok := knownTimeFields.Load(md); ok {
		return known.([]protoreflect.FieldDescriptor)
	}
	var list []protoreflect.FieldDescriptor
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if of := fd.Message(); of != nil && !fd.IsMap() && leadsToTime(of, map[protoreflect.FullName]bool{}) {
			list = append(list, fd)
		}
	}
	knownTimeFields.Store(md, list)
	return list
}

func isTime(md protoreflect.MessageDescriptor) bool {
	return md.FullName() == "google.protobuf.Duration" || md.FullName() == "google.protobuf.Timestamp"
}

func leadsToTime(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if isTime(md) {
		return true
	}
	if seen[md.FullName()] {
		return false
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		if of := md.Fields().Get(i).Message(); of != nil && leadsToTime(of, seen) {
			return true
		}
	}
	return false
}
