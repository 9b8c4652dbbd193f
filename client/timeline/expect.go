package timeline

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Expectation says which orders must come of a timeline, and that no others may.
type Expectation struct {
	Name  string          `json:"name"`
	Why   string          `json:"why"`
	Until Duration        `json:"until"`
	Evict []ExpectedOrder `json:"evict"`
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
	*d = Duration(v)
	return err
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
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var e Expectation
	if err := dec.Decode(&e); err != nil {
		return nil, &Error{Pos: Position{File: name}, Reason: "not an expectation: " + err.Error(), Hint: "it has name, why, until and evict"}
	}
	for i := range e.Evict {
		if e.Evict[i].Cluster == "" {
			e.Evict[i].Cluster = DefaultCluster
		}
	}
	return &e, nil
}

// Compare returns a line for each order that is missing (-) or was not expected
// (+), in the order of time; nothing if all is as expected.
func (e *Expectation) Compare(orders []SentOrder) []string {
	missing := make([]bool, len(e.Evict))
	for i := range missing {
		missing[i] = true
	}
	var diff []string
	for _, o := range orders {
		if o.At > time.Duration(e.Until) {
			continue
		}
		if i := e.find(o, missing); i >= 0 {
			missing[i] = false
			continue
		}
		diff = append(diff, fmt.Sprintf("+ at %s: %s %s/%s (uid %s) was ordered", o.At, o.Cluster, o.Namespace, o.Pod, o.UID))
	}
	for i, m := range missing {
		if w := &e.Evict[i]; m {
			diff = append(diff, fmt.Sprintf("- at %s: %s %s (uid %s) was expected, within %s",
				time.Duration(w.At), w.Cluster, w.Pod, w.UID, time.Duration(w.Tolerance)))
		}
	}
	return diff
}

func (e *Expectation) find(o SentOrder, missing []bool) int {
	for i := range e.Evict {
		w := &e.Evict[i]
		off := o.At - time.Duration(w.At)
		if missing[i] && w.Cluster == o.Cluster && w.Pod == o.Namespace+"/"+o.Pod && w.UID == o.UID && max(off, -off) <= time.Duration(w.Tolerance) {
			return i
		}
	}
	return -1
}
