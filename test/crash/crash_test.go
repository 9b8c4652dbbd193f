//go:build crash

package crash

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

var (
	kills = flag.Int("kills", 500, "how often the service is killed")
	seed  = flag.Uint64("seed", 0, "seed of the random choices; 0 takes one of the time")
)

const (
	// lifetime is how long a point may take to be met before the service is killed anyway.
	lifetime = 800 * time.Millisecond
	// settleWithin is how long all that is due may take to leave: a delivery that was lost ends after 30 s.
	settleWithin = 2 * time.Minute
	// wallShift is how far the wall clock is set, this way or that, while the service runs.
	wallShift = 24 * time.Hour
)

// build builds the service with its points from the module's root.
func build(t *testing.T, root string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "reprieved")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags", "failpoints", "-o", bin, "./cmd/reprieved")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// TestCrash kills the service -kills times and finds nothing lost, early, doubled or out of order.
func TestCrash(t *testing.T) {
	t.Parallel()
	r := newRun(t, build(t, moduleRoot(t)), chosenSeed())
	for n := range *kills {
		r.life()
		if n%100 == 99 {
			t.Logf("%d kills so far, %d orders", n+1, r.j.figures().orders)
		}
		r.check(fmt.Sprintf("after %d kills", n+1))
	}
	r.settle()
	r.check("at the end")
	t.Log(r.report())
}

func chosenSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return uint64(time.Now().UnixNano())
}

// run is a trial of a cluster whose pods leave.
type run struct {
	trial
	w        *world
	j        *judge
	lives    int
	recovery []time.Duration
}

func newRun(t *testing.T, bin string, seed uint64) *run {
	t.Helper()
	w := newWorld(rand.New(rand.NewPCG(seed, 1)))
	j := newJudge(w)
	x := &executor{j: j, cluster: clusterName, rng: rand.New(rand.NewPCG(seed, 3)), held: map[string]*order{}}
	w.fence = x.fence
	return &run{w: w, j: j, trial: trial{
		findings: &j.findings, t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), p: newProgram(t, bin, hasty), x: x, met: map[string]int{},
	}}
}

// life starts the service, loads it until it is killed, and looks at what it kept at its next start.
func (r *run) life() {
	point := failpoint.All()[r.rng.IntN(len(failpoint.All()))]
	n := 1 + r.rng.IntN(40)
	if point == failpoint.Reload {
		n = 1
	}
	r.p.shift(0)
	// Half of the time what was under way to others before the point arrives first.
	l := r.p.start(point, n, time.Duration(r.rng.IntN(2))*20*time.Millisecond)
	defer l.kill()
	r.lives++
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	began := time.Now()
	if r.up(ctx, l) == nil && r.connect(ctx, l) == nil {
		r.recovery = append(r.recovery, time.Since(began))
		r.load(ctx, l)
	}
	if l.wait(lifetime) {
		r.met[point]++
	} else {
		r.met["any time"]++
	}
	r.end(l)
	// Things change while nobody looks.
	for range r.rng.IntN(10) {
		r.w.step()
	}
}

// connect feeds and executes, in either order.
func (r *run) connect(ctx context.Context, l *life) error {
	first := r.rng.IntN(2) == 0
	if first {
		if err := r.x.connect(ctx, l); err != nil {
			return err
		}
		if l.wait(time.Duration(r.rng.IntN(100)) * time.Millisecond) {
			return errDied
		}
	}
	if err := r.feed(ctx, l, r.w); err != nil {
		return err
	}
	if !first {
		if err := r.x.connect(ctx, l); err != nil {
			return err
		}
	}
	return r.synced(l)
}

// load changes the cluster, pauses and resumes, and sets the wall clock, until the service is killed.
func (r *run) load(ctx context.Context, l *life) {
	admin := reprievev1.NewAdminServiceClient(l.conn)
	shifted := false
	until := time.Now().Add(lifetime)
	for i := 0; time.Now().Before(until); i++ {
		r.w.step()
		switch {
		case i%97 == 50:
			r.j.unordered()
			if _, err := admin.PauseEvictions(ctx, &reprievev1.PauseEvictionsRequest{Cluster: clusterName, Reason: "crash test"}); err == nil {
				r.j.pause(time.Now())
				r.x.fence()
			}
		case i%97 == 80 || i == 0:
			r.resume(ctx, l)
		case !shifted && i == 20:
			shifted = true
			r.p.shift(time.Duration(r.rng.IntN(3)-1) * wallShift)
		}
		if l.wait(time.Duration(1+r.rng.IntN(10)) * time.Millisecond) {
			return
		}
	}
}

func (j *judge) pause(at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.paused, j.fence = at, j.w.fences.Add(1)
}

// resume ends the pause, if one stands.
func (r *run) resume(ctx context.Context, l *life) {
	// Before the call: what is released may come at once.
	r.j.pause(time.Time{})
	_, _ = reprievev1.NewAdminServiceClient(l.conn).ResumeEvictions(ctx, &reprievev1.ResumeEvictionsRequest{Cluster: clusterName})
}

// settle lets the service live and fails if anything that is due does not leave.
func (r *run) settle() {
	r.rest(calm{
		within: settleWithin,
		connect: func(ctx context.Context, l *life) error {
			if err := r.connect(ctx, l); err != nil {
				return err
			}
			r.resume(ctx, l)
			return nil
		},
		left: r.due,
		late: r.stayed,
	})
}

// due are the pods that have to leave, by UID.
func (r *run) due() (list []string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for uid := range r.w.pods {
		if r.w.of(uid).leaves {
			list = append(list, uid)
		}
	}
	return list
}

// stayed tells of pods that have not left although they were given the time.
func (r *run) stayed(ctx context.Context, l *life, left []string) {
	open, _ := r.j.list(ctx, l)
	r.violation("%d pods that are due have not left: %v; open are %v", len(left), left, open)
}

func (r *run) report() string {
	slices.Sort(r.recovery)
	c := r.j.figures()
	text := fmt.Sprintf("seed %d: %d kills (%s)\n%d orders, %d evictions acknowledged, %d due instants compared, %d overdue ones in their order, %d restarts that kept %d open evictions, no violation",
		r.seed, r.lives, r.points(), c.orders, r.j.evicted(), c.dues, c.ordered, c.recovered, c.open)
	if n := len(r.recovery); n > 0 {
		text += fmt.Sprintf("\nfrom the port to synced: median %s, worst %s", r.recovery[n/2].Round(time.Millisecond), r.recovery[n-1].Round(time.Millisecond))
	}
	if size, err := os.Stat(filepath.Join(r.p.dir, "data", "reprieve.db")); err == nil {
		text += fmt.Sprintf("; the data file has %d KiB", size.Size()>>10)
	}
	return text
}
