//go:build crash

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

const (
	// longLife is how long a node may take to be found silent: its grace, and some.
	longLife = grace + 3*time.Second
	// settleEvery is after how many kills everything must come to what is wanted.
	settleEvery = 20
	// quietWithin bounds that.
	quietWithin = time.Minute
)

// nodeHealth is a configuration with the shortest grace, and rates at which much happens in a short life. That nearly
// all nodes fall silent is to be believed: it would hide a restart that is taken for silence.
const nodeHealth = `
adopt: enforce
feed_timeout: 10s
defaults:
  rate: {per_second: 200, burst: 20}
  disable_blast_radius: true
  default_not_ready_toleration: 2s
  default_unreachable_toleration: 2s
  node_health: enforce
  node_health_figures:
    grace_period: 5s
    startup_grace_period: 6s
    taint_rate: 5
    full_disruption_taint_rate: 5
    partial_disruption_taint_rate: 5
    small_zone_taint_rate: 5
    disable_silence_hold: true
`

// nodeRun is a trial of a cluster whose nodes fall silent and come back.
type nodeRun struct {
	trial
	w *nodeWorld
	j *nodeJudge
}

func newNodeRun(t *testing.T, bin string, seed uint64) *nodeRun {
	t.Helper()
	w := newNodeWorld(rand.New(rand.NewPCG(seed, 5)))
	j := newNodeJudge(w)
	x := &executor{j: j, cluster: nodeCluster, nodes: true, rng: rand.New(rand.NewPCG(seed, 7)), held: map[string]*order{}}
	w.fence = x.fence
	return &nodeRun{w: w, j: j, trial: trial{
		findings: &j.findings, t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 6)), p: newProgram(t, bin, nodeHealth), x: x, met: map[string]int{},
	}}
}

// TestCrashNodes kills the service an eighth of -kills times while orders for nodes are out, with lives long enough for
// nodes to fall silent among them. No node that renewed is taken for dead, none loses a taint by a restart, none has
// two orders, and what was begun is done in the end.
func TestCrashNodes(t *testing.T) {
	t.Parallel()
	r := newNodeRun(t, build(t, moduleRoot(t)), chosenSeed())
	for n := range max(*kills/8, 1) {
		r.turn(n)
		r.check(fmt.Sprintf("after %d kills", n+1))
	}
	r.settle()
	r.check("at the end")
	t.Logf("seed %d: kills: %s\n%s", r.seed, r.points(), r.j.report())
}

// turn is the nth life, and now and then one in which everything must come to rest.
func (r *nodeRun) turn(n int) []string {
	r.life()
	if n%settleEvery == settleEvery-1 && len(r.found()) == 0 {
		r.settle()
	}
	return r.found()
}

// life starts the service and loads it until it is killed: at a point, or in a long life soon after a node was ordered
// to be Unknown.
func (r *nodeRun) life() {
	long := r.rng.IntN(3) == 0
	point, n, until := "", 0, longLife
	if !long {
		points := slices.Concat(failpoint.All(), failpoint.Nodes(), failpoint.Nodes(), failpoint.Nodes())
		point, n, until = points[r.rng.IntN(len(points))], 1+r.rng.IntN(10), lifetime
		switch {
		case point == failpoint.Reload:
			n = 1
		case slices.Contains(failpoint.Nodes(), point):
			// Orders for nodes are few.
			n, until = 1+r.rng.IntN(2), 2*lifetime
		}
	}
	r.p.shift(0)
	l := r.p.start(point, n, time.Duration(r.rng.IntN(2))*20*time.Millisecond)
	defer l.kill()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	if r.up(ctx, l) == nil && r.connect(ctx, l) == nil {
		r.load(l, until, long)
	} else {
		l.wait(lifetime)
	}
	switch {
	case l.wait(10 * time.Millisecond):
		r.met[point]++
	case long && r.j.silences() > 0:
		r.met["after a silence"]++
	default:
		r.met["any time"]++
	}
	r.end(l)
	for range r.rng.IntN(60) {
		r.w.step()
	}
}

// connect executes and feeds.
func (r *nodeRun) connect(ctx context.Context, l *life) error {
	if err := r.x.connect(ctx, l); err != nil {
		return err
	}
	if err := r.feed(ctx, l, r.w); err != nil {
		return err
	}
	return r.synced(l)
}

// load lets the kubelets live, and some die, until the service is killed or a node was ordered to be Unknown.
func (r *nodeRun) load(l *life, within time.Duration, long bool) {
	if long {
		for range 1 + r.rng.IntN(4) {
			r.w.die()
		}
	}
	until := time.Now().Add(within)
	for i := 0; time.Now().Before(until); i++ {
		r.w.tick()
		r.w.step()
		if i == 20 {
			r.p.shift(time.Duration(r.rng.IntN(3)-1) * wallShift)
		}
		if l.wait(time.Duration(1+r.rng.IntN(10)) * time.Millisecond) {
			return
		}
		if long && r.j.silences() > 0 {
			long = false
			until = time.Now().Add(time.Duration(r.rng.IntN(400)) * time.Millisecond)
		}
	}
}

// settle lets the service live and fails if the nodes do not come to look as their health says.
func (r *nodeRun) settle() {
	r.rest(calm{
		within:  quietWithin,
		connect: r.connect,
		left: func() []string {
			r.w.tick()
			return r.j.left()
		},
		late: func(_ context.Context, _ *life, left []string) {
			r.violation("N7: not done after %s: %s", quietWithin, strings.Join(left, "; "))
		},
	})
	r.j.counts.settled++
}
