package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// desk is a watch of leases whose reports a test reads one by one.
type desk struct {
	*leaseWatch
	t       *testing.T
	api     *api
	clock   *clock.Virtual
	reports []*reprievev1.NodeLeaseRenewals
}

// newDesk returns a watch that has had its first list.
func newDesk(t *testing.T, a *api) *desk {
	d := &desk{t: t, api: a, clock: clock.NewVirtual(epoch)}
	d.leaseWatch = newLeaseWatch(a.kube().CoordinationV1().RESTClient(), d.clock, quiet(), func(e *reprievev1.Event) {
		d.reports = append(d.reports, e.GetLeaseRenewals())
	})
	// A machine that stands still is no API server that does not answer.
	d.timeout = time.Minute
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		d.follower.run(ctx)
	}()
	t.Cleanup(func() { <-done })
	d.await("the first list", d.store.listed)
	return d
}

// await polls what the reflector's goroutine is about to do.
func (d *desk) await(what string, cond func() bool) {
	d.t.Helper()
	for !cond() {
		if !pause(d.t.Context(), time.Millisecond) {
			d.t.Fatalf("never: %s", what)
		}
	}
}

// awaitRenewed waits until the watch shows a lease renewed at that time.
func (d *desk) awaitRenewed(node string, at time.Time) {
	d.t.Helper()
	d.await(node+" is renewed", func() bool { return d.store.renewedAt(node).Equal(at) })
}

// told are the names of the next report; none if there is none.
func (d *desk) told() (names []string, reported bool) {
	d.reports = nil
	d.tell(d.t.Context())
	for _, r := range d.reports {
		names = append(names, r.GetNodeNames()...)
		for i, at := range r.GetRenewTimes() {
			if was := d.store.renewedAt(r.GetNodeNames()[i]); !at.AsTime().Equal(was) {
				d.t.Errorf("%s is told to be renewed at %s, not %s", r.GetNodeNames()[i], at.AsTime(), was)
			}
		}
		if len(r.GetRenewTimes()) != len(r.GetNodeNames()) {
			d.t.Errorf("%d times of %d nodes", len(r.GetRenewTimes()), len(r.GetNodeNames()))
		}
	}
	return names, len(d.reports) > 0
}

func (d *desk) wantTold(names ...string) {
	d.t.Helper()
	got, ok := d.told()
	if !ok || !slices.Equal(got, names) {
		d.t.Fatalf("reported %v (%t), want %v", got, ok, names)
	}
}

func (d *desk) wantNothing(why string) {
	d.t.Helper()
	if got, ok := d.told(); ok {
		d.t.Fatalf("reported %v although %s", got, why)
	}
}

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// N1: what is reported is a change, whatever the node's clock says.
func TestReportsWhoRenewed(t *testing.T) {
	a := newAPI(t)
	a.put("leases", "", testLease("n1", at(-3600)))
	a.put("leases", "", testLease("n2", at(9999)))
	d := newDesk(t, a)
	d.wantTold()
	a.put("leases", "", testLease("n1", at(-3590)))
	a.put("leases", "", testLease("n2", at(1)))
	a.put("leases", "", testLease("new", at(0)))
	d.awaitRenewed("new", at(0))
	d.wantTold("n1", "n2", "new")
	d.wantTold()
	// Not a renewal.
	again := testLease("n1", at(-3590))
	again.Labels = map[string]string{"x": "y"}
	a.put("leases", "", again)
	a.put("leases", "DELETED", testLease("new", at(0)))
	d.awaitRenewed("new", time.Time{})
	d.wantTold()
}

// N8: while the watch is away nobody is said to be silent; who renewed meanwhile
// is told afterwards.
func TestNoReportsWhileTheWatchIsAway(t *testing.T) {
	a := newAPI(t)
	a.put("leases", "", testLease("n1", at(0)))
	a.put("leases", "", testLease("n2", at(0)))
	d := newDesk(t, a)
	d.wantTold()
	a.mu.Lock()
	a.down = true
	a.mu.Unlock()
	a.endWatches("leases")
	d.await("the watch has ended", func() bool { _, open := d.follower.quiet(); return !open })
	d.wantNothing("the watch is away")
	a.store("leases", "", testLease("n2", at(10)))
	a.mu.Lock()
	a.down = false
	a.mu.Unlock()
	d.await("a watch stands", func() bool { _, open := d.follower.quiet(); return open })
	a.lose("leases")
	a.until("a watch follows the one that was lost", func() bool { return len(a.watches["leases"]) == 2 })
	d.awaitRenewed("n2", at(10))
	d.await("a watch stands", func() bool { _, open := d.follower.quiet(); return open })
	d.wantTold("n2")
}

