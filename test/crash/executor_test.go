//go:build crash

package crash

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// umpire is a judge as the executor knows it, and the cluster that its orders are carried out in.
type umpire interface {
	// recovered: a life has begun, and nobody feeds it yet. relist: from here on f does. ended: it was killed then, and
	// all of its streams have ended.
	recovered(ctx context.Context, l *life)
	relist(f *feeder)
	ended(at time.Time)
	// connected: the executor has another stream. forget: it has lost its orders.
	connected()
	forget()
	// ordered judges an order as it arrives, answered what became of its answer.
	ordered(o *order, m *reprievev1.Order)
	answered(o *order, accepted bool)
	// carryOut does what an order says and returns the answer; unspecified for none. Only with faulty may it fail.
	carryOut(o *order, faulty bool, rng *rand.Rand) reprievev1.Outcome
	violation(format string, args ...any)
	// fences is how many fences were asked for.
	fences() uint64
}

// executor carries out orders by taking pods out of the world. It outlives the service's lives, with the tokens that
// it has not had an acknowledgement for.
type executor struct {
	j       umpire
	cluster string
	// nodes: it takes orders for nodes too.
	nodes bool

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	calm   bool // answers all, and well
	stream reprievev1.EvictionService_EvictClient
	// held are the orders without an acknowledged answer, by token.
	held map[string]*order
	// spent are tokens whose answers were acknowledged.
	spent []string
	// passed is the last fence that came back; asked says that one is under way.
	passed uint64
	asked  bool
	// habit is how it behaves.
	habit habit
	// ended is closed when the stream has ended, nil while there was none; cancel ends it.
	ended  chan struct{}
	cancel context.CancelFunc
}

// habit is how an executor behaves.
type habit struct {
	silent bool
	// slow is how long it takes for each order.
	slow time.Duration
	// twice has it answer everything twice, old with spent tokens besides.
	twice, old bool
}

// behave changes the habit.
func (x *executor) behave(h habit) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.habit = h
}

// soothe says whether it answers all orders, and well.
func (x *executor) soothe(calm bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calm = calm
}

// vanish ends the stream without a word. With forget its orders are nobody's.
func (x *executor) vanish(forget bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancel()
	if forget {
		x.held = map[string]*order{}
		x.j.forget()
	}
}

// end ends the stream, if there is one, and waits until nothing of it is heard any more.
func (x *executor) end() {
	x.mu.Lock()
	cancel, ended := x.cancel, x.ended
	x.mu.Unlock()
	if ended != nil {
		cancel()
		<-ended
	}
}

// order is an order that was received.
type order struct {
	token, uid, eviction string
	attempt              uint32
	received             time.Time
	deadline             time.Time
	// doubtful: it may have been given its time before the service stood still.
	doubtful bool
	// passed is the last fence that had come back before it.
	passed uint64
	// update is what a node must look like; nil in an order for a pod. begun: it was carried out, at least in part.
	update *reprievev1.UpdateNode
	begun  bool
	// answer is the outcome sent last; answers counts its sendings.
	answer  reprievev1.Outcome
	answers int
}

// connect says hello with the tokens held, or forgets them, as an executor that was itself restarted would.
func (x *executor) connect(ctx context.Context, l *life) error {
	x.end()
	ctx, cancel := context.WithCancel(ctx)
	stream, err := reprievev1.NewEvictionServiceClient(l.conn).Evict(ctx)
	if err != nil {
		cancel()
		return err
	}
	ended := make(chan struct{})
	x.mu.Lock()
	x.cancel = cancel
	hello := &reprievev1.ExecutorHello{ExecutorId: "x", Clusters: []string{x.cluster}, Capacity: 50, NodeOrders: x.nodes}
	if x.rng.IntN(4) == 0 {
		x.held = map[string]*order{}
		x.j.forget()
	}
	for token := range x.held {
		hello.HeldTokens = append(hello.HeldTokens, token)
	}
	x.mu.Unlock()
	if err := stream.Send(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Hello{Hello: hello}}); err != nil {
		cancel()
		return err
	}
	if _, err := stream.Recv(); err != nil {
		cancel()
		return err
	}
	x.j.connected()
	x.mu.Lock()
	x.stream, x.ended, x.asked = stream, ended, false
	for _, o := range x.held {
		// What was answered is answered again; the rest gets its answer now.
		x.answerLocked(o, false)
	}
	x.fenceLocked()
	x.mu.Unlock()
	go func() {
		defer close(ended)
		defer cancel()
		x.receive(ctx, stream)
	}()
	return nil
}

