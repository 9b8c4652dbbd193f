package cli

import (
	"bytes"
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// encode is m as one line of JSON, with the contract's field names. protojson
// varies its spaces from build to build on purpose; compacting undoes that.
func encode(m proto.Message) (json.RawMessage, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Compact(&out, b)
	return out.Bytes(), err
}

// printMessage prints one message as -o asks (json or yaml).
func (a *app) printMessage(m proto.Message) error {
	raw, err := encode(m)
	if err != nil {
		return err
	}
	return a.printValue(raw)
}

// printItems prints a list as {"items": [...]}.
func printItems[T proto.Message](a *app, items []T) error {
	list := make([]json.RawMessage, 0, len(items))
	for _, m := range items {
		raw, err := encode(m)
		if err != nil {
			return err
		}
		list = append(list, raw)
	}
	return a.printValue(map[string]any{"items": list})
}

// printValue prints v as indented JSON, or as YAML.
func (a *app) printValue(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if a.flags.output == outputYAML {
		if b, err = yaml.JSONToYAML(b); err != nil {
			return err
		}
		_, err = a.Out.Write(b)
		return err
	}
	_, err = a.Out.Write(append(b, '\n'))
	return err
}

// printLine prints one message of a stream: a line of JSON, or a YAML document.
func (a *app) printLine(m proto.Message) error {
	raw, err := encode(m)
	if err != nil {
		return err
	}
	if a.flags.output == outputYAML {
		y, err := yaml.JSONToYAML(raw)
		if err != nil {
			return err
		}
		_, err = a.Out.Write(append([]byte("---\n"), y...))
		return err
	}
	_, err = a.Out.Write(append(raw, '\n'))
	return err
}

// cleanText makes text that came from elsewhere safe for a terminal and one line long.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < 0x20 || (r >= 0x7f && r < 0xa0):
			return '?'
		default:
			return r
		}
	}, strings.ToValidUTF8(s, "?"))
}
