//go:build crash

package crash

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

var million = flag.Bool("million", false, "run TestMillionPods")

const bulkTaint = "bulk.test/outage"

// bulk is a feed of one large cluster.
type bulk struct {
	stream reprievev1.FeedService_FeedClient
	name   string
	acks   chan uint64 // of messages; closed when the stream has ended

	mu  sync.Mutex // guards seq and the order of messages
	seq uint64
}

// openBulk opens a feed and reads its acknowledgements, or never, if it is deaf.
func openBulk(ctx context.Context, conn *grpc.ClientConn, name string, deaf bool) (*bulk, error) {
	stream, err := reprievev1.NewFeedServiceClient(conn).Feed(ctx)
	if err != nil {
		return nil, err
	}
	b := &bulk{stream: stream, name: name, acks: make(chan uint64, 1<<16)}
	if _, err := b.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Hello{Hello: &reprievev1.FeedHello{Cluster: name, ClusterUid: "uid-" + name, FeederId: "f"}}}); err != nil {
		return nil, err
	}
	if !deaf {
		go func() {
			defer close(b.acks)
			for {
				m, err := stream.Recv()
				if err != nil {
					return
				}
				if a := m.GetAck(); a != nil {
					b.acks <- a.GetSequence()
				}
			}
		}()
	}
	return b, nil
}

func (b *bulk) send(m *reprievev1.FeedRequest) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seq++
	m.Sequence = b.seq
	return b.seq, b.stream.Send(m)
}

func (b *bulk) batch(events ...*reprievev1.Event) (uint64, error) {
	return b.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Batch{Batch: &reprievev1.Batch{Events: events}}})
}

// await waits until a message is acknowledged.
func (b *bulk) await(seq uint64) error {
	for a := range b.acks {
		if a >= seq {
			return nil
		}
	}
	return io.ErrUnexpectedEOF
}

func (b *bulk) node(n int, tainted bool) *reprievev1.Event {
	o := &reprievev1.Node{Name: nodeName(n), Uid: "uid-" + nodeName(n)}
	if tainted {
		o.Taints = []*reprievev1.Taint{{Key: bulkTaint, Effect: "NoExecute"}}
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Node{Node: o}}
}

// pod is the ith pod of a node; a wait below zero tolerates nothing.
func (b *bulk) pod(n, i, wait int) *reprievev1.Event {
	name := fmt.Sprintf("p-%d-%d", n, i)
	o := &reprievev1.Pod{Namespace: "default", Name: name, Uid: b.name + "-" + name, NodeName: nodeName(n), Phase: "Running"}
	if wait >= 0 {
		o.Tolerations = []*reprievev1.Toleration{{Key: bulkTaint, Operator: "Exists", Effect: "NoExecute", TolerationSeconds: proto.Int64(int64(wait))}}
	}
	return &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_Pod{Pod: o}}
}

// size is a cluster: tainted nodes are the first ones.
type size struct {
	nodes, pods, tainted int
	wait                 func(n, i int) int
}

// list sends the whole list and returns the sequence of its end.
func (b *bulk) list(s size) (uint64, error) {
	if _, err := b.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncBegin{SyncBegin: &reprievev1.SyncBegin{}}}); err != nil {
		return 0, err
	}
	var events []*reprievev1.Event
	flush := func(at int) error {
		if len(events) <= at {
			return nil
		}
		_, err := b.batch(events...)
		events = nil
		return err
	}
	for n := range s.nodes {
		events = append(events, b.node(n, n < s.tainted))
		for i := range s.pods {
			events = append(events, b.pod(n, i, s.wait(n, i)))
			if err := flush(4999); err != nil {
				return 0, err
			}
		}
	}
	if err := flush(0); err != nil {
		return 0, err
	}
	return b.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_SyncEnd{SyncEnd: &reprievev1.SyncEnd{}}})
}

// beat keeps a feed alive until ctx ends.
func (b *bulk) beat(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := b.send(&reprievev1.FeedRequest{Message: &reprievev1.FeedRequest_Heartbeat{Heartbeat: &reprievev1.Heartbeat{}}}); err != nil {
			return
		}
		rest(ctx, 2*time.Second)
	}
}

// arrived is an order as it came.
type arrived struct {
	at, due time.Time
	pod     *reprievev1.EvictPod
	// place is how many had come before it.
	place int
}

// hands answers orders after a while, and tells the feeds.
type hands struct {
	mu     sync.Mutex // guards what follows
	orders []arrived
	// passed is how many orders had come when a fence came back, by its token.
	passed map[string]int
	// say sends an answer with an invented token, by executor.
	say map[string]func(token string)
}

func newHands() *hands { return &hands{passed: map[string]int{}, say: map[string]func(string){}} }

// fence has an executor send a fence: what comes behind its refusal was sent by a service that knew all that is
// acknowledged by now.
func (h *hands) fence(executor string, n int) {
	h.mu.Lock()
	say := h.say[executor]
	h.mu.Unlock()
	say(fmt.Sprint(fencePrefix, n))
}

// fences is how many fences have come back.
func (h *hands) fences() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.passed)
}

