package timeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// controlFields are the controls and the fields that each takes.
var controlFields = map[ControlKind][]string{
	Synced: nil, FeedLost: nil, Pause: nil, Resume: nil,
	Restart: {"down"}, Policy: {"policy"}, Executor: {"pod", "node", "outcome"}, Renew: {"nodes", "every", "until"},
}

// control interprets a control line.
func (r *Reader) control(e *Entry, fields map[string]json.RawMessage) error {
	var kind string
	if err := text(fields, "control", &kind); err != nil {
		return &Error{Pos: e.Pos, Reason: err.Error()}
	}
	c := &Control{Kind: ControlKind(kind)}
	takes, known := controlFields[c.Kind]
	if !known {
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("unknown control %q", kind), Hint: "controls are synced, restart, feed-lost, pause, resume, policy, executor, renew"}
	}
	if err := only(e.Pos, "control "+kind, fields, append([]string{"control"}, takes...)...); err != nil {
		return err
	}
	var err error
	switch {
	case c.Kind == Restart && fields["down"] != nil:
		c.Down, err = duration(fields, "down")
	case c.Kind == Policy:
		err = c.readPolicy(fields["policy"])
	case c.Kind == Executor:
		err = c.readExecutor(fields)
	case c.Kind == Renew:
		err = c.readRenew(fields, e.At)
	}
	if err != nil {
		return &Error{Pos: e.Pos, Reason: "control " + kind + ": " + err.Error()}
	}
	r.times.timeline = true
	e.Control = c
	r.queue = append(r.queue, *e)
	return nil
}

// readPolicy reads the fields given, of which an enum may leave out its prefix.
func (c *Control) readPolicy(raw json.RawMessage) error {
	if raw == nil || raw[0] != '{' {
		return errors.New("policy is not an object")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	c.Policy = &reprievev1.ClusterPolicy{}
	known := c.Policy.ProtoReflect().Descriptor().Fields()
	for _, key := range slices.Sorted(maps.Keys(given)) {
		f := known.ByName(protoreflect.Name(key))
		if f == nil {
			f = known.ByJSONName(key)
		}
		name := ""
		if f != nil {
			name = string(f.Name())
		}
		switch {
		case f == nil:
			return fmt.Errorf("policy has no field %q; it has %s", key, fieldNames(known))
		case slices.Contains(c.PolicyFields, name):
			return fmt.Errorf("policy field %s is there twice", name)
		case string(given[key]) == "null":
			return fmt.Errorf("policy field %s is null; leave it out to keep it as it is", name)
		}
		if err := setPolicyField(c.Policy, f, given[key]); err != nil {
			return fmt.Errorf("policy field %s: %w", name, err)
		}
		c.PolicyFields = append(c.PolicyFields, name)
	}
	slices.Sort(c.PolicyFields)
	return nil
}

func setPolicyField(p *reprievev1.ClusterPolicy, f protoreflect.FieldDescriptor, raw json.RawMessage) error {
	if e := f.Enum(); e != nil {
		var word string
		if err := json.Unmarshal(raw, &word); err != nil {
			return fmt.Errorf("%.64s is not one of %s", raw, enumWords(e))
		}
		word = strings.TrimPrefix(strings.ToUpper(word), enumPrefix(e))
		v := e.Values().ByName(protoreflect.Name(enumPrefix(e) + word))
		if v == nil || v.Number() == 0 {
			return fmt.Errorf("%.64s is not one of %s", raw, enumWords(e))
		}
		p.ProtoReflect().Set(f, protoreflect.ValueOfEnum(v.Number()))
		return nil
	}
	one := &reprievev1.ClusterPolicy{}
	b, err := json.Marshal(map[string]json.RawMessage{string(f.Name()): raw})
	if err != nil {
		return err
	}
	if protojson.Unmarshal(b, one) != nil { // Its errors count the columns of b and vary in their blanks.
		return fmt.Errorf("%.64s is not %s", raw, policyValue(f))
	}
	proto.Merge(p, one)
	return nil
}

// policyValue says what a field takes.
func policyValue(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsList():
		return "a list of text"
	case f.Kind() == protoreflect.BoolKind:
		return "true or false"
	case f.Message() != nil && f.Message().FullName() == "google.protobuf.Duration":
		return `a duration in seconds such as "300s"`
	}
	if f.Name() == "blast_radius" {
		return `an object such as {"max_node_share": 0.2, "window": "60s", "min_nodes": 10}`
	}
	if f.Name() == "node_health_figures" {
		return `an object such as {"grace_period": "40s", "taint_rate": 0.2}`
	}
	return `an object such as {"per_second": 50, "burst": 100}`
}

