//go:build crash

package crash

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
		if found := r.j.found(); len(found) > 0 {
			t.Fatalf("after %d kills, with -seed=%d:\n%s", n+1, r.seed, strings.Join(found[:min(len(found), 20)], "\n"))
		}
	}
	r.settle()
	if found := r.j.found(); len(found) > 0 {
		t.Fatalf("at the end, with -seed=%d:\n%s", r.seed, strings.Join(found[:min(len(found), 20)], "\n"))
	}
	t.Log(r.report())
}

func chosenSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return uint64(time.Now().UnixNano())
}

// run is one program's lives.
type run struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	p    *program
	w    *world
	j    *judge
	x    *executor
	fed  *feeder // of this life; nil while it has none
	// met counts the kills by point; late are those whose point was not met in time.
	met      map[string]int
	lives    int
	recovery []time.Duration
}

func newRun(t *testing.T, bin string, seed uint64) *run {
	t.Helper()
	w := newWorld(rand.New(rand.NewPCG(seed, 1)))
	j := newJudge(t, w)
	r := &run{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), p: newProgram(t, bin, hasty), w: w, j: j, met: map[string]int{},
		x: &executor{j: j, cluster: clusterName, rng: rand.New(rand.NewPCG(seed, 3)), held: map[string]*order{}},
	}
	w.fence = r.x.fence
	return r
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
	if r.connect(ctx, l) {
		r.load(ctx, l)
	}
	if l.wait(lifetime) {
		r.met[point]++
	} else {
		r.met["any time"]++
	}
	l.kill()
	if r.fed != nil {
		r.fed.stop()
		r.fed = nil
	}
	if s := l.status(); s != "signal: killed" {
		r.j.violation("the service ended by itself: %s", s)
	}
	// Things change while nobody looks.
	for range r.rng.IntN(10) {
		r.w.step()
	}
}

// connect looks at what was kept, then feeds and executes; false if the service died meanwhile.
func (r *run) connect(ctx context.Context, l *life) bool {
	began := time.Now()
	if err := r.p.ready(l); err != nil {
		if err != errDied {
			r.t.Fatal(err)
		}
		return false
	}
	r.j.recovered(ctx, l)
	first := r.rng.IntN(2) == 0
	if first && r.x.connect(ctx, l) != nil {
		return false
	}
	if first && l.wait(time.Duration(r.rng.IntN(100))*time.Millisecond) {
		return false
	}
	f, err := startFeed(ctx, r.w, l, feedHello{feeder: "f"})
	if err != nil {
		return false
	}
	r.fed = f
	r.j.begin(f)
	if !first && r.x.connect(ctx, l) != nil {
		return false
	}
	select {
	case <-f.synced:
		r.recovery = append(r.recovery, time.Since(began))
		return true
	case <-l.dead:
		return false
	}
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
			// Before the call: what is released may come at once.
			r.j.pause(time.Time{})
			_, _ = admin.ResumeEvictions(ctx, &reprievev1.ResumeEvictionsRequest{Cluster: clusterName})
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

// settle lets the service live and fails if anything that is due does not leave.
func (r *run) settle() {
	r.p.shift(0)
	r.x.settle()
	l := r.p.start("", 0, 0)
	defer l.kill()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	deadline := time.Now().Add(settleWithin)
	if !r.connect(ctx, l) {
		r.t.Fatal("the service died without a cause")
	}
	r.j.pause(time.Time{})
	_, _ = reprievev1.NewAdminServiceClient(l.conn).ResumeEvictions(ctx, &reprievev1.ResumeEvictionsRequest{Cluster: clusterName})
	for {
		left := r.due()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			open, _ := r.j.list(ctx, l)
			r.j.violation("%d pods that are due have not left; open are %v", left, open)
			return
		}
		if l.wait(50 * time.Millisecond) {
			r.t.Fatal("the service died without a cause")
		}
	}
}

// due is how many pods have to leave.
func (r *run) due() (n int) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for uid := range r.w.pods {
		if r.w.of(uid).leaves {
			n++
		}
	}
	return n
}

func (r *run) report() string {
	var points []string
	for _, name := range slices.Sorted(maps.Keys(r.met)) {
		points = append(points, fmt.Sprintf("%s %d", name, r.met[name]))
	}
	slices.Sort(r.recovery)
	c := r.j.figures()
	text := fmt.Sprintf("seed %d: %d kills (%s)\n%d orders, %d evictions acknowledged, %d due instants compared, %d overdue ones in their order, %d restarts that kept %d open evictions, no violation",
		r.seed, r.lives, strings.Join(points, ", "), c.orders, c.evicted, c.dues, c.ordered, c.recovered, c.open)
	if n := len(r.recovery); n > 0 {
		text += fmt.Sprintf("\nfrom the port to synced: median %s, worst %s", r.recovery[n/2].Round(time.Millisecond), r.recovery[n-1].Round(time.Millisecond))
	}
	if size, err := os.Stat(filepath.Join(r.p.dir, "data", "reprieve.db")); err == nil {
		text += fmt.Sprintf("; the data file has %d KiB", size.Size()>>10)
	}
	return text
}
