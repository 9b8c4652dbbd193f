package timeline

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// envelope are the fields that a timeline line may have.
var envelope = []string{"at", "cluster", "type", "object", "control", "down", "policy", "pod", "node", "outcome", "nodes", "every", "until"}

// clusterName is a DNS label, as clusters are named.
var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// times is what a reader knows of its input's times.
type times struct {
	at time.Duration
	// timeline: there were times or controls, so that it is no watch's stream.
	timeline bool
	// live: a watch's stream has turned from its list to its events.
	live bool
}

// line interprets one timeline line, or one event of a watch, which is a line
// with type and object only.
func (r *Reader) line(fields map[string]json.RawMessage, pos Position) error {
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(envelope, k) {
			return &Error{Pos: pos, Reason: fmt.Sprintf("unknown field %q", k), Hint: "a timeline line has " + strings.Join(envelope, ", ")}
		}
	}
	e := Entry{Pos: pos, Cluster: DefaultCluster, At: r.times.at}
	if err := r.readTime(&e, fields); err != nil {
		return err
	}
	if err := text(fields, "cluster", &e.Cluster); err != nil {
		return &Error{Pos: pos, Reason: err.Error()}
	}
	if !clusterName.MatchString(e.Cluster) {
		return &Error{Pos: pos, Reason: fmt.Sprintf("cluster %q is not a DNS label", e.Cluster), Hint: "a cluster's name has a-z, 0-9 and - and at most 63 characters"}
	}
	if fields["control"] != nil {
		return r.control(&e, fields)
	}
	return r.event(&e, fields)
}

// only refuses fields that have no meaning on this line.
func only(pos Position, what string, fields map[string]json.RawMessage, allowed ...string) error {
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if k != "at" && k != "cluster" && !slices.Contains(allowed, k) {
			return &Error{Pos: pos, Reason: fmt.Sprintf("%s does not take field %q", what, k)}
		}
	}
	return nil
}

// readTime reads at, which may not go back.
func (r *Reader) readTime(e *Entry, fields map[string]json.RawMessage) error {
	if fields["at"] == nil {
		return nil
	}
	at, err := duration(fields, "at")
	switch {
	case err != nil:
		return &Error{Pos: e.Pos, Reason: err.Error()}
	case at < r.times.at:
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("at goes back from %s to %s", r.times.at, at), Hint: "a timeline's lines are in the order of time"}
	}
	r.times.at, r.times.timeline = at, true
	e.At, e.HasAt = at, true
	return nil
}

func (r *Reader) event(e *Entry, fields map[string]json.RawMessage) error {
	if err := only(e.Pos, "an event", fields, "type", "object"); err != nil {
		return err
	}
	var typ string
	if err := text(fields, "type", &typ); err != nil {
		return &Error{Pos: e.Pos, Reason: err.Error()}
	}
	raw := fields["object"]
	switch e.Type = EventType(typ); {
	case fields["type"] == nil && raw == nil:
		return &Error{Pos: e.Pos, Reason: "the line has neither type and object nor control"}
	case fields["type"] == nil:
		return &Error{Pos: e.Pos, Reason: "object without type", Hint: "type is ADDED, MODIFIED, DELETED or BOOKMARK"}
	case e.Type == "ERROR":
		return &Error{Pos: e.Pos, Reason: "the watch ended with an error: " + statusMessage(raw), Hint: "start the watch again"}
	case e.Type != Added && e.Type != Modified && e.Type != Deleted && e.Type != Bookmark:
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("unknown type %q", typ), Hint: "type is ADDED, MODIFIED, DELETED or BOOKMARK"}
	case raw == nil:
		return &Error{Pos: e.Pos, Reason: "type " + typ + " without object"}
	}
	o, err := decodeObject(raw)
	if o == nil {
		return &Error{Pos: e.Pos, Reason: "not a Kubernetes object: object is " + err.Error()}
	}
	if o.Kind == "" {
		return &Error{Pos: e.Pos, Reason: "not a Kubernetes object: object has no kind"}
	}
	r.times.live = r.times.live || e.Type != Added
	e.Listed = !r.times.timeline && !r.times.live
	return r.emit(o, err, *e)
}

// statusMessage returns what an ERROR event's Status says.
func statusMessage(raw json.RawMessage) string {
	if o, _ := decodeObject(raw); o != nil && o.Message != "" {
		return o.Message
	}
	return "it does not say which"
}

// text reads a string field if it is there.
func text(fields map[string]json.RawMessage, key string, into *string) error {
	if raw := fields[key]; raw != nil {
		if what := jsonKind(raw); what != "text" {
			return fmt.Errorf("%s is %s, not text", key, what)
		}
		return json.Unmarshal(raw, into)
	}
	return nil
}

// duration reads a field that holds a Go duration.
func duration(fields map[string]json.RawMessage, key string) (time.Duration, error) {
	var s string
	if err := text(fields, key, &s); err != nil {
		return 0, fmt.Errorf("%w; write a duration such as \"63.5s\"", err)
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s: %q is not a duration from the start, such as 63.5s or 1m3.5s", key, s)
	}
	return d, nil
}
