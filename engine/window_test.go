package engine

import (
	"cmp"
	"slices"
	"testing"
	"time"
	"unique"

	"pgregory.net/rapid"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// windowRig has shards and a dispatcher whose messages the test carries.
type windowRig struct {
	core    *core
	d       *dispatcher
	link    *execLink
	leaving []*eviction // all that may leave
	granted []*eviction // permits, in the order in which they were given
}

func newWindowRig(t *rapid.T, shards int) *windowRig {
	opts := &Options{Clock: clock.NewVirtual(time.Unix(1_700_000_000, 0)), Shards: shards, Observer: noObserver{}}
	c := newCore(t.Context(), opts, nowhere{})
	policy := Policy{UnlimitedRate: true, Mode: ModeEnforce}
	opts.ClusterPolicy = func(string) PolicyPatch { return PolicyPatch{Policy: policy, Fields: PolicyRate | PolicyMode} }
	cl := c.addCluster(LoadedCluster{Record: ClusterRecord{Name: "c"}})
	for _, s := range c.shards {
		s.clusters["c"] = newShardCluster(cl, cl.conf)
	}
	r := &windowRig{core: c, d: cl.dispatcher, link: &execLink{}}
	r.d.links = []*execLink{r.link}
	return r
}

// eviction makes one that is due.
func (r *windowRig) eviction(seq, shard int, due time.Time, retry bool) *eviction {
	s := r.core.shards[shard]
	sc := s.clusters["c"]
	n := &node{sc: sc}
	e := &eviction{pod: &pod{home: unique.Make(home{shard: s}), node: n}, grounds: n.share(due, &Cause{}), committed: true, state: StateDue}
	e.seqNo.Store(uint64(seq))
	e.pod.ev = e
	if retry {
		e.more().attempts = 1
	}
	sc.index.add(e)
	return e
}

// carry hands messages over until there are none.
func (r *windowRig) carry() {
	for moved := true; moved; {
		moved = false
		for _, m := range r.d.inbox.tryTake(nil) {
			r.d.handle(&m)
			moved = true
		}
		r.d.grant(r.core.clock.Now())
		for p := r.d.line.head; p != nil; p = p.next {
			r.granted = append(r.granted, p.offer.ev)
		}
		for _, s := range r.core.shards {
			for _, m := range s.inbox.tryTake(nil) {
				moved = true
				e := m.permit.offer.ev
				r.d.line.leave(m.permit)
				s.unoffered(e.sc(), e)
				e.sc().index.remove(e)
			}
		}
	}
}

// TestI8WindowsGrantOldestFirst has more evictions leave than shards offer at a
// time, takes some back, and holds the permits against a sorted list: first orders
// and retries, from all shards, oldest first.
func TestI8WindowsGrantOldestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 2).Draw(t, "shards")
		r := newWindowRig(t, shards)
		var all []*eviction
		dues := rapid.IntRange(1, 40).Draw(t, "instants")
		step := rapid.IntRange(1, 37).Draw(t, "step")
		for i := range rapid.IntRange(2*offerWindow, 5*offerWindow).Draw(t, "evictions") {
			due := time.Unix(1_600_000_000+int64(i*step%dues), 0)
			all = append(all, r.eviction(i+1, i*step/3%shards, due, i%11 == 3))
		}
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			for range min(len(all), rapid.IntRange(offerWindow, 3*offerWindow).Draw(t, "come")) {
				r.leaving = append(r.leaving, all[0])
				all[0].pod.shard().offer(all[0].sc(), all[0])
				all = all[1:]
			}
			for range min(len(r.leaving), rapid.IntRange(0, 20).Draw(t, "taken back")) {
				i := rapid.IntRange(0, len(r.leaving)-1).Draw(t, "which")
				e := r.leaving[i]
				r.leaving = slices.Delete(r.leaving, i, i+1)
				e.pod.shard().withdraw(e.sc(), e)
				if e.leaving() {
					t.Fatal("it still waits for a permit")
				}
				all = append(all, e) // It comes again.
			}
			r.link.capacity = r.link.outstanding + rapid.IntRange(0, 3*offerWindow).Draw(t, "credit")
			r.granted = nil
			r.carry()
			r.check(t)
		}
	})
}

// check holds the permits of a round against what could leave.
func (r *windowRig) check(t *rapid.T) {
	slices.SortFunc(r.leaving, func(a, b *eviction) int {
		return cmp.Or(a.due().Compare(b.due()), cmp.Compare(a.seq(), b.seq()))
	})
	if room := r.link.capacity - (r.link.outstanding - len(r.granted)); len(r.granted) != min(len(r.leaving), room) {
		t.Fatalf("%d permits for %d that wait and credit for %d", len(r.granted), len(r.leaving), room)
	}
	for i, e := range r.granted {
		if e != r.leaving[i] {
			t.Fatalf("I8: permit %d is for due %s, sequence %d, want %s, %d", i, e.due(), e.seq(), r.leaving[i].due(), r.leaving[i].seq())
		}
	}
	r.leaving = r.leaving[len(r.granted):]
	for _, s := range r.core.shards {
		sc := s.clusters["c"]
		if sc.fresh.behind > 0 && sc.fresh.offered <= offerWindow/2 || sc.retries.behind > 0 && sc.retries.offered <= offerWindow/2 {
			t.Fatalf("%+v, %+v: some are behind a window that has room", sc.fresh, sc.retries)
		}
	}
}
