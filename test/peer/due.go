package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/kubernetes"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
	storev1 "github.com/reprieve-dev/reprieve/proto/reprieve/store/v1"
)

// sent is an order and when it came.
type sent struct {
	token string
	late  time.Duration
	came  time.Time
}

// orderSink takes orders for an executor of this process.
type orderSink struct {
	clk    *clock.Real
	orders chan sent
}

func (s *orderSink) Order(o engine.Order) bool {
	select {
	case s.orders <- sent{o.Token, s.clk.Now().Sub(o.Eviction.Due), time.Now()}:
		return true
	default:
		return false
	}
}

func (s *orderSink) Recall(engine.RecallOrder) {}
func (s *orderSink) Ended(error)               {}

// attach attaches an executor with room for so many orders.
func (o *ours) attach(id string, capacity int) (*engine.ExecutorSession, *orderSink, error) {
	sink := &orderSink{clk: o.clk, orders: make(chan sent, capacity)}
	x, err := o.eng.AttachExecutor(engine.ExecutorHello{ID: id, Clusters: []string{clusterName}, Capacity: capacity}, sink)
	return x, sink, err
}

// aSecond is how many fall due in each second of the row lateness, which lasts a
// minute at whole size, and five seconds when it is small.
const aSecond = 10_000

func latenessMem(r *run1) (figures, error) { return lateness(r, openMem()) }

func latenessBolt(r *run1) (figures, error) { return onBolt(r, lateness) }

// lateness arms waits of which aSecond fall due in each second, spread evenly
// over it, and measures how long after its instant each order comes.
func lateness(r *run1, open engine.StoreOpener) (figures, error) {
	o, err := start(r, open)
	if err != nil {
		return nil, err
	}
	defer o.stop()
	const nodes = 200
	// The list is the cluster's adoption: its end is the start of the taint.
	if err := o.list(r, nodes, 0, taint(waitKey)); err != nil {
		return nil, err
	}
	base := o.clk.Now()
	// A binding must not lie in the future.
	time.Sleep(1100 * time.Millisecond)
	seconds := max(5, min(60, r.size/aSecond*6/10))
	lead := 5 + r.size/20_000 // the time that arming may take
	for from := 0; from < r.size; from += 1000 {
		events := make([]engine.Event, 1000)
		for k := range events {
			i := from + k
			events[k] = podEvent(i, i%nodes, int64(lead+i/aSecond))
			events[k].Pod.BoundAt = base.Add(time.Duration(i%aSecond) * time.Second / aSecond)
		}
		o.seq++
		if err := o.feed.Batch(r, o.seq, events); err != nil {
			return nil, err
		}
	}
	if err := o.acks.wait(r, o.seq); err != nil {
		return nil, err
	}
	if err := o.expect(r, engine.StateWaiting, r.size); err != nil {
		return nil, fmt.Errorf("arming took longer than %d s: %w", lead, err)
	}
	runtime.GC()
	x, sink, err := o.attach("x", 20_000)
	if err != nil {
		return nil, err
	}
	all, err := answerInProcess(r, x, sink, min(r.size, seconds*aSecond))
	if err != nil {
		return nil, err
	}
	return figures{"p99": ms(percentile(all, 99)), "p50": ms(percentile(all, 50))}, nil
}

// answerInProcess answers orders as they come and returns how late each was.
func answerInProcess(ctx context.Context, x *engine.ExecutorSession, sink *orderSink, want int) ([]time.Duration, error) {
	all := make([]time.Duration, 0, want)
	var refused atomic.Int64
	for len(all) < want {
		select {
		case s := <-sink.orders:
			all = append(all, s.late)
			x.Result(engine.Result{Token: s.token, Outcome: engine.OutcomeGone}, func(ok bool) {
				if !ok {
					refused.Add(1)
				}
			})
		case <-ctx.Done():
			return nil, fmt.Errorf("%d orders came, want %d: %w", len(all), want, context.Cause(ctx))
		}
	}
	if least := slices.Min(all); least < 0 {
		return nil, fmt.Errorf("an order came %s early", -least)
	}
	if n := refused.Load(); n > 0 {
		return nil, fmt.Errorf("%d answers were not taken", n)
	}
	return all, nil
}

