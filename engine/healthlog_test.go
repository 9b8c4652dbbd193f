package engine_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// logged is a ward whose log is read, and a function that returns the lines since it was last called.
func logged(t *testing.T, mode engine.NodeHealth, names ...string) (*ward, func() []string) {
	var out bytes.Buffer
	w := newWard(t, mem.New().Open, mode)
	w.log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "since" {
			return slog.Attr{}
		}
		return a
	}}))
	for _, name := range names {
		w.nodes[name] = wellNode(name)
	}
	w.restart(time.Second)
	return w, func() []string {
		w.settle()
		lines := strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
		out.Reset()
		return lines
	}
}

// wantLines checks that there are so many lines, each with its text.
func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What holds node health back is a line of the log when it begins and one when it
// ends, however many nodes it concerns.
func TestLogTellsWhatHoldsNodeHealthBack(t *testing.T) {
	w, lines := logged(t, engine.NodeHealthEnforce, "a", "b", "c", "d")
	w.pass(4 * time.Second)
	wantLines(t, lines(), `level=INFO msg="node health is no longer blind" cluster=prod`)
	w.deaf = map[string]bool{"a": true, "b": true, "c": true, "d": true}
	w.pass(2 * time.Minute)
	wantLines(t, lines(), `level=WARN msg="node health holds back: nearly all nodes fell silent at once`,
		`level=WARN msg="all zones are fully disrupted: `)
	w.deaf = nil
	w.pass(20 * time.Second)
	wantLines(t, lines(), `level=INFO msg="node health no longer holds back`, `level=INFO msg="not all zones are fully disrupted any more`)
	w.blind = true
	w.pass(20 * time.Second)
	wantLines(t, lines(), `level=WARN msg="node health is blind: the feed is not live or tells of no leases; no node is found silent" cluster=prod feed_live=true`)
	w.blind = false
	w.pass(4 * time.Second)
	wantLines(t, lines(), `level=INFO msg="node health is no longer blind"`)
}

// A live read that the feed does not bear out is told of with the executor behind it.
func TestLogTellsOfADoubtedRead(t *testing.T) {
	w, lines := logged(t, engine.NodeHealthEnforce, "a", "b", "c", "d", "e")
	w.deaf = map[string]bool{"a": true}
	order := w.nextOrder()
	lines()
	w.answer(w.x, order.Token, engine.OutcomeStale)
	w.pass(20 * time.Second)
	wantLines(t, lines(), `level=WARN msg="the feed of leases is behind what a live read showed; no node becomes Unknown until it has caught up, for a grace at most" cluster=prod executor=x`)
	warning := func() string {
		t.Helper()
		st, err := w.eng.Cluster(t.Context(), cluster)
		must(t, err)
		return strings.Join(st.Warnings, "\n")
	}
	if got := warning(); !strings.Contains(got, `, by a live read of executor "x"`) {
		t.Errorf("the warning while the feed counts as behind is %q", got)
	}
	w.pass(40 * time.Second)
	wantLines(t, lines(), `level=INFO msg="nodes may become Unknown again: `,
		`level=WARN msg="a heartbeat that an executor saw in a live read has not come within a grace; `)
	if got := warning(); !strings.Contains(got, `a heartbeat that executor "x" said it had read had not come`) {
		t.Errorf("the warning while it is doubted is %q", got)
	}
	// One that is borne out counts again.
	w.deaf["b"] = true
	order = w.nextOrder()
	w.answer(w.x, order.Token, engine.OutcomeStale)
	w.deaf["b"] = false
	w.pass(4 * time.Second)
	wantLines(t, lines(), `level=INFO msg="a heartbeat that an executor saw in a live read has come`)
	if got := warning(); strings.Contains(got, "executor") {
		t.Errorf("the warning after it is %q", got)
	}
}

// Zones are told of in one line, and no more often than once in ten seconds.
func TestLogTellsOfDisruptedZones(t *testing.T) {
	w, lines := logged(t, engine.NodeHealthEnforce, "a", "b", "c", "d", "e")
	w.pass(4 * time.Second)
	lines()
	turn := func(s health.Status, names ...string) {
		for _, name := range names {
			w.nodes[name].Conditions[health.CondReady] = s
			w.send(w.event(name))
		}
	}
	turn(health.StatusFalse, "a", "b", "c")
	w.pass(4 * time.Second)
	wantLines(t, lines(), `level=WARN msg="zones are disrupted: their NoExecute taints come at other rates, or not at all" cluster=prod count=1 zones="[r/z: PARTIAL_DISRUPTION, 3 of 5 nodes not ready]"`)
	for range 3 {
		turn(health.StatusTrue, "a", "b", "c")
		w.pass(2 * time.Second)
		turn(health.StatusFalse, "a", "b", "c")
	}
	wantLines(t, lines())
	turn(health.StatusTrue, "a", "b", "c")
	w.pass(12 * time.Second)
	wantLines(t, lines(), `level=INFO msg="zones are no longer disrupted" cluster=prod count=1 zones=[r/z]`)
}

// Another controller beside ENFORCE is told of once, whether the feeder or a node's
// condition shows it, and when that ends; beside OBSERVE it is as it should be.
func TestLogTellsOfAnotherController(t *testing.T) {
	w, lines := logged(t, engine.NodeHealthEnforce, "a", "b", "c")
	w.pass(4 * time.Second)
	lines()
	w.feed.NodeLifecycle("pod kube-system/kcm")
	w.pass(30 * time.Second)
	wantLines(t, lines(), `level=WARN msg="two node controllers: another one works on the nodes of a cluster with node_health ENFORCE; `)
	w.feed.NodeLifecycle("")
	w.pass(4 * time.Second)
	wantLines(t, lines(), `level=INFO msg="two node controllers no longer" cluster=prod`)
	w.pass(10 * time.Second)
	w.nodes["a"].Conditions[health.CondReady], w.nodes["a"].ReadyReason = health.StatusUnknown, "NodeStatusUnknown"
	w.send(w.event("a"))
	w.pass(4 * time.Second)
	wantLines(t, lines(), `became Unknown (NodeStatusUnknown) by another hand`)
	o, lines := logged(t, engine.NodeHealthObserve, "a", "b", "c")
	o.feed.NodeLifecycle("pod kube-system/kcm")
	o.pass(4 * time.Second)
	wantLines(t, lines(), `level=INFO msg="node health is no longer blind"`)
}
