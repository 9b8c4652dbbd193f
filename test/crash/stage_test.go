//go:build crash

package crash

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// recoverWithin bounds how long a service may take to be itself again after a fault.
const recoverWithin = 90 * time.Second

// stage is a service under load that faults are staged on.
type stage struct {
	*run
	good string
	l    *life
	// stop ends the feed and the executor of this life; parts are what has to end with them.
	stop  context.CancelFunc
	parts sync.WaitGroup

	mu    sync.Mutex // guards what follows
	f     *feeder
	hello feedHello
	// away keeps the feed or the executor from coming back.
	feedAway, executorAway bool
	// refused are the codes that feeds ended with.
	refused map[codes.Code]int

	begin   time.Time
	table   map[string]*row
	memory  memory
	loading context.CancelFunc
}

// row is what a fault did over all its stagings.
type row struct {
	fault, how string
	recovery   []time.Duration
}

// memory is what the service took, in KiB and goroutines.
type memory struct{ first, last, peak, goroutines0, goroutines int }

func newStage(t *testing.T, bin string, seed uint64) *stage {
	t.Helper()
	return stageOn(newRun(t, bin, seed))
}

// stageOn puts a run's service under load.
func stageOn(r *run) *stage {
	t := r.t
	t.Helper()
	s := &stage{run: r, good: r.p.bin, begin: time.Now(), table: map[string]*row{}, refused: map[codes.Code]int{}, hello: feedHello{feeder: "f"}}
	s.w.hold(nodeCount - 1)
	s.p.admin = freePort(t)
	s.p.shift(0)
	s.up()
	t.Cleanup(s.down)
	s.load()
	if took := s.recovered(); took < 0 {
		t.Fatal("the service does not come up")
	}
	s.memory.first, s.memory.goroutines0 = s.rss(), s.goroutines()
	return s
}

// up starts the service and all that belongs to it.
func (s *stage) up() {
	s.l = s.p.start("", 0, 0)
	if err := s.p.ready(s.l); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.set(func() { s.f = nil })
	// It was read at the start, when the shift was still there.
	s.j.offset(s.p.shifted - s.p.gauge(s.t, "reprieve_clock_drift_seconds"))
	s.p.shift(0)
	s.j.recovered(ctx, s.l)
	s.parts.Go(func() { s.keepFeed(ctx) })
	s.parts.Go(func() { s.keepExecutor(ctx) })
}

// down kills the service.
func (s *stage) down() {
	s.stop()
	s.parts.Wait()
	s.l.kill()
}

// load changes the cluster all the time.
func (s *stage) load() {
	ctx, cancel := context.WithCancel(context.Background())
	rng := rand.New(rand.NewPCG(s.seed, 4))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			s.w.step()
			rest(ctx, time.Duration(10+rng.IntN(40))*time.Millisecond)
		}
	}()
	s.loading = func() { cancel(); <-done }
	s.t.Cleanup(s.loading)
}

// keepFeed feeds, again and again.
func (s *stage) keepFeed(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		away, hello := s.feedAway, s.hello
		s.mu.Unlock()
		if away {
			rest(ctx, 10*time.Millisecond)
			continue
		}
		f, err := startFeed(ctx, s.w, s.l, hello)
		if err != nil {
			rest(ctx, 50*time.Millisecond)
			continue
		}
		s.j.relist(f)
		s.mu.Lock()
		s.f = f
		s.mu.Unlock()
		<-f.ended
		f.stop()
		s.mu.Lock()
		s.refused[status.Code(f.err)]++
		s.mu.Unlock()
		rest(ctx, 50*time.Millisecond)
	}
}

// keepExecutor executes, again and again.
func (s *stage) keepExecutor(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		away := s.executorAway
		s.mu.Unlock()
		if away || s.x.connect(ctx, s.l) != nil {
			rest(ctx, 50*time.Millisecond)
			continue
		}
		s.x.mu.Lock()
		ended := s.x.ended
		s.x.mu.Unlock()
		<-ended
	}
}

// feed is the feed of now.
func (s *stage) feed() *feeder {
	for {
		s.mu.Lock()
		f := s.f
		s.mu.Unlock()
		if f != nil {
			return f
		}
		s.pause(5 * time.Millisecond)
	}
}

func (s *stage) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// pause lets the load go on for so long.
func (s *stage) pause(d time.Duration) { rest(context.Background(), d) }

