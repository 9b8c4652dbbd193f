package server

import (
	"slices"
	"sync"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// wholeDurations checks that each Duration of a message is one: the rules of the
// contract compare it as a number, for which nanos of the wrong sign, or a second or
// more of them, are quietly added up. It answers as the rules do.
func wholeDurations(m proto.Message) error {
	found := brokenDurations(m.ProtoReflect(), nil)
	if len(found) == 0 {
		return nil
	}
	return &protovalidate.ValidationError{Violations: found}
}

func brokenDurations(m protoreflect.Message, path []*validate.FieldPathElement) (found []*protovalidate.Violation) {
	if d, ok := m.Interface().(*durationpb.Duration); ok {
		if err := d.CheckValid(); err != nil {
			found = append(found, &protovalidate.Violation{Proto: validate.Violation_builder{
				Field: validate.FieldPath_builder{Elements: slices.Clone(path)}.Build(), RuleId: proto.String("duration.valid"),
				Message: proto.String("must be a valid duration: " + err.Error()),
			}.Build()})
		}
		return found
	}
	if !hasDurations(m.Descriptor()) {
		return nil
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Message() == nil || fd.IsMap() {
			return true
		}
		if !fd.IsList() {
			found = append(found, brokenDurations(v.Message(), append(path, fieldElement(fd, nil)))...)
			return true
		}
		for i := range v.List().Len() {
			at := uint64(i)
			found = append(found, brokenDurations(v.List().Get(i).Message(), append(path, fieldElement(fd, &at)))...)
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

// durationHolders says of kinds of message, by full name, whether hasDurations.
var durationHolders sync.Map

// hasDurations reports whether messages of a kind may have a Duration in them. The
// feed's have none, and are not looked through.
func hasDurations(md protoreflect.MessageDescriptor) bool {
	if known, ok := durationHolders.Load(md.FullName()); ok {
		return known.(bool)
	}
	has := leadsToDuration(md, map[protoreflect.FullName]bool{})
	durationHolders.Store(md.FullName(), has)
	return has
}

func leadsToDuration(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if md.FullName() == "google.protobuf.Duration" {
		return true
	}
	if seen[md.FullName()] {
		return false
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		if of := md.Fields().Get(i).Message(); of != nil && leadsToDuration(of, seen) {
			return true
		}
	}
	return false
}
