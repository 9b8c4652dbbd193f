package client

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// Fit makes the event of a node, a pod or leases keep the contract's bounds, which an
// API server does not know: it takes pods with thousands of tolerations, owners or
// labels, conditions and phases of any length, and leases renewed in the year 0. The service would refuse the
// whole feed for one of them. What is cut may delay an eviction, never hasten it.
//
// It changes the event in place and returns the fields that were cut, such as
// "Pod.tolerations". It reports false if the event cannot be told at all, because
// it lacks or exceeds what names the object: leave it out then.
func Fit(e *reprievev1.Event) (cut []string, ok bool) {
	var f fitter
	switch o := e.GetObject().(type) {
	case *reprievev1.Event_Node:
		ok = f.message(o.Node.ProtoReflect())
	case *reprievev1.Event_Pod:
		ok = f.message(o.Pod.ProtoReflect())
	case *reprievev1.Event_LeaseRenewals:
		b, times := renewTimes(), o.LeaseRenewals.GetRenewTimes()
		for i, ts := range times {
			if !b.holds(ts) {
				times[i], f.cut = b.nearest(ts), append(f.cut, b.name)
			}
		}
		ok = true
	default:
		return nil, true
	}
	slices.Sort(f.cut)
	return slices.Compact(f.cut), ok
}

// bound is what the contract allows a field. Zero is no bound.
type bound struct {
	field            protoreflect.FieldDescriptor
	name             string // as it is told, such as Pod.labels
	min, max         int    // characters of a text, or elements
	keyMax, valueMax int
	from, to         int64 // seconds of an instant
	trim             bool
}

// trimmed are texts that lose their end. Any other that is too long makes its
// object or list element another one, so that goes as a whole.
var trimmed = []string{"Pod.phase", "Pod.priority_class_name", "Pod.disruption_reason", "Pod.resource_version", "Node.resource_version", "NodeCondition.status", "NodeCondition.reason"}

// bounds are read from the contract, so that they are in one place.
var bounds = sync.OnceValue(func() map[protoreflect.FullName][]bound {
	all := map[protoreflect.FullName][]bound{}
	for _, m := range []proto.Message{
		(*reprievev1.Node)(nil), (*reprievev1.Pod)(nil), (*reprievev1.Taint)(nil), (*reprievev1.Toleration)(nil),
		(*reprievev1.NodeCondition)(nil), (*reprievev1.OwnerReference)(nil),
	} {
		d := m.ProtoReflect().Descriptor()
		for i := range d.Fields().Len() {
			if b, ok := boundOf(d.Fields().Get(i)); ok {
				all[d.FullName()] = append(all[d.FullName()], b)
			}
		}
	}
	return all
})

func boundOf(fd protoreflect.FieldDescriptor) (bound, bool) {
	rules, ok := proto.GetExtension(fd.Options(), validate.E_Field).(*validate.FieldRules)
	if !ok || rules == nil {
		return bound{}, false
	}
	b := bound{field: fd, name: string(fd.Parent().Name()) + "." + string(fd.Name())}
	b.trim = slices.Contains(trimmed, b.name)
	switch {
	case fd.IsMap():
		m := rules.GetMap()
		b.max, b.keyMax, b.valueMax = int(m.GetMaxPairs()), int(m.GetKeys().GetString().GetMaxLen()), int(m.GetValues().GetString().GetMaxLen())
	case fd.IsList():
		b.max = int(rules.GetRepeated().GetMaxItems())
	case fd.Kind() == protoreflect.StringKind:
		b.min, b.max = int(rules.GetString().GetMinLen()), int(rules.GetString().GetMaxLen())
	default:
		b.from, b.to = rules.GetTimestamp().GetGte().GetSeconds(), rules.GetTimestamp().GetLte().GetSeconds()
	}
	return b, true
}

// fitter notes what it cuts.
type fitter struct{ cut []string }

// message makes one object or list element fit and reports whether that was possible.
func (f *fitter) message(m protoreflect.Message) bool {
	for _, b := range bounds()[m.Descriptor().FullName()] {
		ok := true
		switch {
		case b.field.IsMap():
			f.pairs(m, &b)
		case b.field.IsList():
			f.elements(m, &b)
		case b.field.Kind() == protoreflect.StringKind:
			ok = f.text(m, &b)
		default:
			f.instant(m, &b)
		}
		if !ok {
			f.cut = append(f.cut, b.name)
			return false
		}
	}
	return true
}

func (f *fitter) text(m protoreflect.Message, b *bound) bool {
	s := m.Get(b.field).String()
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
		m.Set(b.field, protoreflect.ValueOfString(s))
		f.cut = append(f.cut, b.name)
	}
	if fits(s, b.max) {
		return s != "" || b.min == 0
	}
	if b.trim {
		m.Set(b.field, protoreflect.ValueOfString(string([]rune(s)[:b.max])))
		f.cut = append(f.cut, b.name)
	}
	return b.trim
}

// fits reports whether a text has no more characters than that. Bytes are the
// quick upper bound.
func fits(s string, limit int) bool { return len(s) <= limit || utf8.RuneCountInString(s) <= limit }

