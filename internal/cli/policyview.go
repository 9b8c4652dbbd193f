package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// policyLines writes a policy one field a line, as `policy set` takes it. Fields
// that stored has were set by operators and are marked.
func policyLines(p, stored *reprievev1.ClusterPolicy) []string {
	var lines []string
	fields := p.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !p.ProtoReflect().Has(fd) {
			continue
		}
		line := string(fd.Name()) + "=" + policyValue(p, fd)
		if stored != nil && stored.ProtoReflect().Has(fd) {
			line += "   (set by an operator)"
		}
		lines = append(lines, line)
	}
	return lines
}

// folded breaks a long line of a policy after commas, for people to read.
func folded(lines []string) []string {
	const width, indent = 96, "    "
	var out []string
	for _, line := range lines {
		for len(line) > width {
			cut := strings.LastIndexByte(line[:width], ',')
			if cut < len(indent) {
				break
			}
			out = append(out, line[:cut+1])
			line = indent + line[cut+1:]
		}
		out = append(out, line)
	}
	return out
}

// policyValue is one field's value as people write it.
func policyValue(p *reprievev1.ClusterPolicy, fd protoreflect.FieldDescriptor) string {
	one := &reprievev1.ClusterPolicy{}
	one.ProtoReflect().Set(fd, p.ProtoReflect().Get(fd))
	switch {
	case fd.Enum() != nil:
		return enumShort(fd, one)
	case fd.Name() == "rate":
		return strconv.FormatFloat(p.GetRate().GetPerSecond(), 'g', -1, 64) + "/" + strconv.FormatUint(uint64(p.GetRate().GetBurst()), 10)
	case fd.Name() == "blast_radius":
		b := p.GetBlastRadius()
		return fmt.Sprintf("%g/%s/%d", b.GetMaxNodeShare(), b.GetWindow().AsDuration(), b.GetMinNodes())
	case fd.Name() == "node_health_figures":
		return figuresValue(p.GetNodeHealthFigures())
	case fd.IsList():
		var items []string
		list := p.ProtoReflect().Get(fd).List()
		for i := range list.Len() {
			items = append(items, list.Get(i).String())
		}
		return strings.Join(items, ",")
	}
	raw, err := encode(proto.Message(one))
	if err != nil {
		return "?"
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return "?"
	}
	return strings.Trim(string(m[string(fd.Name())]), `"`)
}

// figuresValue writes the figures that are there, as `policy set` takes them.
func figuresValue(f *reprievev1.NodeHealthFigures) string {
	var items []string
	m := f.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if !m.Has(fd) {
			continue
		}
		value := m.Get(fd).Interface()
		if d, ok := value.(protoreflect.Message); ok {
			value = d.Interface()
		}
		if d, ok := value.(*durationpb.Duration); ok {
			value = d.AsDuration()
		}
		items = append(items, fmt.Sprintf("%s=%v", fd.Name(), value))
	}
	return strings.Join(items, ",")
}

func enumShort(fd protoreflect.FieldDescriptor, p *reprievev1.ClusterPolicy) string {
	v := fd.Enum().Values().ByNumber(p.ProtoReflect().Get(fd).Enum())
	if v == nil {
		return "?"
	}
	return strings.TrimPrefix(string(v.Name()), enumPrefix(fd.Enum()))
}

// enumPrefix is the prefix of an enum's values, which its zero value shows.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
}