func percentile(all []time.Duration, p int) time.Duration {
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*p/100)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// idleTimer is how late a timer is in a process that does nothing else.
func idleTimer(r *run1) (figures, error) {
	all := make([]time.Duration, 2000)
	fired := make(chan struct{})
	for i := range all {
		at := time.Now().Add(2 * time.Millisecond)
		time.AfterFunc(2*time.Millisecond, func() { all[i] = time.Since(at); fired <- struct{}{} })
		<-fired
	}
	return figures{"p99": ms(percentile(all, 99))}, nil
}

// idleCommits are transactions of the size that a hundredth of a second makes,
// with nothing beside them.
func idleCommits(r *run1) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "commits-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	db, err := bbolt.Open(filepath.Join(dir, "raw.db"), 0o600, nil)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	all := make([]time.Duration, 500)
	value := make([]byte, 300)
	for i := range all {
		began := time.Now()
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			for k := 0; err == nil && k < aSecond/100; k++ {
				err = b.Put(fmt.Appendf(nil, "%08d", i*aSecond/100+k), value)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		all[i] = time.Since(began)
	}
	timer, err := idleTimer(r)
	// An order waits for its delivery's commit, and for the one under way.
	return figures{"p99": timer["p99"] + 2*ms(percentile(all, 99))}, err
}

// executorTakes is how long an executor of the row all due at once needs for a pod.
const executorTakes = 50 * time.Millisecond

// allDueOurs lets everything fall due in one instant, with bbolt, and measures
// by how much the process grows until all is answered.
func allDueOurs(r *run1) (figures, error) {
	dir, err := os.MkdirTemp(r.dir, "due-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	o, err := start(r, openBolt(dir))
	if err != nil {
		return nil, err
	}
	defer o.stop()
	nodes := r.size / perNode
	if err := o.list(r, nodes, perNode); err != nil {
		return nil, err
	}
	var answered atomic.Int64
	ctx, cancel := context.WithCancel(r)
	defer cancel()
	for i := range executorsOf {
		x, sink, err := o.attach("x"+strconv.Itoa(i), 10*ordersOut)
		if err != nil {
			return nil, err
		}
		go answerLater(ctx, x, sink, &answered)
	}
	g, err := watchGrowth()
	if err != nil {
		return nil, err
	}
	w := startWatch()
	if err := o.batch(r, nodeEvents(nodes, taint(goKey))); err != nil {
		return nil, err
	}
	return grown(r, w, g, &answered)
}

// answerLater answers each order when it has had it for as long as it takes. All
// take as long, so that the answers leave in the order of the orders.
func answerLater(ctx context.Context, x *engine.ExecutorSession, sink *orderSink, answered *atomic.Int64) {
	taken := func(ok bool) {
		if ok {
			answered.Add(1)
		}
	}
	for {
		select {
		case s := <-sink.orders:
			time.Sleep(time.Until(s.came.Add(executorTakes)))
			x.Result(engine.Result{Token: s.token, Outcome: engine.OutcomeGone}, taken)
		case <-ctx.Done():
			return
		}
	}
}

// grown waits until all are answered and returns by how much the process grew.
func grown(r *run1, w *stopwatch, g *footprint, answered *atomic.Int64) (figures, error) {
	for answered.Load() < int64(r.size) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-r.Done():
			return nil, fmt.Errorf("%d of %d were answered: %w", answered.Load(), r.size, context.Cause(r))
		}
	}
	got := w.stop(r.size)
	got["seconds"] = float64(r.size) / got["rate"]
	return got, g.stop(got)
}

