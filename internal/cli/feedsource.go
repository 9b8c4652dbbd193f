package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reprieve-dev/reprieve/client"
	"github.com/reprieve-dev/reprieve/client/timeline"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// maxChanges bounds the changes that wait to be sent, as during an outage.
// Beyond it a new list says the same in less.
const maxChanges = 100_000

// fileSource is a feeder's source of files and streams. They can be read only
// once, so it keeps the objects as they stand for the lists after the first.
type fileSource struct {
	cluster string
	follow  bool
	listed  chan struct{} // closed when the first list is complete, or reading failed
	wake    chan struct{} // one slot: changes or the end are there
	warn    func(timeline.Warning)
	warned  map[string]bool // fields that a warning told of; the reader's alone
	once    sync.Once       // closes listed
	// ticks says when to tell of leases; nil is never.
	ticks <-chan struct{}

	mu      sync.Mutex // guards what follows
	objects map[string]*reprievev1.Event
	// first is the first list as it stood where it ended, until the service has it:
	// what is read after its end is news of a live cluster, not part of its adoption.
	first   map[string]*reprievev1.Event
	changes []*reprievev1.Event // since first ended, later since the last List began
	relist  bool                // there were too many
	ended   bool
	err     error
	nodes   int
	pods    int
	leases  leaseState
}

// leaseState is what a source knows of the nodes' leases.
type leaseState struct {
	wanted bool // by the service
	// inputs are those that show leases and have not ended.
	inputs map[string]bool
	// renewed are the leases that were renewed since the service was told.
	renewed map[string]*timestamppb.Timestamp
}

func newFileSource(cluster string, follow bool) *fileSource {
	return &fileSource{cluster: cluster, follow: follow, listed: make(chan struct{}), wake: make(chan struct{}, 1), warn: func(timeline.Warning) {}, warned: map[string]bool{}, objects: map[string]*reprievev1.Event{},
		leases: leaseState{inputs: map[string]bool{}, renewed: map[string]*timestamppb.Timestamp{}}}
}

// read merges the inputs until they end.
func (s *fileSource) read(ctx context.Context, inputs []timeline.Input, o timeline.MergeOptions) {
	o.Ended = func(name string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.leases.inputs, name)
	}
	err := timeline.Merge(ctx, inputs, o, s.take, s.endOfList)
	s.mu.Lock()
	s.ended, s.err = true, err
	s.mu.Unlock()
	s.once.Do(func() { close(s.listed) })
	s.signal()
}

// endOfList keeps the first list as it stands.
func (s *fileSource) endOfList() error {
	s.mu.Lock()
	s.first = maps.Clone(s.objects)
	s.changes, s.relist = nil, false
	s.mu.Unlock()
	s.once.Do(func() { close(s.listed) })
	return nil
}

// synced notes that the service has the whole first list, so that what came after it may go.
func (s *fileSource) synced() {
	s.mu.Lock()
	s.first = nil
	s.mu.Unlock()
	s.signal()
}

func (s *fileSource) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// unfit warns once of fields that the service does not take as they are.
func (s *fileSource) unfit(at timeline.Position, e *reprievev1.Event, cut []string) {
	what := strings.Join(cut, ", ")
	if s.warned[what] {
		return
	}
	s.warned[what] = true
	name := "node " + e.GetNode().GetName()
	if p := e.GetPod(); p != nil {
		name = "pod " + podWord(p.GetNamespace(), p.GetName())
	}
	s.warn(timeline.Warning{Pos: at, Text: fmt.Sprintf("%s exceeds what the service takes and was cut in %s, which may delay its eviction; this is said once", name, what)})
}

// take applies one entry.
func (s *fileSource) take(e timeline.Entry) error {
	if e.Control != nil && e.Control.Kind != timeline.Synced {
		return &timeline.Error{Pos: e.Pos, Reason: fmt.Sprintf("control %q is for replay; a feed carries only nodes, pods and leases", e.Control.Kind)}
	}
	if e.Cluster != timeline.DefaultCluster && e.Cluster != s.cluster {
		return &timeline.Error{Pos: e.Pos, Reason: fmt.Sprintf("it is of cluster %q and this feed is for %q", e.Cluster, s.cluster), Hint: "feed one cluster at a time"}
	}
	if e.Lease != nil {
		s.takeLease(e)
		return nil
	}
	ev := e.Event()
	if ev == nil {
		return nil
	}
	if cut, ok := client.Fit(ev); !ok {
		return &timeline.Error{Pos: e.Pos, Reason: fmt.Sprintf("the object lacks or exceeds what the service takes in %v", cut), Hint: "give it a name, a uid and, if it is a pod, a namespace"}
	} else if len(cut) > 0 {
		s.unfit(e.Pos, ev, cut)
	}
	key := "node/" + e.Node.GetName()
	if e.Pod != nil {
		key = "pod/" + podWord(e.Pod.GetNamespace(), e.Pod.GetName())
	}
	s.mu.Lock()
	if ev.GetType() == reprievev1.Event_EVENT_TYPE_DELETE {
		delete(s.objects, key)
	} else {
		s.objects[key] = ev
	}
	if len(s.changes) >= maxChanges {
		s.changes, s.relist = nil, true
	}
	if !s.relist {
		s.changes = append(s.changes, ev)
	}
	s.mu.Unlock()
	s.signal()
	return nil
}

