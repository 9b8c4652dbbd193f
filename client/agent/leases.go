package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"google.golang.org/protobuf/types/known/timestamppb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// reportEvery is how often renewals are reported, even if there were none.
	reportEvery = time.Second
	// leaseQuiet is how long the watch of leases may show nothing before a lease is
	// read live: kubelets renew every 10 s, so a cluster of any size is rarely as quiet.
	leaseQuiet = 5 * time.Second
	// lookTime bounds that read.
	lookTime = 3 * time.Second
	// behindTime is how long the watch may take to show what a live read has shown.
	behindTime = 5 * time.Second
	// maxReported bounds the names of one report.
	maxReported = 20_000
)

// leaseWatch follows the nodes' leases and reports who renewed. A report is also
// the word that nobody else did, so there is none while the watch is away, or
// behind what the API server shows when it is asked: the service counts a node's
// silence only while reports come.
type leaseWatch struct {
	follower *follower
	store    *leases
	report   func(*reprievev1.Event)
	timeout  time.Duration // with a look at a lease
	looked   time.Time     // at a lease, live, with the watch found right; the reporter's
}

func newLeaseWatch(coordination rest.Interface, clk clock.Clock, t *troubles, report func(*reprievev1.Event)) *leaseWatch {
	store := &leases{clock: clk, renewTimes: map[string]time.Time{}, changed: map[string]bool{}, renewed: map[string]bool{}, behind: map[string]time.Time{}}
	return &leaseWatch{store: store, report: report, timeout: lookTime, follower: &follower{
		store: store, resource: "leases", rest: coordination, example: &coordinationv1.Lease{}, namespace: corev1.NamespaceNodeLease,
		clock: clk, troubles: t, stirred: func() {},
	}}
}

// run follows and reports until ctx is done. A watch that stays behind is begun anew.
func (w *leaseWatch) run(ctx context.Context) {
	defer w.follower.troubles.forget(w.follower.calls("list"), w.follower.calls("watch"), w.follower.calls("get"))
	for ctx.Err() == nil {
		following, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { w.follower.run(following) })
		for pause(ctx, reportEvery) && !w.store.lags() {
			w.tell(ctx)
		}
		stop()
		wg.Wait()
		w.store.restart()
	}
}

// tell reports, if the watch can be believed.
func (w *leaseWatch) tell(ctx context.Context) {
	if quiet, open := w.follower.quiet(); !open || quiet > maxQuiet || !w.believes(ctx) {
		return
	}
	names, times, ok := w.store.take()
	if !ok {
		return
	}
	for {
		n := min(len(names), maxReported)
		e := &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_LeaseRenewals{
			LeaseRenewals: &reprievev1.NodeLeaseRenewals{NodeNames: names[:n:n], RenewTimes: times[:n:n]},
		}}
		// A time that is moved is never the live one's: an order for its node is STALE.
		client.Fit(e)
		w.report(e)
		if names, times = names[n:], times[n:]; len(names) == 0 {
			return
		}
	}
}

