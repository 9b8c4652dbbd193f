package timeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Expectation says which orders must come of a timeline, and that no others may; and
// if it has Health, the same of what happens to nodes.
type Expectation struct {
	Name string `json:"name"`
	Why  string `json:"why"`
	// Derivation says by which sums the instants follow from the rules, for people.
	Derivation string          `json:"derivation,omitempty"`
	Until      Duration        `json:"until"`
	Evict      []ExpectedOrder `json:"evict"`
	// Health is what must happen to nodes' health, and nothing else may; absent if
	// nothing is said of it.
	Health []ExpectedHealth `json:"health,omitempty"`
}

// ExpectedHealth is one thing that must happen to a node, or with Node empty to a
// cluster's node health.
type ExpectedHealth struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	// Event is its kind, as replay prints it; Taint is KEY:EFFECT, of tainted and untainted.
	Event     string   `json:"event"`
	Taint     string   `json:"taint,omitempty"`
	At        Duration `json:"at"`
	Tolerance Duration `json:"tolerance"`
}

// SeenHealth is something that happened to a node's health.
type SeenHealth struct {
	Cluster, Node, Event, Taint string
	At                          time.Duration
}

// ExpectedOrder is one order that must be sent.
type ExpectedOrder struct {
	Cluster   string   `json:"cluster,omitempty"`
	Pod       string   `json:"pod"`
	UID       string   `json:"uid"`
	At        Duration `json:"at"`
	Tolerance Duration `json:"tolerance"`
}

// Duration is a Go duration written as text.
type Duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration such as \"63.5s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%s is not a duration such as \"63.5s\"", b)
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// SentOrder is an order that was sent.
type SentOrder struct {
	Cluster, Namespace, Pod, UID string
	At                           time.Duration
}

// ReadExpectation reads an expectation; unknown fields are errors.
func ReadExpectation(r io.Reader, name string) (*Expectation, error) {
	bad := func(reason, hint string) (*Expectation, error) {
		return nil, &Error{Pos: Position{File: name}, Reason: "not an expectation: " + reason, Hint: hint}
	}
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var e Expectation
	if err := dec.Decode(&e); err != nil {
		return bad(err.Error(), "it has name, why, until, evict and health")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("there is something after its end", "one file has one expectation")
	}
	if e.Until <= 0 {
		return bad("until is missing or not above zero", "until says how long to look, such as \"700s\"")
	}
	for i := range e.Evict {
		w := &e.Evict[i]
		if w.Cluster == "" {
			w.Cluster = DefaultCluster
		}
		namespace, pod, ok := strings.Cut(w.Pod, "/")
		switch {
		case !ok || namespace == "" || pod == "":
			return bad(fmt.Sprintf("evict %d: pod %q is not namespace/name", i+1, w.Pod), "")
		case w.At < 0 || w.Tolerance < 0:
			return bad(fmt.Sprintf("evict %d: at and tolerance are not below zero", i+1), "")
		case w.At > e.Until:
			return bad(fmt.Sprintf("evict %d: at %s is after until %s", i+1, time.Duration(w.At), time.Duration(e.Until)), "")
		}
	}
	for i := range e.Health {
		w := &e.Health[i]
		if w.Cluster == "" {
			w.Cluster = DefaultCluster
		}
		switch {
		case w.Event == "":
			return bad(fmt.Sprintf("health %d: event is missing", i+1), "")
		case w.At < 0 || w.Tolerance < 0:
			return bad(fmt.Sprintf("health %d: at and tolerance are not below zero", i+1), "")
		case w.At > e.Until:
			return bad(fmt.Sprintf("health %d: at %s is after until %s", i+1, time.Duration(w.At), time.Duration(e.Until)), "")
		}
	}
	return &e, nil
}