// recovered waits until a pod that falls due now has left, by feed, disk and executor, and returns how long that took;
// negative if it did not come to that.
func (s *stage) recovered() time.Duration {
	began := time.Now()
	uid := s.w.probe()
	for time.Since(began) < recoverWithin {
		if s.j.hasLeft(uid) {
			return time.Since(began)
		}
		if s.l.wait(2 * time.Millisecond) {
			s.t.Fatalf("the service ended by itself: %s", s.l.status())
		}
	}
	return -1
}

// rss is the service's resident memory in KiB.
func (s *stage) rss() int { return s.l.rss("VmRSS") }

// rss is a line of the process's status, in KiB.
func (l *life) rss(field string) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

func (s *stage) goroutines() int { return s.p.metric(s.t, "go_goroutines") }

// metric reads one metric without labels.
func (p *program) metric(t *testing.T, name string) int {
	t.Helper()
	return int(p.number(t, name))
}

// gauge reads one metric of seconds.
func (p *program) gauge(t *testing.T, name string) time.Duration {
	t.Helper()
	return time.Duration(p.number(t, name) * float64(time.Second))
}

func (p *program) number(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// restart kills the service and starts it, or another build of it, on the same data.
func (s *stage) restart(bin string, env ...string) {
	s.down()
	s.p.bin, s.p.env = bin, env
	s.up()
}

// fault is something that goes wrong.
type staged struct {
	name, how string
	do        func(*stage)
	// long ones take more than ten seconds.
	long bool
}

// meet stages a fault, measures how long the service takes to be itself again, and judges.
func (s *stage) meet(f staged) {
	s.t.Helper()
	f.do(s)
	took := s.recovered()
	s.j.audit(context.Background(), s.l)
	if took < 0 {
		s.j.violation("not recovered in %s after: %s", recoverWithin, f.name)
	}
	s.check(fmt.Sprintf("after %q", f.name))
	r := s.table[f.name]
	if r == nil {
		r = &row{fault: f.name, how: f.how}
		s.table[f.name] = r
	}
	r.recovery = append(r.recovery, took)
	s.memory.peak = max(s.memory.peak, s.l.rss("VmHWM"))
}

// finish waits until everything that is due has left, and reports.
func (s *stage) finish() {
	s.loading()
	s.x.soothe(true)
	until := time.Now().Add(recoverWithin)
	for len(s.due()) > 0 && time.Now().Before(until) {
		s.pause(50 * time.Millisecond)
	}
	if left := s.due(); len(left) > 0 {
		s.stayed(context.Background(), s.l, left)
	}
	s.memory.last, s.memory.goroutines = s.rss(), s.goroutines()
	if s.memory.goroutines > s.memory.goroutines0+20 {
		s.j.violation("goroutines: %d at the start, %d at the end", s.memory.goroutines0, s.memory.goroutines)
	}
	s.check("at the end")
	s.t.Log(s.figures())
}

func (s *stage) figures() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s\n| fault | how | times | lost | recovery median | worst |\n|---|---|---|---|---|---|\n", s.seed, time.Since(s.begin).Round(time.Second))
	names := make([]string, 0, len(s.table))
	for name := range s.table {
		names = append(names, name)
	}
	slices.Sort(names)
	total := 0
	for _, name := range names {
		r := s.table[name]
		slices.Sort(r.recovery)
		n := len(r.recovery)
		total += n
		fmt.Fprintf(&b, "| %s | %s | %d | nothing | %s | %s |\n", name, r.how, n, r.recovery[n/2].Round(time.Millisecond), r.recovery[n-1].Round(time.Millisecond))
	}
	c := s.j.figures()
	fmt.Fprintf(&b, "%d faults, %d orders, %d evictions acknowledged, %d due instants compared, %d audits of what is open, no violation\n", total, c.orders, s.j.evicted(), c.dues, c.audits)
	fmt.Fprintf(&b, "resident: %d MiB at the start, %d MiB at the end, at most %d MiB; goroutines %d and %d\n",
		s.memory.first>>10, s.memory.last>>10, s.memory.peak>>10, s.memory.goroutines0, s.memory.goroutines)
	fmt.Fprintf(&b, "feeds ended with: %v", s.refused)
	return b.String()
}

// deaf opens a watch that reads nothing, on a connection of its own, for the rest of this life.
func (s *stage) deaf() {
	conn, err := grpc.NewClient(s.p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if _, err := reprievev1.NewQueryServiceClient(conn).WatchEvictions(s.t.Context(), &reprievev1.WatchEvictionsRequest{InitialList: true}); err != nil {
		s.t.Fatal(err)
	}
}