// believes looks at a lease live when the watch has been quiet: a connection that
// went dead without an end shows nothing for minutes, and a node's life with it.
func (w *leaseWatch) believes(ctx context.Context) bool {
	now := w.follower.clock.Now()
	last, name := w.store.latest()
	if name == "" || now.Sub(last) <= leaseQuiet || now.Sub(w.looked) <= leaseQuiet {
		// A look that failed is of no more interest: there has been a sign of life.
		w.follower.troubles.forget(w.follower.calls("get"))
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	_, err := w.look(ctx, name)
	w.follower.troubles.note(ctx, w.follower.calls("get"), err)
	if err == nil {
		w.looked = now
	}
	return err == nil
}

// look reads a node's lease live, for the watch to be judged by. It returns when
// it was renewed; zero if there is none.
func (w *leaseWatch) look(ctx context.Context, node string) (at time.Time, err error) {
	var lease coordinationv1.Lease
	before := w.store.renewedAt(node)
	err = w.follower.rest.Get().Namespace(corev1.NamespaceNodeLease).Resource(w.follower.resource).Name(node).MaxRetries(0).Do(ctx).Into(&lease)
	if apierrors.IsNotFound(err) {
		return at, nil // Nobody renews it.
	}
	if err == nil {
		at = renewTime(&lease)
		w.store.showed(node, before, at)
	}
	return at, err
}

var errNoLeases = errors.New("the watch of the nodes' leases does not stand")

// unrenewed reads the node's Lease live and reports whether the node was silent
// since the renewal that the service counts from: basis, if one was ever told. If
// the live one is newer than the watch's, nothing is reported until that has
// caught up.
func (w *leaseWatch) unrenewed(ctx context.Context, node string, basis time.Time) (bool, error) {
	if w == nil || !w.store.listed() {
		return false, errNoLeases
	}
	at, err := w.look(ctx, node)
	if err != nil {
		return false, fmt.Errorf("read the lease of node %s: %w", node, err)
	}
	return w.store.unrenewed(node, at, basis), nil
}

// leases is the store of the leases' reflector: when each was renewed, by the
// clock of whoever did. These times are only ever compared with each other for
// having changed.
type leases struct {
	clock clock.Clock

	mu         sync.Mutex // guards what follows
	synced     bool
	renewTimes map[string]time.Time
	// changed are the names whose time has ever changed: the service was told, or
	// will be.
	changed map[string]bool
	// renewed are the names whose time has changed since the last report.
	renewed map[string]bool
	// behind are the times that a live read has shown and the watch has not.
	behind      map[string]time.Time
	behindSince time.Time
	// newest was the last to renew, at newestAt.
	newest   string
	newestAt time.Time
}

var _ cache.ReflectorStore = (*leases)(nil)

func renewTime(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// Add implements [cache.ReflectorStore].
func (s *leases) Add(obj any) error { return s.put(obj) }

// Update implements [cache.ReflectorStore].
func (s *leases) Update(obj any) error { return s.put(obj) }

func (s *leases) put(obj any) error {
	l, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("an object of type %T among leases", obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(l.Name, renewTime(l))
	return nil
}

// set notes a lease's time. That a lease was not there before is a renewal, but
// not in the first list. mu is held.
func (s *leases) set(name string, at time.Time) {
	old, known := s.renewTimes[name]
	s.renewTimes[name] = at
	if live, ok := s.behind[name]; ok && live.Equal(at) {
		delete(s.behind, name)
	}
	if known && old.Equal(at) || !known && !s.synced {
		return
	}
	s.changed[name], s.renewed[name] = true, true
	s.newest, s.newestAt = name, s.clock.Now()
}

// Delete implements [cache.ReflectorStore].
func (s *leases) Delete(obj any) error {
	l, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("an object of type %T among leases", obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(l.Name)
	return nil
}

// drop forgets a lease. mu is held.
func (s *leases) drop(name string) {
	delete(s.renewTimes, name)
	delete(s.changed, name)
	delete(s.renewed, name)
	delete(s.behind, name)
	if s.newest == name {
		s.newest = ""
	}
}

// Replace implements [cache.ReflectorStore]. What changed while the watch was
// away changed.
func (s *leases) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[string]bool, len(list))
	for _, obj := range list {
		l, ok := obj.(*coordinationv1.Lease)
		if !ok {
			return fmt.Errorf("an object of type %T among leases", obj)
		}
		there[l.Name] = true
		s.set(l.Name, renewTime(l))
	}
	for name := range s.renewTimes {
		if !there[name] {
			s.drop(name)
		}
	}
	if s.newest == "" && len(list) > 0 {
		s.newest, s.newestAt = slices.Min(slices.Collect(maps.Keys(there))), s.clock.Now()
	}
	s.synced = true
	return nil
}

// Resync implements [cache.ReflectorStore]; there is nothing to tell again.
func (s *leases) Resync() error { return nil }

// take empties the renewals. It reports false while there is nothing to report
// from: before the first list, and while the watch is behind.
func (s *leases) take() (names []string, times []*timestamppb.Timestamp, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced || len(s.behind) > 0 {
		return nil, nil, false
	}
	names = slices.Sorted(maps.Keys(s.renewed))
	times = make([]*timestamppb.Timestamp, len(names))
	for i, name := range names {
		times[i] = timestamppb.New(s.renewTimes[name])
	}
	clear(s.renewed)
	return names, times, true
}

// latest is the lease that was renewed last, and when that was seen; empty
// without one.
func (s *leases) latest() (at time.Time, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestAt, s.newest
}

func (s *leases) listed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// renewedAt is a lease's time as the watch shows it; zero without one.
func (s *leases) renewedAt(name string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewTimes[name]
}

// showed notes what a live read has shown, and what the watch did before it. A
// watch shows every change of a lease, so it is behind until it shows this one.
func (s *leases) showed(name string, before, live time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if live.Equal(before) || live.Equal(s.renewTimes[name]) {
		return
	}
	if len(s.behind) == 0 {
		s.behindSince = s.clock.Now()
	}
	s.behind[name] = live
}

// unrenewed reports whether a live read shows what the watch does and the service
// rests on, which is basis unless the lease has not changed since the first list.
// A report that is on its way is later than what the service rests on.
func (s *leases) unrenewed(name string, live, basis time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, behind := s.behind[name]
	switch {
	case behind:
		return false
	case live.IsZero():
		return true // There is none: nobody renews it.
	}
	return !s.changed[name] || live.Equal(basis)
}

// lags reports whether the watch has been behind for too long.
func (s *leases) lags() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.behind) > 0 && s.clock.Now().Sub(s.behindSince) > behindTime
}

// restart is the beginning of another watch. Its list is of the most recent
// version, so it shows what this one did not.
func (s *leases) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = false
	clear(s.behind)
}