// footprint is by how much the process grows from a moment on.
type footprint struct {
	whole, anon float64 // bytes at the beginning
	end         chan struct{}
	peak        chan float64
}

// watchGrowth begins with the present size. Of the whole process, pages of mapped
// files too, the kernel keeps the peak; of the memory that no file backs it does
// not, so that this is looked at every few milliseconds.
func watchGrowth() (*footprint, error) {
	whole, err := resetPeak()
	if err != nil {
		return nil, err
	}
	anon, err := memoryOf("RssAnon")
	if err != nil {
		return nil, err
	}
	g := &footprint{whole: whole, anon: anon, end: make(chan struct{}), peak: make(chan float64, 1)}
	go func() {
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		most := anon
		for {
			select {
			case <-t.C:
				// What could be read a moment ago can be read now.
				now, _ := memoryOf("RssAnon")
				most = max(most, now)
			case <-g.end:
				g.peak <- most
				return
			}
		}
	}()
	return g, nil
}

// stop adds the figures: growth of the whole process, and of the memory that no file backs.
func (g *footprint) stop(got figures) error {
	close(g.end)
	whole, err := memoryOf("VmHWM")
	got["growth"] = (whole - g.whole) / (1 << 20)
	got["anonymous"] = (<-g.peak - g.anon) / (1 << 20)
	return err
}

func allDueOriginal(r *run1) (figures, error) {
	var answered atomic.Int64
	o, err := startOriginal(r, r.size/perNode, perNode, func(c kubernetes.Interface) kubernetes.Interface {
		return slowDeletes{c, executorTakes, func() { answered.Add(1) }}
	})
	if err != nil {
		return nil, err
	}
	g, err := watchGrowth()
	if err != nil {
		return nil, err
	}
	w := startWatch()
	if err := o.taint(r, coreTaint(goKey)); err != nil {
		return nil, err
	}
	return grown(r, w, g, &answered)
}

// resetPeak gives free memory back, makes the present size the peak, and returns it.
func resetPeak() (float64, error) {
	freeMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return 0, err
	}
	return memoryOf("VmRSS")
}

// memoryOf reads one of the process's sizes, in bytes.
func memoryOf(field string) (float64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return float64(kb) * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", field)
}

// openFile is the folder of a data file with so many open evictions, made once.
func openFile(r *run1) (string, error) {
	dir := filepath.Join(r.dir, fmt.Sprintf("open-%d", r.size))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	made := dir + ".part"
	_, err := decide(r, openBolt(made))
	return dir, errors.Join(err, os.Rename(made, dir))
}

// restartOurs opens and loads a data file until the engine serves.
func restartOurs(r *run1) (figures, error) {
	dir, err := openFile(r)
	if err != nil {
		return nil, err
	}
	freeMemory()
	w := startWatch()
	o, err := start(r, openBolt(dir))
	if err != nil {
		return nil, err
	}
	defer o.stop()
	got := w.stop(r.size)
	return got, o.expect(r, engine.StateWaiting, r.size)
}

// frame is what stands before each record of the store.
const frame = 6

// restartRaw walks the same file, decodes each record and puts it into a map.
func restartRaw(r *run1) (figures, error) {
	dir, err := openFile(r)
	if err != nil {
		return nil, err
	}
	freeMemory()
	w := startWatch()
	open := map[string]*storev1.EvictionRecord{}
	err = openEvictions(filepath.Join(dir, "reprieve.db"), func(_, v []byte) error {
		m := &storev1.EvictionRecord{}
		if err := proto.Unmarshal(v[frame:], m); err != nil {
			return err
		}
		open[m.GetUid()+string(m.GetUidBytes())] = m
		return nil
	})
	got := w.stop(r.size)
	if err == nil && len(open) != r.size {
		err = fmt.Errorf("the file has %d evictions, want %d", len(open), r.size)
	}
	return got, err
}
