package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// executeEvent is one thing that happened to an order, as -o json prints it.
type executeEvent struct {
	Event      string          `json:"event"` // order, recall or answer
	EvictionID string          `json:"eviction_id"`
	Attempt    uint32          `json:"attempt"`
	EvictPod   json.RawMessage `json:"evict_pod,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	Outcome    string          `json:"outcome,omitempty"`
	Message    string          `json:"message,omitempty"`

	text func(now time.Time) string
}

func orderEvent(t *client.Task) executeEvent {
	raw, err := encode(t.Pod)
	if err != nil {
		raw = nil
	}
	return executeEvent{Event: "order", EvictionID: t.EvictionID, Attempt: t.Attempt, EvictPod: raw, text: func(now time.Time) string {
		p := t.Pod
		return fmt.Sprintf("ORDER   %s  %s  %s  uid %s  %s  %s  attempt %d  %s", p.GetCluster(), podWord(p.GetNamespace(), p.GetName()), p.GetNode(), p.GetUid(),
			word(p.GetMethod(), "EVICTION_METHOD_"), countdown(p.GetDueTime(), now), t.Attempt, causeWord(p.GetCause()))
	}}
}

func recallEvent(t *client.Task) executeEvent {
	reason := word(t.RecallReason(), "REASON_")
	return executeEvent{Event: "recall", EvictionID: t.EvictionID, Attempt: t.Attempt, Reason: reason, text: func(time.Time) string {
		return fmt.Sprintf("RECALL  %s  %s  %s", t.Pod.GetCluster(), podWord(t.Pod.GetNamespace(), t.Pod.GetName()), reason)
	}}
}

func answerEvent(t *client.Task, r client.Result) executeEvent {
	outcome := word(r.Outcome, "OUTCOME_")
	return executeEvent{Event: "answer", EvictionID: t.EvictionID, Attempt: t.Attempt, Outcome: outcome, Message: r.Message, text: func(time.Time) string {
		return strings.TrimRight(fmt.Sprintf("ANSWER  %s  %s  %s  %s", t.Pod.GetCluster(), podWord(t.Pod.GetNamespace(), t.Pod.GetName()), outcome, r.Message), " ")
	}}
}

// print prints one event as a line, or as a document of -o json or yaml.
func (x *execution) print(ev executeEvent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.app.flags.output == outputTable {
		now := x.Clock.Now()
		fmt.Fprintf(x.Out, "%s  %s\n", now.Format(time.RFC3339), cleanText(ev.text(now)))
		return
	}
	b, err := json.Marshal(ev)
	if err == nil && x.app.flags.output == outputYAML {
		b, err = yaml.JSONToYAML(b)
		b = append([]byte("---\n"), b...)
	}
	if err != nil {
		fmt.Fprintf(x.Err, "reprieve: an event cannot be printed: %v\n", err)
		return
	}
	fmt.Fprintf(x.Out, "%s\n", strings.TrimRight(string(b), "\n"))
}

// orderJSON is the order as a command gets it: no token, which is the stream's secret.
func orderJSON(t *client.Task) ([]byte, error) {
	return encode(&reprievev1.Order{Attempt: t.Attempt, EvictionId: t.EvictionID, Action: &reprievev1.Order_EvictPod{EvictPod: t.Pod}})
}