// instant moves a time into the years that the contract knows. It stays present:
// that a pod has a deletion time is what counts of it.
func (f *fitter) instant(m protoreflect.Message, b *bound) {
	if !m.Has(b.field) {
		return
	}
	ts, ok := m.Get(b.field).Message().Interface().(*timestamppb.Timestamp)
	if !ok || b.holds(ts) {
		return
	}
	m.Set(b.field, protoreflect.ValueOfMessage(b.nearest(ts).ProtoReflect()))
	f.cut = append(f.cut, b.name)
}

// holds reports whether an instant is one that the contract knows.
func (b *bound) holds(ts *timestamppb.Timestamp) bool {
	return ts.IsValid() && ts.GetSeconds() >= b.from && (ts.GetSeconds() < b.to || ts.GetSeconds() == b.to && ts.GetNanos() == 0)
}

func (b *bound) nearest(ts *timestamppb.Timestamp) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: min(max(ts.GetSeconds(), b.from), b.to)}
}

// renewTimes is the bound of the times that leases were renewed.
var renewTimes = sync.OnceValue(func() *bound {
	fd := (*reprievev1.NodeLeaseRenewals)(nil).ProtoReflect().Descriptor().Fields().ByName("renew_times")
	rules, _ := proto.GetExtension(fd.Options(), validate.E_Field).(*validate.FieldRules)
	each := rules.GetRepeated().GetItems().GetTimestamp()
	return &bound{name: "NodeLeaseRenewals.renew_times", from: each.GetGte().GetSeconds(), to: each.GetLte().GetSeconds()}
})

// pairs keeps the first labels in the order of their keys. The map may be
// another's, so it is replaced.
func (f *fitter) pairs(m protoreflect.Message, b *bound) {
	pairs, bad := m.Get(b.field).Map(), false
	var keys []string
	pairs.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if !utf8.ValidString(k.String()) || !utf8.ValidString(v.String()) || !fits(k.String(), b.keyMax) || !fits(v.String(), b.valueMax) {
			bad = true
			return true
		}
		keys = append(keys, k.String())
		return true
	})
	if !bad && len(keys) <= b.max {
		return
	}
	slices.Sort(keys)
	kept := m.NewField(b.field)
	for _, k := range keys[:min(len(keys), b.max)] {
		key := protoreflect.ValueOfString(k).MapKey()
		kept.Map().Set(key, pairs.Get(key))
	}
	m.Set(b.field, kept)
	f.cut = append(f.cut, b.name)
}

// elements makes each element fit, or replaces it, and keeps those that matter most.
func (f *fitter) elements(m protoreflect.Message, b *bound) {
	list := m.Get(b.field).List()
	all := make([]protoreflect.Message, 0, list.Len())
	before := len(f.cut)
	for i := range list.Len() {
		e := list.Get(i).Message()
		if f.message(e) {
			all = append(all, e)
		} else if _, ok := e.Interface().(*reprievev1.Toleration); ok {
			// What it matches cannot be told, so it matches everything.
			all = append(all, toleratesAll().ProtoReflect())
		}
	}
	if len(f.cut) == before && len(all) <= b.max {
		return
	}
	f.cut = append(f.cut, b.name)
	if len(all) > b.max {
		all = selected(all, b.max)
	}
	kept := m.NewField(b.field)
	for _, e := range all {
		kept.List().Append(protoreflect.ValueOfMessage(e))
	}
	m.Set(b.field, kept)
}

func toleratesAll() *reprievev1.Toleration { return &reprievev1.Toleration{Operator: "Exists"} }

// noExecute is the one effect that evicts.
const noExecute = "NoExecute"

// selected are as many elements as may be, in their order but for the most
// important, which go first where order has no meaning.
func selected(all []protoreflect.Message, limit int) []protoreflect.Message {
	if _, ok := all[0].Interface().(*reprievev1.Toleration); ok {
		return selectedTolerations(all, limit)
	}
	slices.SortStableFunc(all, func(a, b protoreflect.Message) int { return rank(a) - rank(b) })
	return all[:limit]
}

// rank is lower for what is rather kept.
func rank(m protoreflect.Message) int {
	first := false
	switch e := m.Interface().(type) {
	case *reprievev1.Taint:
		first = e.GetEffect() == noExecute
	case *reprievev1.OwnerReference:
		first = e.GetController()
	case *reprievev1.NodeCondition:
		first = e.GetType() == "Ready"
	}
	if first {
		return 0
	}
	return 1
}

// selectedTolerations leaves out those that can decide nothing: of another
// effect, or after one that matches the same. If there are still too many, one
// that matches everything stands for the last.
func selectedTolerations(all []protoreflect.Message, limit int) []protoreflect.Message {
	type match struct{ key, operator, value, effect string }
	seen := map[match]bool{}
	var kept []protoreflect.Message
	for _, m := range all {
		t, ok := m.Interface().(*reprievev1.Toleration)
		if !ok || (t.GetEffect() != "" && t.GetEffect() != noExecute) {
			continue
		}
		what := match{t.GetKey(), t.GetOperator(), t.GetValue(), t.GetEffect()}
		if !seen[what] {
			seen[what] = true
			kept = append(kept, m)
		}
	}
	if len(kept) > limit {
		kept = append(kept[:limit-1], toleratesAll().ProtoReflect())
	}
	return kept
}