func (x *executor) receive(ctx context.Context, stream reprievev1.EvictionService_EvictClient) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		switch m := m.GetMessage().(type) {
		case *reprievev1.EvictResponse_Order:
			x.order(ctx, m.Order)
		case *reprievev1.EvictResponse_Recall:
			x.mu.Lock()
			if o := x.held[m.Recall.GetToken()]; o != nil && o.answers == 0 && !o.begun {
				o.answer = reprievev1.Outcome_OUTCOME_RECALLED
				x.sendLocked(o)
			}
			x.mu.Unlock()
		case *reprievev1.EvictResponse_ResultAck:
			x.acknowledged(m.ResultAck)
		}
	}
}

func (x *executor) order(ctx context.Context, m *reprievev1.Order) {
	now := time.Now()
	p := m.GetEvictPod()
	u := m.GetUpdateNode()
	o := &order{token: m.GetToken(), uid: cmp.Or(p.GetUid(), u.GetUid()), update: u, eviction: m.GetEvictionId(), attempt: m.GetAttempt(), received: now, deadline: now.Add(m.GetDeadlineIn().AsDuration())}
	x.mu.Lock()
	o.passed = x.passed
	x.mu.Unlock()
	x.j.ordered(o, m)
	x.mu.Lock()
	x.held[o.token] = o
	delay := time.Duration(x.rng.IntN(60)) * time.Millisecond
	silent := !x.calm && x.rng.IntN(40) == 0
	probe := strings.HasPrefix(p.GetName(), probePrefix)
	if probe {
		silent = false
	}
	if x.habit.slow > 0 {
		delay = x.habit.slow
	}
	silent = silent || x.habit.silent
	x.mu.Unlock()
	if silent {
		return
	}
	go func() {
		timer, cancel := context.WithTimeout(ctx, delay)
		defer cancel()
		<-timer.Done()
		if ctx.Err() != nil {
			return
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.held[o.token] == o && o.answers == 0 {
			x.answerLocked(o, !probe)
		}
	}()
}

// answerLocked gives an order its answer, or the one it had. mu is held.
func (x *executor) answerLocked(o *order, fresh bool) {
	if o.answers == 0 {
		o.begun = true
		o.answer = x.j.carryOut(o, fresh && !x.calm, x.rng)
	}
	if o.answer != reprievev1.Outcome_OUTCOME_UNSPECIFIED {
		x.sendLocked(o)
	}
}

func (x *executor) sendLocked(o *order) {
	o.answers++
	_ = x.stream.Send(result(o.token, o.answer))
	if x.habit.twice {
		_ = x.stream.Send(result(o.token, o.answer))
	}
	if x.rng.IntN(10) > 0 && !x.habit.old {
		return
	}
	// Tokens that are not live: one that is spent, and one that never was.
	if n := len(x.spent); n > 0 {
		_ = x.stream.Send(result(x.spent[x.rng.IntN(n)], reprievev1.Outcome_OUTCOME_EVICTED))
	}
	_ = x.stream.Send(result(fmt.Sprintf("made-up-%d", x.rng.Uint64()), reprievev1.Outcome_OUTCOME_EVICTED))
}

func result(token string, outcome reprievev1.Outcome) *reprievev1.EvictRequest {
	return &reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Result{Result: &reprievev1.Result{Token: token, Outcome: outcome}}}
}

// fencePrefix begins the tokens of fences.
const fencePrefix = "fence-"

// fence sends an answer with a token that never was. It is refused in the order of the stream: what comes after that was
// sent by a service which knew all that had been acknowledged when the fence was made.
func (x *executor) fence() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fenceLocked()
}

// fenceLocked sends a fence unless one is under way: then the next is sent when that has come back. mu is held.
func (x *executor) fenceLocked() {
	n := x.j.fences()
	if x.stream == nil || x.asked || n == x.passed {
		return
	}
	x.asked = true
	_ = x.stream.Send(result(fmt.Sprint(fencePrefix, n), reprievev1.Outcome_OUTCOME_FAILED))
}

func (x *executor) acknowledged(a *reprievev1.ResultAck) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if number, ok := strings.CutPrefix(a.GetToken(), fencePrefix); ok {
		x.passed, _ = strconv.ParseUint(number, 10, 64)
		x.asked = false
		x.fenceLocked()
		return
	}
	o := x.held[a.GetToken()]
	accepted := a.GetDisposition() == reprievev1.ResultAck_DISPOSITION_ACCEPTED
	if o == nil {
		if accepted {
			x.j.violation("I6: token %q was not live and its answer was accepted", a.GetToken())
		}
		return
	}
	delete(x.held, o.token)
	x.spent = append(x.spent, o.token)
	x.j.answered(o, accepted)
}
