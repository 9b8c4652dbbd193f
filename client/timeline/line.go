package timeline

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// envelope are the fields that a timeline line may have.
var envelope = []string{"at", "cluster", "type", "object", "control", "down", "policy", "pod", "outcome"}

// line interprets one timeline line, or one event of a watch, which is a line
// with type and object only.
func (r *Reader) line(fields map[string]json.RawMessage, pos Position) error {
	r.count++
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(envelope, k) {
			return &Error{Pos: pos, Reason: fmt.Sprintf("unknown field %q", k), Hint: "a timeline line has " + strings.Join(envelope, ", ")}
		}
	}
	e := Entry{Pos: pos, Cluster: DefaultCluster, At: r.at}
	if err := r.times(&e, fields); err != nil {
		return err
	}
	if err := text(fields, "cluster", &e.Cluster); err != nil {
		return &Error{Pos: pos, Reason: err.Error()}
	}
	if fields["control"] != nil {
		return r.control(&e, fields)
	}
	return r.event(&e, fields)
}

// times reads at, which may not go back.
func (r *Reader) times(e *Entry, fields map[string]json.RawMessage) error {
	if fields["at"] == nil {
		return nil
	}
	at, err := duration(fields, "at")
	switch {
	case err != nil:
		return &Error{Pos: e.Pos, Reason: err.Error()}
	case at < r.at:
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("at goes back from %s to %s", r.at, at), Hint: "a timeline's lines are in the order of time"}
	}
	r.at, e.At, e.HasAt = at, at, true
	return nil
}

func (r *Reader) event(e *Entry, fields map[string]json.RawMessage) error {
	var typ string
	if err := text(fields, "type", &typ); err != nil {
		return &Error{Pos: e.Pos, Reason: err.Error()}
	}
	switch e.Type = EventType(typ); e.Type {
	case Added, Modified, Deleted, Bookmark:
	case "ERROR":
		return &Error{Pos: e.Pos, Reason: "the watch ended with an error: " + string(fields["object"]), Hint: "start the watch again"}
	default:
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("unknown type %q", typ), Hint: "type is ADDED, MODIFIED, DELETED or BOOKMARK"}
	}
	if fields["object"] == nil {
		return &Error{Pos: e.Pos, Reason: "type " + typ + " without object"}
	}
	o, err := decodeObject(fields["object"])
	if err != nil {
		return &Error{Pos: e.Pos, Reason: "object: " + err.Error()}
	}
	if o.Kind == "" {
		return &Error{Pos: e.Pos, Reason: "not a Kubernetes object: object has no kind"}
	}
	return r.emit(o, *e)
}

// text reads a string field if it is there.
func text(fields map[string]json.RawMessage, key string, into *string) error {
	if raw := fields[key]; raw != nil {
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("%s is not a string: %s", key, raw)
		}
	}
	return nil
}

// duration reads a field that holds a Go duration.
func duration(fields map[string]json.RawMessage, key string) (time.Duration, error) {
	var s string
	if err := text(fields, key, &s); err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s: %q is not a duration from the start, such as 63.5s or 1m3.5s", key, s)
	}
	return d, nil
}

func (r *Reader) control(e *Entry, fields map[string]json.RawMessage) error {
	var kind string
	if err := text(fields, "control", &kind); err != nil {
		return &Error{Pos: e.Pos, Reason: err.Error()}
	}
	c := &Control{Kind: ControlKind(kind)}
	var err error
	switch c.Kind {
	case Synced, FeedLost, Pause, Resume:
	case Restart:
		if fields["down"] != nil {
			c.Down, err = duration(fields, "down")
		}
	case Policy:
		err = c.policy(fields["policy"])
	case Executor:
		err = c.executor(fields)
	default:
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("unknown control %q", kind), Hint: "controls are synced, restart, feed-lost, pause, resume, policy, executor"}
	}
	if err != nil {
		return &Error{Pos: e.Pos, Reason: "control " + kind + ": " + err.Error()}
	}
	e.Control = c
	r.queue = append(r.queue, *e)
	return nil
}

func (c *Control) policy(raw json.RawMessage) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return fmt.Errorf("policy is not an object")
	}
	c.Policy = &reprievev1.ClusterPolicy{}
	if err := protojson.Unmarshal(raw, c.Policy); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	names := c.Policy.ProtoReflect().Descriptor().Fields()
	for key := range fields {
		if f := names.ByJSONName(key); f != nil {
			key = string(f.Name())
		}
		c.PolicyFields = append(c.PolicyFields, key)
	}
	slices.Sort(c.PolicyFields)
	return nil
}

func (c *Control) executor(fields map[string]json.RawMessage) error {
	var pod, outcome string
	if err := text(fields, "pod", &pod); err != nil {
		return err
	}
	if err := text(fields, "outcome", &outcome); err != nil {
		return err
	}
	var ok bool
	if c.PodNamespace, c.PodName, ok = strings.Cut(pod, "/"); !ok || c.PodNamespace == "" || c.PodName == "" {
		return fmt.Errorf("pod %q is not namespace/name", pod)
	}
	n, ok := reprievev1.Outcome_value["OUTCOME_"+outcome]
	if !ok || n == 0 {
		return fmt.Errorf("unknown outcome %q; outcomes are EVICTED, GONE, SUPERSEDED, STALE, BLOCKED, DENIED, FAILED, RECALLED, NO_ANSWER", outcome)
	}
	c.Outcome = reprievev1.Outcome(n)
	return nil
}