// tooLate reports whether an order came behind a fence.
func (h *hands) tooLate(o *arrived, n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, back := h.passed[fmt.Sprint(fencePrefix, n)]
	return back && o.place >= before
}

// work executes for clusters until ctx ends; mute never answers.
func (h *hands) work(ctx context.Context, conn *grpc.ClientConn, hello *reprievev1.ExecutorHello, after time.Duration, feed func(string) *bulk) error {
	stream, err := reprievev1.NewEvictionServiceClient(conn).Evict(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards sends
	if err := stream.Send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	h.mu.Lock()
	h.say[hello.GetExecutorId()] = func(token string) {
		mu.Lock()
		defer mu.Unlock()
		_ = stream.Send(result(token, reprievev1.Outcome_OUTCOME_FAILED))
	}
	h.mu.Unlock()
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if token := m.GetResultAck().GetToken(); strings.HasPrefix(token, fencePrefix) {
				h.mu.Lock()
				h.passed[token] = len(h.orders)
				h.mu.Unlock()
			}
			o := m.GetOrder()
			if o == nil {
				continue
			}
			p := o.GetEvictPod()
			h.mu.Lock()
			h.orders = append(h.orders, arrived{time.Now(), p.GetDueTime().AsTime(), p, len(h.orders)})
			h.mu.Unlock()
			if feed == nil {
				continue
			}
			go func() {
				rest(ctx, after)
				mu.Lock()
				_ = stream.Send(result(o.GetToken(), reprievev1.Outcome_OUTCOME_EVICTED))
				mu.Unlock()
				if b := feed(p.GetCluster()); b != nil {
					_, _ = b.batch(&reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_DELETE, Object: &reprievev1.Event_Pod{Pod: &reprievev1.Pod{
						Namespace: p.GetNamespace(), Name: p.GetName(), Uid: p.GetUid(),
					}}})
				}
			}()
		}
	}()
	return nil
}

// of are the orders of the clusters that match.
func (h *hands) of(match func(cluster string) bool) []arrived {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []arrived
	for _, o := range h.orders {
		if match(o.pod.GetCluster()) {
			out = append(out, o)
		}
	}
	return out
}

// lateness tells how late orders came, and fails if one was early.
func lateness(t *testing.T, orders []arrived) string {
	t.Helper()
	late := lates(t, orders)
	n := len(late)
	return fmt.Sprintf("%d orders, late by %s (median), %s (p99), %s (worst)", n, late[n/2].Round(time.Microsecond), late[n*99/100].Round(time.Microsecond), late[n-1].Round(time.Microsecond))
}

// besideWithin is how late an order may be of a cluster that is not the one in trouble: both share a disk, on a machine
// that builds other things meanwhile.
const besideWithin = 3 * time.Second

// onTime fails if what others do delays a cluster's orders.
func onTime(t *testing.T, orders []arrived) string {
	t.Helper()
	if late := lates(t, orders); late[len(late)-1] > besideWithin {
		t.Errorf("an order of a cluster beside came %s late", late[len(late)-1])
	}
	return lateness(t, orders)
}

// lates are how late orders came, in order.
func lates(t *testing.T, orders []arrived) []time.Duration {
	t.Helper()
	var late []time.Duration
	for _, o := range orders {
		d := o.at.Sub(o.due)
		if d < -skew {
			t.Errorf("I3: %s came %s early", o.pod.GetUid(), -d)
		}
		late = append(late, d)
	}
	if len(late) == 0 {
		t.Fatal("no orders")
	}
	slices.Sort(late)
	return late
}

// eventually polls until what is asked for is so.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	until := time.Now().Add(within)
	for !ok() {
		if time.Now().After(until) {
			t.Fatalf("not in %s: %s", within, what)
		}
		rest(t.Context(), 20*time.Millisecond)
	}
}

