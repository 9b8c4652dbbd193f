//go:build crash

package crash

import (
	"fmt"
	"sync"
	"testing"
	"time"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	stormNodes = 1000
	stormPods  = 100 // a node
	stormSteps = 20  // messages in which all nodes change, within a second
	stormRate  = 50
	stormBurst = 100
)

// wave taints or untaints all nodes within a second and returns when each was sent and acknowledged. then is called for
// each step that is acknowledged.
func wave(t *testing.T, b *bulk, tainted bool, then func(step int)) (sent, acked [stormNodes]time.Time) {
	t.Helper()
	const share = stormNodes / stormSteps
	var seqs [stormSteps]uint64
	var reading sync.WaitGroup
	ready := make(chan int, stormSteps)
	reading.Go(func() {
		for k := range ready {
			if err := b.await(seqs[k]); err != nil {
				t.Errorf("message %d of the wave: %v", k, err)
				return
			}
			for n := k * share; n < (k+1)*share; n++ {
				acked[n] = time.Now()
			}
			then(k)
		}
	})
	began := time.Now()
	for k := range stormSteps {
		var events []*reprievev1.Event
		for n := k * share; n < (k+1)*share; n++ {
			events = append(events, b.node(n, tainted))
			sent[n] = time.Now()
		}
		seq, err := b.batch(events...)
		if err != nil {
			t.Fatal(err)
		}
		seqs[k] = seq
		ready <- k
		rest(t.Context(), time.Until(began.Add(time.Duration(k+1)*time.Second/stormSteps)))
	}
	close(ready)
	reading.Wait()
	return sent, acked
}

// TestStorm taints a thousand nodes within a second and lifts the taints five seconds later, beside a small cluster.
func TestStorm(t *testing.T) {
	p := newProgram(t, build(t, moduleRoot(t)), fmt.Sprintf("adopt: enforce\ndefaults:\n  rate: {per_second: %d, burst: %d}\n%s", stormRate, stormBurst, stormPolicy))
	l := p.start("", 0, 0)
	defer l.kill()
	if err := p.ready(l); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	feeds := map[string]*bulk{}
	for name, s := range map[string]size{
		"storm":  {stormNodes, stormPods, 0, func(int, int) int { return -1 }},
		"beside": {10, 20, 0, func(n, i int) int { return (n*20 + i) % 10 }},
	} {
		b, err := openBulk(ctx, l.conn, name, false)
		if err != nil {
			t.Fatal(err)
		}
		end, err := b.list(s)
		if err == nil {
			err = b.await(end)
		}
		if err != nil {
			t.Fatal(err)
		}
		feeds[name] = b
	}
	h := newHands()
	for name, b := range feeds {
		go b.beat(ctx)
		if err := h.work(ctx, l.conn, &reprievev1.ExecutorHello{ExecutorId: "x-" + name, Clusters: []string{name}, Capacity: 50}, 50*time.Millisecond,
			func(c string) *bulk { return feeds[c] }); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 10 {
		if _, err := feeds["beside"].batch(feeds["beside"].node(n, true)); err != nil {
			t.Fatal(err)
		}
	}
	tainted, _ := wave(t, feeds["storm"], true, func(int) {})
	rest(ctx, time.Until(tainted[0].Add(5*time.Second)))
	lifting, lifted := wave(t, feeds["storm"], false, func(step int) { h.fence("x-storm", step) })
	took := time.Since(lifting[0])
	eventually(t, 30*time.Second, "the small cluster's evictions", func() bool { return len(h.of(func(c string) bool { return c == "beside" })) >= 200 })
	judgeStorm(t, l, h, tainted, lifted)
	t.Logf("storm: %s\nlifted and acknowledged in %s\nbeside it: %s", lateness(t, h.of(func(c string) bool { return c == "storm" })), took.Round(time.Millisecond),
		onTime(t, h.of(func(c string) bool { return c == "beside" })))
}

// judgeStorm checks that what was sent had to be, and that nothing is left.
func judgeStorm(t *testing.T, l *life, h *hands, tainted, lifted [stormNodes]time.Time) {
	t.Helper()
	eventually(t, time.Minute, "the fences are back", func() bool { return h.fences() == stormSteps })
	orders := h.of(func(c string) bool { return c == "storm" })
	var last time.Duration = -time.Hour
	for _, o := range orders {
		var n int
		if _, err := fmt.Sscanf(o.pod.GetNode(), "n-%d", &n); err != nil {
			t.Fatal(err)
		}
		after := o.at.Sub(lifted[n])
		last = max(last, after)
		if o.at.Before(tainted[n]) {
			t.Errorf("I3: %s was sent before its taint", o.pod.GetUid())
		}
		if h.tooLate(&o, n/(stormNodes/stormSteps)) {
			t.Errorf("I7: %s was sent after the end of its taint was acknowledged; it came %s after that", o.pod.GetUid(), after)
		}
	}
	span := lifted[stormNodes-1].Sub(tainted[0])
	if most := stormBurst + int(span.Seconds()+1)*stormRate; len(orders) > most {
		t.Errorf("I8: %d orders in %s are more than burst and rate allow, %d", len(orders), span, most)
	}
	query := reprievev1.NewQueryServiceClient(l.conn)
	eventually(t, 2*time.Minute, "nothing is open any more", func() bool {
		r, err := query.ListEvictions(t.Context(), &reprievev1.ListEvictionsRequest{Cluster: "storm", PageSize: 10, States: []reprievev1.EvictionState{
			reprievev1.EvictionState_EVICTION_STATE_WAITING, reprievev1.EvictionState_EVICTION_STATE_DUE, reprievev1.EvictionState_EVICTION_STATE_DELIVERED,
			reprievev1.EvictionState_EVICTION_STATE_RECALLING, reprievev1.EvictionState_EVICTION_STATE_CONFIRMING,
		}})
		return err == nil && len(r.GetEvictions()) == 0
	})
	t.Logf("%d of %d pods were sent, the last order came %s before the end of its taint was acknowledged; the rest is cancelled", len(orders), stormNodes*stormPods, -last)
}

// stormPolicy are policy fields besides the rate.
const stormPolicy = "  disable_blast_radius: true\n"