func fieldNames(fields protoreflect.FieldDescriptors) string {
	var names []string
	for i := range fields.Len() {
		names = append(names, string(fields.Get(i).Name()))
	}
	return strings.Join(names, ", ")
}

// enumPrefix is what the names of an enum's values begin with.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

func enumWords(e protoreflect.EnumDescriptor) string {
	var words []string
	for i := range e.Values().Len() {
		if v := e.Values().Get(i); v.Number() != 0 {
			words = append(words, strings.TrimPrefix(string(v.Name()), enumPrefix(e)))
		}
	}
	return strings.Join(words, ", ")
}

// renewEvery is how often a kubelet renews its lease, by default; minRenewEvery and
// maxRenewals bound what one line stands for.
const (
	renewEvery    = 10 * time.Second
	minRenewEvery = 100 * time.Millisecond
	maxRenewals   = 1_000_000
)

func (c *Control) readRenew(fields map[string]json.RawMessage, at time.Duration) (err error) {
	if json.Unmarshal(fields["nodes"], &c.Nodes) != nil || len(c.Nodes) == 0 {
		return errors.New("nodes is not a list of nodes' names")
	}
	c.Every = renewEvery
	if fields["every"] != nil {
		if c.Every, err = duration(fields, "every"); err != nil {
			return err
		}
	}
	if c.Until, err = duration(fields, "until"); err != nil {
		return err
	}
	switch {
	case c.Until < at:
		return fmt.Errorf("until %s is before %s, when it begins", c.Until, at)
	case c.Every < minRenewEvery:
		return fmt.Errorf("every %s is less than %s", c.Every, minRenewEvery)
	case int64((c.Until-at)/c.Every+1) > maxRenewals/int64(len(c.Nodes)):
		return fmt.Errorf("it stands for more than %d leases", maxRenewals)
	}
	return nil
}

// answers are those to an order for a pod, and to one for a node.
var answers = map[bool][]reprievev1.Outcome{
	false: {
		reprievev1.Outcome_OUTCOME_EVICTED, reprievev1.Outcome_OUTCOME_GONE, reprievev1.Outcome_OUTCOME_SUPERSEDED, reprievev1.Outcome_OUTCOME_STALE,
		reprievev1.Outcome_OUTCOME_BLOCKED, reprievev1.Outcome_OUTCOME_DENIED, reprievev1.Outcome_OUTCOME_FAILED, reprievev1.Outcome_OUTCOME_RECALLED,
		reprievev1.Outcome_OUTCOME_NO_ANSWER,
	},
	true: {
		reprievev1.Outcome_OUTCOME_APPLIED, reprievev1.Outcome_OUTCOME_GONE, reprievev1.Outcome_OUTCOME_SUPERSEDED, reprievev1.Outcome_OUTCOME_STALE,
		reprievev1.Outcome_OUTCOME_DENIED, reprievev1.Outcome_OUTCOME_FAILED, reprievev1.Outcome_OUTCOME_RECALLED, reprievev1.Outcome_OUTCOME_NO_ANSWER,
	},
}

func (c *Control) readExecutor(fields map[string]json.RawMessage) error {
	var pod, outcome string
	for key, into := range map[string]*string{"pod": &pod, "node": &c.NodeName, "outcome": &outcome} {
		if err := text(fields, key, into); err != nil {
			return err
		}
	}
	ofNode := c.NodeName != ""
	if ofNode && pod != "" {
		return errors.New("pod and node exclude each other")
	}
	if !ofNode {
		var ok bool
		c.PodNamespace, c.PodName, ok = strings.Cut(pod, "/")
		if !ok || c.PodNamespace == "" || c.PodName == "" || strings.Contains(c.PodName, "/") {
			return fmt.Errorf("pod %q is not namespace/name", pod)
		}
	}
	prefix, words := enumPrefix(reprievev1.Outcome(0).Descriptor()), []string{}
	for _, o := range answers[ofNode] {
		word := strings.TrimPrefix(o.String(), prefix)
		if words = append(words, word); word == outcome {
			c.Outcome = o
		}
	}
	if c.Outcome == reprievev1.Outcome_OUTCOME_UNSPECIFIED {
		return fmt.Errorf("unknown outcome %q; outcomes are %s", outcome, strings.Join(words, ", "))
	}
	return nil
}