// dial connects with a small window, as a peer that does not read holds its sender back.
func dialSmall(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const (
	fleetClusters = 100
	fleetNodes    = 10
	fleetPods     = 100 // a node
	fleetDue      = 5   // pods a cluster that fall due after the list
)

// relistAll feeds all clusters at once and returns when all are synced.
func relistAll(ctx context.Context, t *testing.T, l *life, feeds *sync.Map) time.Duration {
	t.Helper()
	began := time.Now()
	group := errgroup.Group{}
	for c := range fleetClusters {
		group.Go(func() error {
			b, err := openBulk(ctx, l.conn, fmt.Sprintf("c-%d", c), false)
			if err != nil {
				return err
			}
			feeds.Store(b.name, b)
			end, err := b.list(size{fleetNodes, fleetPods, 1, func(_, i int) int {
				if i < fleetDue {
					return 3 + i
				}
				return 3600
			}})
			if err != nil {
				return err
			}
			if err := b.await(end); err != nil {
				return err
			}
			go b.beat(ctx)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// TestAllClustersListAgain kills a service of a hundred clusters, and has all of them list again at once, beside a feed
// that reads nothing and an executor that answers nothing.
func TestAllClustersListAgain(t *testing.T) {
	p := newProgram(t, build(t, moduleRoot(t)), "adopt: enforce\n")
	p.admin = freePort(t)
	l := p.start("", 0, 0)
	if err := p.ready(l); err != nil {
		t.Fatal(err)
	}
	idle, empty := p.metric(t, "go_goroutines"), l.rss("VmRSS")
	ctx, cancel := context.WithCancel(t.Context())
	first := relistAll(ctx, t, l, &sync.Map{})
	eventually(t, time.Minute, "goroutines of all feeds", func() bool { return p.metric(t, "go_goroutines") > idle })
	busy, before := p.metric(t, "go_goroutines"), l.rss("VmRSS")
	l.kill()
	cancel()

	l = p.start("", 0, 0)
	defer l.kill()
	if err := p.ready(l); err != nil {
		t.Fatal(err)
	}
	// Each cluster that was loaded has a dispatcher, fed or not.
	loaded := p.metric(t, "go_goroutines")
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	var feeds sync.Map
	feed := func(name string) *bulk {
		b, _ := feeds.Load(name)
		if b == nil {
			return nil
		}
		return b.(*bulk)
	}
	h := newHands()
	badPeers(ctx, t, p, l, h)
	again := relistAll(ctx, t, l, &feeds)
	synced := p.metric(t, "go_goroutines")
	var clusters []string
	for c := range fleetClusters {
		clusters = append(clusters, fmt.Sprintf("c-%d", c))
	}
	if err := h.work(ctx, l.conn, &reprievev1.ExecutorHello{ExecutorId: "x", Clusters: clusters, Capacity: 50}, 0, feed); err != nil {
		t.Fatal(err)
	}
	good := func(c string) bool { return c != "mute" && c != "deaf" }
	eventually(t, time.Minute, "orders of all clusters", func() bool { return len(h.of(good)) >= fleetClusters*fleetDue })
	report := onTime(t, h.of(good))
	peak, after := l.rss("VmHWM"), l.rss("VmRSS")
	cancel()
	eventually(t, time.Minute, fmt.Sprintf("goroutines are gone with their streams: %d loaded, %d fed, and now %d", loaded, synced, p.metric(t, "go_goroutines")), func() bool { return p.metric(t, "go_goroutines") <= loaded+30 })
	t.Logf("%d clusters of %d pods: all listed in %s, again after SIGKILL in %s; resident %d MiB with nothing, %d MiB before the kill, at most %d MiB and then %d MiB after it; goroutines %d with nothing, %d before, %d after the restart, %d fed again, %d when all had gone; beside a feed that reads nothing and an executor that answers nothing: %s",
		fleetClusters, fleetNodes*fleetPods, first.Round(time.Millisecond), again.Round(time.Millisecond), empty>>10, before>>10, peak>>10, after>>10,
		idle, busy, loaded, synced, p.metric(t, "go_goroutines"), report)
}

// badPeers are a feed that reads nothing of what it is told, and an executor that answers nothing.
func badPeers(ctx context.Context, t *testing.T, p *program, l *life, h *hands) {
	t.Helper()
	deaf, err := openBulk(ctx, dialSmall(t, p.addr), "deaf", true)
	if err != nil {
		t.Fatal(err)
	}
	none := func(int, int) int { return -1 }
	if _, err := deaf.list(size{10, 100, 10, none}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := deaf.batch(deaf.node(n%10, n%2 == 0)); err != nil {
				return
			}
			rest(ctx, time.Millisecond)
		}
	}()
	mute, err := openBulk(ctx, l.conn, "mute", false)
	if err != nil {
		t.Fatal(err)
	}
	end, err := mute.list(size{10, 100, 10, none})
	if err == nil {
		err = mute.await(end)
	}
	if err != nil {
		t.Fatal(err)
	}
	go mute.beat(ctx)
	if err := h.work(ctx, l.conn, &reprievev1.ExecutorHello{ExecutorId: "mute", Clusters: []string{"mute", "deaf"}, Capacity: 100}, 0, nil); err != nil {
		t.Fatal(err)
	}
}

// TestMillionPods feeds one cluster of a million pods and measures what they take.
func TestMillionPods(t *testing.T) {
	if !*million {
		return
	}
	const nodes, pods = 10_000, 100
	p := newProgram(t, build(t, moduleRoot(t)), "adopt: enforce\n")
	l := p.start("", 0, 0)
	defer l.kill()
	if err := p.ready(l); err != nil {
		t.Fatal(err)
	}
	before, began := l.rss("VmRSS"), time.Now()
	b, err := openBulk(t.Context(), l.conn, "large", false)
	if err != nil {
		t.Fatal(err)
	}
	end, err := b.list(size{nodes, pods, 0, func(int, int) int { return 300 }})
	if err == nil {
		err = b.await(end)
	}
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	after, peak := l.rss("VmRSS"), l.rss("VmHWM")
	t.Logf("%d pods on %d nodes listed in %s; resident %d MiB before, %d MiB after, at most %d MiB: %d bytes a pod", nodes*pods, nodes, took.Round(time.Millisecond), before>>10, after>>10, peak>>10, (after-before)*1024/(nodes*pods))
}
