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
	found := brokenTimes(m.ProtoReflect(), nil)
	if len(found) == 0 {
		return nil
	}
	return &protovalidate.ValidationError{Violations: found}
}

func brokenTimes(m protoreflect.Message, path []*validate.FieldPathElement) (found []*protovalidate.Violation) {
	var kind string
	var err error
	switch t := m.Interface().(type) {
	case *durationpb.Duration:
		kind, err = "duration", t.CheckValid()
	case *timestamppb.Timestamp:
		kind, err = "timestamp", t.CheckValid()
	}
	if err != nil {
		return append(found, &protovalidate.Violation{Proto: validate.Violation_builder{
			Field: validate.FieldPath_builder{Elements: slices.Clone(path)}.Build(), RuleId: proto.String(kind + ".valid"),
			Message: proto.String("must be a valid " + kind + ": " + err.Error()),
		}.Build()})
	}
	if kind != "" || !hasTimes(m.Descriptor()) {
		return nil
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() == nil || fd.IsMap() {
			return true
		}
		if !fd.IsList() {
			found = append(found, brokenTimes(v.Message(), append(path, fieldElement(fd, nil)))...)
			return true
		}
		for i := range v.List().Len() {
			at := uint64(i)
			found = append(found, brokenTimes(v.List().Get(i).Message(), append(path, fieldElement(fd, &at)))...)
		}
		return true
	})
	return found
}

// fieldElement is a field as a step of a path, and which of its elements if it is repeated.
func fieldElement(fd protoreflect.FieldDescriptor, index *uint64) *validate.FieldPathElement {
	e := validate.FieldPathElement_builder{FieldNumber: proto.Int32(int32(fd.Number())), FieldName: proto.String(string(fd.Name()))}
	if index != nil {
		e.Index = index
	}
	return e.Build()
}

// timeHolders says of kinds of message, by full name, whether hasTimes.
var timeHolders sync.Map

// hasTimes reports whether messages of a kind may have a Duration or a Timestamp in
// them. The others are not looked through.
func hasTimes(md protoreflect.MessageDescriptor) bool {
	if known, ok := timeHolders.Load(md.FullName()); ok {
		return known.(bool)
	}
	has := leadsToTime(md, map[protoreflect.FullName]bool{})
	timeHolders.Store(md.FullName(), has)
	return has
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