// CompareHealth is Compare for what happened to nodes' health. It finds nothing if
// the expectation says nothing of it.
func (e *Expectation) CompareHealth(seen []SeenHealth) (diff []string) {
	if e.Health == nil {
		return nil
	}
	missing := slices.Repeat([]bool{true}, len(e.Health))
	for _, s := range seen {
		if s.At > time.Duration(e.Until) {
			break
		}
		if i := e.findHealth(s, missing); i >= 0 {
			missing[i] = false
			continue
		}
		diff = append(diff, "+ "+s.String())
	}
	for i, m := range missing {
		if w := &e.Health[i]; m {
			diff = append(diff, fmt.Sprintf("- %s was expected, within %s",
				SeenHealth{w.Cluster, w.Node, w.Event, w.Taint, time.Duration(w.At)}, time.Duration(w.Tolerance)))
		}
	}
	return diff
}

// findHealth returns the expectation that what happened meets, -1 if none.
func (e *Expectation) findHealth(s SeenHealth, missing []bool) int {
	return firstToRunOut(len(e.Health), func(i int) (until Duration, met bool) {
		w := &e.Health[i]
		same := w.Cluster == s.Cluster && w.Node == s.Node && w.Event == s.Event && w.Taint == s.Taint
		return w.At + w.Tolerance, missing[i] && same && near(s.At, w.At, w.Tolerance)
	})
}

// String is the event in a line.
func (s SeenHealth) String() string {
	return fmt.Sprintf("at %s: %s", s.At, strings.Join(strings.Fields(strings.Join([]string{s.Cluster, s.Node, s.Event, s.Taint}, " ")), " "))
}

// Compare returns a line for each order that was not expected (+), then one for
// each that is missing (-), both in the order of time; nothing if all is as
// expected. Orders after Until do not count.
func (e *Expectation) Compare(orders []SentOrder) []string {
	var diff []string
	missing := slices.Repeat([]bool{true}, len(e.Evict))
	orders = slices.SortedStableFunc(slices.Values(orders), func(a, b SentOrder) int { return cmp.Compare(a.At, b.At) })
	for _, o := range orders {
		if o.At > time.Duration(e.Until) {
			break
		}
		if i := e.find(o, missing); i >= 0 {
			missing[i] = false
			continue
		}
		diff = append(diff, fmt.Sprintf("+ at %s: %s %s/%s (uid %s) was ordered", o.At, o.Cluster, o.Namespace, o.Pod, o.UID))
	}
	var left []ExpectedOrder
	for i, m := range missing {
		if m {
			left = append(left, e.Evict[i])
		}
	}
	slices.SortStableFunc(left, func(a, b ExpectedOrder) int { return cmp.Compare(a.At, b.At) })
	for _, w := range left {
		diff = append(diff, fmt.Sprintf("- at %s: %s %s (uid %s) was expected, within %s",
			time.Duration(w.At), w.Cluster, w.Pod, w.UID, time.Duration(w.Tolerance)))
	}
	return diff
}

// find returns the expectation that an order meets, -1 if none.
func (e *Expectation) find(o SentOrder, missing []bool) int {
	return firstToRunOut(len(e.Evict), func(i int) (until Duration, met bool) {
		w := &e.Evict[i]
		same := w.Cluster == o.Cluster && w.Pod == o.Namespace+"/"+o.Pod && w.UID == o.UID
		return w.At + w.Tolerance, missing[i] && same && near(o.At, w.At, w.Tolerance)
	})
}

func near(at time.Duration, expected, tolerance Duration) bool {
	off := at - time.Duration(expected)
	return max(off, -off) <= time.Duration(tolerance)
}

// firstToRunOut is, of several expectations that are met, the one whose time runs
// out first, so that what comes later can meet the others; -1 if none is.
func firstToRunOut(n int, at func(i int) (until Duration, met bool)) int {
	found, first := -1, Duration(0)
	for i := range n {
		if until, met := at(i); met && (found < 0 || until < first) {
			found, first = i, until
		}
	}
	return found
}