// N8: a live read that shows more than the watch stops the reports until the
// watch has caught up.
func TestNoReportsWhileTheWatchIsBehind(t *testing.T) {
	a := newAPI(t)
	a.put("leases", "", testLease("n1", at(0)))
	a.put("leases", "", testLease("n2", at(0)))
	d := newDesk(t, a)
	if silent, err := d.unrenewed(t.Context(), "n1", time.Time{}); err != nil || !silent {
		t.Fatalf("silent %t, %v", silent, err)
	}
	if silent, err := d.unrenewed(t.Context(), "without-lease", time.Time{}); err != nil || !silent {
		t.Fatalf("a node without a lease: silent %t, %v", silent, err)
	}
	d.wantTold()
	event, raw := a.store("leases", "", testLease("n1", at(10)))
	if silent, err := d.unrenewed(t.Context(), "n1", time.Time{}); err != nil || silent {
		t.Fatalf("silent %t, %v, although its lease was renewed", silent, err)
	}
	d.wantNothing("the watch is behind")
	d.clock.Set(epoch.Add(behindTime))
	if d.store.lags() {
		t.Errorf("begun anew after %s", behindTime)
	}
	d.clock.Set(epoch.Add(behindTime + time.Millisecond))
	if !d.store.lags() {
		t.Errorf("not begun anew after more than %s", behindTime)
	}
	a.send("leases", map[string]any{"type": event, "object": raw})
	d.awaitRenewed("n1", at(10))
	if silent, err := d.unrenewed(t.Context(), "n1", time.Time{}); err != nil || silent {
		t.Fatalf("silent %t, %v, although its renewal has not been reported", silent, err)
	}
	d.wantTold("n1")
	if silent, err := d.unrenewed(t.Context(), "n1", at(0)); err != nil || silent {
		t.Fatalf("silent %t, %v, although the order was made before the report", silent, err)
	}
	if silent, err := d.unrenewed(t.Context(), "n1", at(10)); err != nil || !silent {
		t.Fatalf("silent %t, %v, after the report", silent, err)
	}
	if d.store.lags() {
		t.Error("behind for ever")
	}
}

// N8: a quiet watch is looked into, before it is believed that all are silent.
func TestQuietWatchIsLookedInto(t *testing.T) {
	a := newAPI(t)
	a.put("leases", "", testLease("n1", at(0)))
	d := newDesk(t, a)
	const look = "GET " + leasesPath + "leases/n1"
	d.clock.Set(epoch.Add(leaseQuiet))
	d.wantTold()
	if n := a.count(look); n != 0 {
		t.Fatalf("looked %d times within %s", n, leaseQuiet)
	}
	d.clock.Set(epoch.Add(leaseQuiet + time.Millisecond))
	d.wantTold()
	d.wantTold()
	if n := a.count(look); n != 1 {
		t.Fatalf("looked %d times, want 1", n)
	}
	d.clock.Set(epoch.Add(3 * leaseQuiet))
	event, raw := a.store("leases", "", testLease("n1", at(10)))
	d.wantNothing("the live lease is newer")
	a.send("leases", map[string]any{"type": event, "object": raw})
	d.awaitRenewed("n1", at(10))
	d.wantTold("n1")
	d.clock.Set(epoch.Add(5 * leaseQuiet))
	a.mu.Lock()
	a.down = true
	a.mu.Unlock()
	d.wantNothing("the API server does not answer")
	a.mu.Lock()
	a.down = false
	a.mu.Unlock()
	d.wantTold()
}

// A watch that stays behind is begun anew, and its list shows what it did not.
func TestWatchThatStaysBehindIsBegunAnew(t *testing.T) {
	a := newAPI(t)
	a.put("leases", "", testLease("n1", at(0)))
	reports := make(chan []string, 100)
	clk := clock.NewVirtual(epoch)
	w := newLeaseWatch(a.kube().CoordinationV1().RESTClient(), clk, quiet(), func(e *reprievev1.Event) { reports <- e.GetLeaseRenewals().GetNodeNames() })
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	t.Cleanup(func() { <-done })
	if names := <-reports; len(names) != 0 {
		t.Fatalf("the first report has %v", names)
	}
	a.store("leases", "", testLease("n1", at(10)))
	if silent, err := w.unrenewed(t.Context(), "n1", time.Time{}); err != nil || silent {
		t.Fatalf("silent %t, %v", silent, err)
	}
	clk.Set(epoch.Add(behindTime + time.Millisecond))
	for names := range reports {
		if slices.Equal(names, []string{"n1"}) {
			break
		}
	}
}

// Leases are watched while the service wants them, and not otherwise.
func TestLeasesAreWatchedOnRequest(t *testing.T) {
	a := newAPI(t)
	a.put("leases", "", testLease("n1", at(0)))
	f := newFeed(t, a)
	f.list()
	f.watch()
	if f.source.leases() != nil || a.count("GET "+leasesPath) != 0 {
		t.Fatal("leases are watched although nobody wants them")
	}
	f.source.wantLeases(true)
	if e := <-f.events; e.GetLeaseRenewals() == nil || len(e.GetLeaseRenewals().GetNodeNames()) != 0 {
		t.Errorf("the first report is %v", e)
	}
	if silent, err := f.source.leases().unrenewed(t.Context(), "n1", time.Time{}); err != nil || !silent {
		t.Errorf("silent %t, %v", silent, err)
	}
	f.source.wantLeases(false)
	if _, err := f.source.leases().unrenewed(t.Context(), "n1", time.Time{}); err == nil {
		t.Error("a node is silent by leases that are not watched")
	}
	f.source.wantLeases(true)
	f.source.close()
	f.list()
	if f.source.leases() == nil {
		t.Error("a new stream does not watch leases any more")
	}
}
