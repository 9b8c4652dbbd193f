package replay_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/replay"
	"github.com/reprieve-dev/reprieve/store/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newDriver(t *testing.T) *replay.Driver {
	t.Helper()
	data := mem.New()
	d, err := replay.NewDriver(t.Context(), data.Open, epoch, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(context.Background()) })
	return d
}

func node(name string, taints ...string) engine.Event {
	n := &engine.Node{Name: name, UID: "node-" + name}
	for _, k := range taints {
		n.Taints = append(n.Taints, engine.ObservedTaint{Key: k, Effect: "NoExecute"})
	}
	return engine.Event{Type: engine.EventUpsert, Node: n}
}

func pod(name, node string, key string, seconds int64) engine.Event {
	return engine.Event{Type: engine.EventUpsert, Pod: &engine.Pod{
		Namespace: "default", Name: name, UID: "uid-" + name, Node: node,
		Tolerations: []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}},
	}}
}

func TestWaitSurvivesRestart(t *testing.T) {
	ctx := t.Context()
	d := newDriver(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(taints ...string) {
		must(d.Apply(ctx, "c", node("n1", taints...)))
		must(d.Apply(ctx, "c", pod("p", "n1", "x", 300)))
		must(d.Synced(ctx, "c"))
	}
	list()
	must(d.AdvanceTo(ctx, 10*time.Second))
	must(d.Apply(ctx, "c", node("n1", "x")))
	must(d.AdvanceTo(ctx, 100*time.Second))
	must(d.Restart(ctx, 10*time.Second))
	list("x")
	must(d.RunUntil(ctx, 400*time.Second))
	got := d.Orders()
	if len(got) != 1 || got[0].UID != "uid-p" || got[0].At != 310*time.Second {
		t.Fatalf("orders = %+v, want one of uid-p at 310s", got)
	}
	h, err := d.Engine().History(ctx, engine.HistoryQuery{Cluster: "c", Limit: 10})
	must(err)
	if len(h.Evictions) != 1 || h.Evictions[0].CloseReason != engine.CloseEvicted {
		t.Fatalf("history = %+v, want one EVICTED", h.Evictions)
	}
}
