package server

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/engine/health"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// Each thing that holds node health back has a gauge of its own, and shows in no other.
func TestNodeHealthGauges(t *testing.T) {
	c := newCollector(nil, clock.NewVirtual(time.Unix(0, 0)), slog.New(slog.DiscardHandler))
	since := time.Unix(1, 0)
	for _, tt := range []struct {
		name string
		desc *prometheus.Desc
		view health.ClusterView
	}{
		{"blind", c.healthBlind, health.ClusterView{BlindSince: since}},
		{"silence hold", c.healthHold, health.ClusterView{HeldSince: since}},
		{"stale", c.healthStale, health.ClusterView{StaleSince: since}},
		{"doubted", c.healthDoubted, health.ClusterView{DoubtedSince: since}},
		{"disrupted", c.healthDisrupted, health.ClusterView{DisruptedSince: since}},
		{"another controller", c.healthOther, health.ClusterView{Other: "kcm"}},
	} {
		seen := false
		c.health(func(d *prometheus.Desc, v float64, _ ...string) {
			seen = seen || d == tt.desc
			if want := flag01(d == tt.desc); v != want {
				t.Errorf("%s: %s is %v, want %v", tt.name, d, v, want)
			}
		}, &engine.ClusterHealth{ClusterView: tt.view})
		if !seen {
			t.Errorf("%s has no gauge", tt.name)
		}
	}
}
