package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/fault"
	"github.com/reprieve-dev/reprieve/store/mem"
)

// answersHeld has one order out, holds the disk, and gives two answers and an
// extension to it, which the shard takes while nothing reaches the disk.
type answersHeld struct {
	*bench
	plan    *fault.Script
	gate    *fault.Gate
	token   string
	replies chan string
}

func holdAnswers(t *testing.T) *answersHeld {
	a := &answersHeld{plan: fault.NewScript(), gate: fault.NewGate(), replies: make(chan string, 4)}
	a.bench = newBench(t, fault.New(mem.New().Open, a.plan))
	t.Cleanup(a.gate.Release)
	x := a.attach("x", 1)
	a.list("a")
	a.advance(10 * time.Second)
	a.token = a.sink.take()[0].Token
	a.plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.Block, Gate: a.gate}})
	must(t, a.feed.Batch(t.Context(), 4, []engine.Event{upsertNode("other", &mNode{uid: "other", taints: []mTaint{{key: "x"}}})}))
	<-a.gate.Reached()
	for _, name := range []string{"first", "second"} {
		x.Result(engine.Result{Token: a.token, Outcome: engine.OutcomeFailed}, func(ok bool) {
			a.replies <- map[bool]string{true: name + " taken", false: name + " unknown"}[ok]
		})
	}
	x.Extend(a.token, func(time.Duration, bool) { a.replies <- "extension refused" })
	// A query comes after what the shards have taken.
	_, err := a.eng.Nodes(t.Context(), cluster, true)
	must(t, err)
	return a
}

func (a *answersHeld) said() (out []string) {
	for {
		select {
		case r := <-a.replies:
			out = append(out, r)
		default:
			return out
		}
	}
}

// TestUnknownWaitsForTheEnd gives an order a second answer while the first is on
// its way to the disk: none has a reply before the first is on it (I6).
func TestUnknownWaitsForTheEnd(t *testing.T) {
	a := holdAnswers(t)
	if got := a.said(); len(got) > 0 {
		t.Fatalf("I6: before the end of the delivery was on disk: %v", got)
	}
	a.gate.Release()
	a.settle()
	if got, want := a.said(), []string{"first taken", "second unknown", "extension refused"}; !slices.Equal(got, want) {
		t.Fatalf("I6: replies %v, want %v", got, want)
	}
}

// TestHoldOfWhatIsOnItsWayToTheDisk looks at an eviction whose failed order is: it
// backs off, whoever asks first.
func TestHoldOfWhatIsOnItsWayToTheDisk(t *testing.T) {
	a := holdAnswers(t)
	if e := a.only(); e.State != engine.StateDue || e.Hold != engine.HoldBackingOff {
		t.Errorf("state %s, hold %s, want one that is due and backs off", e.State, e.Hold)
	}
}

// TestNoUnknownOfWhatIsLiveAgain is the same on a disk that fails with the first
// answer: the delivery is live when the store is open again, so nobody may have
// been told that it is not, and the answer is taken then (I1, I6).
func TestNoUnknownOfWhatIsLiveAgain(t *testing.T) {
	a := holdAnswers(t)
	a.plan.Add(fault.Step{Op: fault.Commit, Fault: fault.Fault{Effect: fault.NoSpace}})
	a.gate.Release()
	waitReopen(t, a.bench)
	if got := a.said(); len(got) > 0 {
		t.Fatalf("I6: told of a delivery whose end never reached the disk: %v", got)
	}
	x := a.attach("x", 1, a.token)
	if e := a.only(); e.Delivery == nil || e.Delivery.Token != a.token {
		t.Fatalf("I2: after the store was opened again: %+v", e)
	}
	if !a.answer(x, a.token, engine.OutcomeFailed) {
		t.Fatal("I1: the answer to a live delivery was not taken")
	}
}

// TestEndedOrderTakesNoCredit comes back with the token of an order whose end is
// on its way to the disk: it is refused when that is there, and leaves its place free.
func TestEndedOrderTakesNoCredit(t *testing.T) {
	a := holdAnswers(t)
	x, err := a.eng.AttachExecutor(engine.ExecutorHello{ID: "x", Clusters: []string{"*"}, Capacity: 1, HeldTokens: []string{a.token}}, a.sink)
	must(t, err)
	x.Result(engine.Result{Token: a.token, Outcome: engine.OutcomeEvicted}, func(ok bool) {
		a.replies <- map[bool]string{true: "third taken", false: "third unknown"}[ok]
	})
	a.gate.Release()
	a.settle()
	if got := a.said(); !slices.Contains(got, "third unknown") {
		t.Fatalf("I6: replies %v", got)
	}
	st, err := a.eng.Cluster(t.Context(), cluster)
	if err != nil || len(st.Executors) != 1 || st.Executors[0].Outstanding != 0 {
		t.Fatalf("executors %+v, %v; want none out", st.Executors, err)
	}
	a.advance(10 * time.Second)
	if n := len(a.sink.take()); n != 1 {
		t.Fatalf("%d orders after the back-off, want one in the free place", n)
	}
}