// maxRenewals is how many leases one event names.
const maxRenewals = 10_000

// takeLease notes a node's lease. The service is told with the next tick.
func (s *fileSource) takeLease(e timeline.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.inputs[e.Pos.File] = true
	if e.Lease.Renewed {
		s.leases.renewed[e.Lease.Node] = e.Lease.RenewTime
	}
}

// setNodeHealth notes whether the service wants to know of leases.
func (s *fileSource) setNodeHealth(mode reprievev1.NodeHealthMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.wanted = mode == reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE || mode == reprievev1.NodeHealthMode_NODE_HEALTH_MODE_ENFORCE
}

// renewals are the events that tell of the leases that were renewed since the last
// call: one without names if none was, which says that leases are still seen, and
// none if they are not, or not wanted.
func (s *fileSource) renewals() (events []*reprievev1.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leases.wanted || len(s.leases.inputs) == 0 {
		return nil
	}
	all := slices.Sorted(maps.Keys(s.leases.renewed))
	for first := true; first || len(all) > 0; first = false {
		n := min(len(all), maxRenewals)
		r := &reprievev1.NodeLeaseRenewals{NodeNames: all[:n:n]}
		for _, name := range r.NodeNames {
			r.RenewTimes = append(r.RenewTimes, s.leases.renewed[name])
		}
		all = all[n:]
		e := &reprievev1.Event{Type: reprievev1.Event_EVENT_TYPE_UPSERT, Object: &reprievev1.Event_LeaseRenewals{LeaseRenewals: r}}
		client.Fit(e)
		events = append(events, e)
	}
	clear(s.leases.renewed)
	return events
}

// List implements client.Source. Keys sort nodes before pods. Until the service has
// the first list it is that one, also on another stream.
func (s *fileSource) List(ctx context.Context, emit func(*reprievev1.Event) error) error {
	select {
	case <-s.listed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	objects := s.first
	if objects == nil {
		objects = s.objects
		s.changes, s.relist = nil, false
	}
	keys := slices.Sorted(maps.Keys(objects))
	list := make([]*reprievev1.Event, 0, len(keys))
	s.nodes, s.pods = 0, 0
	for _, k := range keys {
		ev := objects[k]
		list = append(list, ev)
		if ev.GetNode() != nil {
			s.nodes++
		} else {
			s.pods++
		}
	}
	s.mu.Unlock()
	for _, ev := range list {
		if err := emit(ev); err != nil {
			return err
		}
	}
	return nil
}

// Watch implements client.Source. It begins once the service has the first list, and
// ends with the inputs, unless they are followed.
func (s *fileSource) Watch(ctx context.Context, emit func(...*reprievev1.Event) error) error {
	for {
		select {
		case <-s.ticks: // Also while there are always changes.
			if err := s.tellOfLeases(emit); err != nil {
				return err
			}
		default:
		}
		changes, end, err := s.next()
		if err != nil || end {
			return err
		}
		if len(changes) > 0 {
			if err := emit(changes...); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.wake:
		case <-s.ticks:
			if err := s.tellOfLeases(emit); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next takes what Watch has to tell, or says that there is no more; neither means that it has to wait.
func (s *fileSource) next() (changes []*reprievev1.Event, end bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.first != nil:
		return nil, false, nil
	case s.relist:
		return nil, false, client.ErrRelist
	case len(s.changes) > 0:
		changes, s.changes = s.changes, nil
		return changes, false, nil
	}
	return nil, s.ended && !s.follow, s.err
}

func (s *fileSource) tellOfLeases(emit func(...*reprievev1.Event) error) error {
	if events := s.renewals(); len(events) > 0 {
		return emit(events...)
	}
	return nil
}

// counts are the objects of the last list.
func (s *fileSource) counts() (nodes, pods int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes, s.pods
}
