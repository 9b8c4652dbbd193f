package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// policyFileMax bounds a policy file; the largest that the contract takes is far smaller.
const policyFileMax = 4 << 20

func readAll(in io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(in, policyFileMax+1))
	if err == nil && len(b) > policyFileMax {
		err = errors.New("the input is larger than 4 MiB: that is no policy")
	}
	return b, err
}

// policyField finds a policy field by its name in the contract or in JSON.
func policyField(name string) (protoreflect.FieldDescriptor, error) {
	fields := (&reprievev1.ClusterPolicy{}).ProtoReflect().Descriptor().Fields()
	fd := fields.ByName(protoreflect.Name(name))
	if fd == nil {
		fd = fields.ByJSONName(name)
	}
	if fd == nil {
		var names []string
		for i := range fields.Len() {
			names = append(names, string(fields.Get(i).Name()))
		}
		return nil, usagef("the policy has no field %q; it has %s", name, strings.Join(names, ", "))
	}
	return fd, nil
}

// setPolicyField sets one field of the request from a command line's FIELD=VALUE.
func setPolicyField(req *reprievev1.SetPolicyRequest, name, value string) error {
	fd, err := policyField(name)
	if err != nil {
		return err
	}
	if err := assign(req.GetPolicy(), fd, value); err != nil {
		return usagef("%s=%s: %v", name, value, err)
	}
	req.UpdateMask.Paths = append(req.UpdateMask.Paths, string(fd.Name()))
	return nil
}

func assign(p *reprievev1.ClusterPolicy, fd protoreflect.FieldDescriptor, value string) error {
	m := p.ProtoReflect()
	switch {
	case fd.Enum() != nil:
		name := enumPrefix(fd.Enum()) + strings.ToUpper(strings.ReplaceAll(value, "-", "_"))
		v := fd.Enum().Values().ByName(protoreflect.Name(name))
		if v == nil || v.Number() == 0 {
			return errors.New("unknown value; use one of " + strings.Join(enumWords(fd.Enum()), ", "))
		}
		m.Set(fd, protoreflect.ValueOfEnum(v.Number()))
	case fd.IsList():
		list := m.NewField(fd).List()
		for item := range strings.SplitSeq(value, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list.Append(protoreflect.ValueOfString(item))
			}
		}
		m.Set(fd, protoreflect.ValueOfList(list))
	case fd.Kind() == protoreflect.BoolKind:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("write true or false")
		}
		m.Set(fd, protoreflect.ValueOfBool(b))
	case fd.Message().FullName() == (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName():
		d, err := time.ParseDuration(value)
		if err != nil {
			return errors.New("write a duration such as 90s, 5m or 1h30m")
		}
		m.Set(fd, protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()))
	case fd.Name() == "blast_radius":
		return assignBlastRadius(p, value)
	case fd.Name() == "node_health_figures":
		return assignFigures(p, value)
	default:
		return assignRate(p, value)
	}
	return nil
}

// assignBlastRadius reads MAX_NODE_SHARE/WINDOW/MIN_NODES.
func assignBlastRadius(p *reprievev1.ClusterPolicy, value string) error {
	parts := strings.Split(value, "/")
	if len(parts) != 3 {
		return errBlastRadius
	}
	share, err := strconv.ParseFloat(parts[0], 64)
	window, err2 := time.ParseDuration(parts[1])
	nodes, err3 := strconv.ParseUint(parts[2], 10, 32)
	if err != nil || err2 != nil || err3 != nil {
		return errBlastRadius
	}
	least := uint32(nodes)
	p.BlastRadius = &reprievev1.BlastRadius{MaxNodeShare: &share, Window: durationpb.New(window), MinNodes: &least}
	return nil
}

var errBlastRadius = errors.New("write MAX_NODE_SHARE/WINDOW/MIN_NODES, such as 0.2/60s/10")

// assignFigures reads FIGURE=VALUE,FIGURE=VALUE: figures that are left out have
// their defaults.
func assignFigures(p *reprievev1.ClusterPolicy, value string) error {
	figures := &reprievev1.NodeHealthFigures{}
	m := figures.ProtoReflect()
	for item := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(item), "=")
		fd := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			var names []string
			for i := range m.Descriptor().Fields().Len() {
				names = append(names, string(m.Descriptor().Fields().Get(i).Name()))
			}
			return fmt.Errorf("write FIGURE=VALUE,..., such as grace_period=40s,taint_rate=0.2; %q is none of %s", name, strings.Join(names, ", "))
		}
		if m.Has(fd) {
			return fmt.Errorf("%s is there twice", name)
		}
		v, err := figureValue(fd, text)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", name, text, err)
		}
		m.Set(fd, v)
	}
	p.NodeHealthFigures = figures
	return nil
}

func figureValue(fd protoreflect.FieldDescriptor, text string) (protoreflect.Value, error) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return protoreflect.Value{}, errors.New("write true or false")
		}
		return protoreflect.ValueOfBool(b), nil
	case protoreflect.DoubleKind:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return protoreflect.Value{}, errors.New("write a number such as 0.1")
		}
		return protoreflect.ValueOfFloat64(f), nil
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return protoreflect.Value{}, errors.New("write a whole number")
		}
		return protoreflect.ValueOfUint32(uint32(n)), nil
	default:
		d, err := time.ParseDuration(text)
		if err != nil {
			return protoreflect.Value{}, errors.New("write a duration such as 50s")
		}
		return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), nil
	}
}

// assignRate reads ORDERS_A_SECOND/BURST.
func assignRate(p *reprievev1.ClusterPolicy, value string) error {
	per, burst, ok := strings.Cut(value, "/")
	n, err := strconv.ParseFloat(per, 64)
	b, err2 := strconv.ParseUint(burst, 10, 32)
	if !ok || err != nil || err2 != nil {
		return errors.New("write ORDERS_A_SECOND/BURST, such as 50/100")
	}
	p.Rate = &reprievev1.Rate{PerSecond: n, Burst: uint32(b)}
	return nil
}

func enumWords(e protoreflect.EnumDescriptor) []string {
	var out []string
	for i := range e.Values().Len() {
		if v := e.Values().Get(i); v.Number() != 0 {
			out = append(out, strings.ToLower(strings.TrimPrefix(string(v.Name()), enumPrefix(e))))
		}
	}
	return out
}

// parsePolicy reads a policy from YAML or JSON into p and returns the fields it
// names. Durations and enums may be written as on the command line.
func parsePolicy(b []byte, p *reprievev1.ClusterPolicy) ([]string, error) {
	var doc map[string]json.RawMessage
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("no YAML or JSON object: %w", err)
	}
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		raw := doc[name]
		fd, err := policyField(name)
		if err != nil {
			return nil, err
		}
		if err := assignRaw(p, fd, raw); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		paths = append(paths, string(fd.Name()))
	}
	return paths, nil
}

func assignRaw(p *reprievev1.ClusterPolicy, fd protoreflect.FieldDescriptor, raw json.RawMessage) error {
	var text string
	if !fd.IsList() && json.Unmarshal(raw, &text) == nil && !(fd.Enum() != nil && strings.HasPrefix(text, enumPrefix(fd.Enum()))) {
		return assign(p, fd, text)
	}
	one := &reprievev1.ClusterPolicy{}
	b, err := json.Marshal(map[string]json.RawMessage{string(fd.Name()): raw})
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(b, one); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	if !one.ProtoReflect().Has(fd) {
		// An empty list: the value to set is that there is none.
		p.ProtoReflect().Clear(fd)
		return nil
	}
	p.ProtoReflect().Set(fd, one.ProtoReflect().Get(fd))
	return nil
}
