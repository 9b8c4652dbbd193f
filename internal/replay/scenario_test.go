package replay_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/client/timeline"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/mem"
)

const scenarios = "../../client/timeline/testdata/scenarios"

// TestScenarios replays every scenario on memory and on real files.
func TestScenarios(t *testing.T) { runScenarios(t, scenarios, 37) }

// TestHealthScenarios replays those of node health, N1 to N10.
func TestHealthScenarios(t *testing.T) {
	runScenarios(t, "../../client/timeline/testdata/health", 26)
}

// runScenarios replays all scenarios of a folder, and no fewer than so many, on memory and on real files.
func runScenarios(t *testing.T, dir string, least int) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.jsonl")
	if err != nil || len(files) < least {
		t.Fatalf("found %d scenarios, want %d or more (%v)", len(files), least, err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".jsonl")
		t.Run("mem/"+name, func(t *testing.T) { runScenario(t, f, mem.New().Open) })
		t.Run("bolt/"+name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "reprieve.db")
			runScenario(t, f, func(ctx context.Context) (engine.Store, error) { return bolt.Open(ctx, bolt.Options{Path: path}) })
		})
	}
}

func runScenario(t *testing.T, file string, open engine.StoreOpener) {
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ef, err := os.Open(strings.TrimSuffix(file, ".jsonl") + ".expect.json")
	if err != nil {
		t.Fatal(err)
	}
	defer ef.Close()
	want, err := timeline.ReadExpectation(ef, ef.Name())
	if err != nil {
		t.Fatal(err)
	}
	var seen []timeline.SeenHealth
	orders, err := replay.Run(t.Context(), replay.Options{
		Sources: []replay.Source{{Name: file, R: in}}, Open: open, Until: time.Duration(want.Until),
		OnEvent: func(ev replay.Event) {
			if h := ev.Health; h != nil {
				seen = append(seen, timeline.SeenHealth{Cluster: h.Cluster, Node: h.Node, Event: ev.Kind, Taint: h.Taint, At: ev.At})
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var sent []timeline.SentOrder
	for _, o := range orders {
		sent = append(sent, timeline.SentOrder{Cluster: o.Cluster, Namespace: o.Namespace, Pod: o.Pod, UID: o.UID, At: o.At})
	}
	for _, line := range append(want.Compare(sent), want.CompareHealth(seen)...) {
		t.Error(line)
	}
}

// TestPolicyThatNoServiceTakes: a rehearsal of a policy that the service would refuse
// would show what never happens.
func TestPolicyThatNoServiceTakes(t *testing.T) {
	for _, policy := range []string{
		`{"default_not_ready_toleration":"-5s"}`, `{"rate":{"per_second":-1,"burst":1}}`,
		`{"node_health_figures":{"taint_rate":"NaN"}}`, `{"rate":{"per_second":1,"burst":1},"unlimited_rate":true}`,
	} {
		line := `{"control":"policy","policy":` + policy + `}`
		_, err := replay.Run(t.Context(), replay.Options{Sources: []replay.Source{{Name: "f", R: strings.NewReader(line)}}, Open: mem.New().Open})
		if err == nil || !strings.Contains(err.Error(), "f:1: ") {
			t.Errorf("%s: %v, want where it stands and what is wrong", policy, err)
		}
	}
}

func TestSimulateSupposesTheNodeOfATaint(t *testing.T) {
	dump := `{"kind":"List","items":[` +
		`{"kind":"Pod","metadata":{"name":"a","namespace":"d","uid":"1"},"spec":{"nodeName":"n1","tolerations":[{"key":"x","operator":"Exists","tolerationSeconds":30}]}},` +
		`{"kind":"Pod","metadata":{"name":"b","namespace":"d","uid":"2"},"spec":{"nodeName":"n2"}},` +
		`{"kind":"Pod","metadata":{"name":"c","namespace":"d","uid":"3"},"spec":{"nodeName":"n1"},"status":{"phase":"Succeeded"}}]}`
	fates, err := replay.Simulate(replay.SimulateOptions{
		Sources: []replay.Source{{Name: "dump", R: strings.NewReader(dump)}},
		Taints:  []replay.Supposition{{Node: "n1", Key: "x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(fates) != 3 || fates[0].Pod != "a" || fates[0].Verdict != engine.VerdictLeave || fates[0].In != 30*time.Second {
		t.Fatalf("fates = %+v, want a to leave first, after 30 s", fates)
	}
	why := map[string]engine.Exemption{}
	for _, f := range fates {
		why[f.Pod] = f.Exempt
	}
	if why["b"] != engine.ExemptNodeUnknown || why["c"] != engine.ExemptFinished {
		t.Fatalf("exemptions = %v", why)
	}
	_, err = replay.Simulate(replay.SimulateOptions{
		Sources: []replay.Source{{Name: "dump", R: strings.NewReader(dump)}}, Taints: []replay.Supposition{{Node: "n9", Key: "x"}},
	})
	if err == nil || !strings.Contains(err.Error(), `no node "n9"`) {
		t.Fatalf("error %v", err)
	}
}
