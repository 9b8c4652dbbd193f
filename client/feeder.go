package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// FeederConfig says whose events a feeder sends.
type FeederConfig struct {
	// Cluster is the cluster's name, a DNS label. Required.
	Cluster string
	// ClusterUID is the UID of the cluster's namespace kube-system. Required.
	ClusterUID string
	// FeederID names this feeder among those of the cluster. Required.
	FeederID string
	// Epoch is the number of leader-election transitions; a higher one takes the
	// cluster over.
	Epoch uint64
	// AgentVersion and KubernetesVersion are told to the service.
	AgentVersion, KubernetesVersion string
	// Source gives the events. Required.
	Source Source
	// Alive is asked before each heartbeat of a synced feed, if set, from the
	// heartbeat goroutine; calls do not overlap. While it says no, as when the
	// source has lost its API server, no heartbeat is sent, so that the service
	// does not decide on knowledge that has gone stale. It may block until all
	// that was known at the time of the call has been emitted: that is what lets a
	// heartbeat vouch for everything before it. Its context ends with the stream,
	// and no heartbeat follows then.
	Alive func(ctx context.Context) bool
	// HeldAttempts is how often in a row the service may answer that another
	// feeder holds the cluster before Run gives up; 0 means that it never does.
	HeldAttempts int
	// OnSynced is called with true when the service has the whole list on disk and
	// the cluster is live, and with false when it no longer is. Calls do not
	// overlap; it must not block.
	OnSynced func(synced bool)
	// OnMode is called with the cluster's mode after each welcome and whenever the
	// service says that it has changed. Calls of OnMode and OnSynced do not
	// overlap; it must not block.
	OnMode func(mode reprievev1.Mode)
	// OnNodeHealth is called, as OnMode is, with whether the service wants to know of
	// the nodes' health. Unless it is OFF, emit the renewals of leases too, as
	// NodeLeaseRenewals has it.
	OnNodeHealth func(mode reprievev1.NodeHealthMode)
	// NodeLifecycleController is asked at each hello and every minute after it, if
	// set, for what is known of another controller of the nodes' health that runs in
	// the cluster, for people; empty if nothing is. A heartbeat tells the service of
	// a change. Calls do not overlap; it must return when its context ends.
	NodeLifecycleController func(ctx context.Context) string
	// Logger gets what goes wrong and is tried again, an outage as one warning and
	// one line at its end; nil discards it.
	Logger *slog.Logger
}

func (c *FeederConfig) validate() error {
	var faults []error
	for _, f := range []struct {
		bad  bool
		text string
	}{
		{c.Cluster == "", "cluster is empty"},
		{c.ClusterUID == "", "cluster UID is empty"},
		{c.FeederID == "", "feeder id is empty"},
		{c.Source == nil, "source is nil"},
		{c.HeldAttempts < 0, "held attempts is negative"},
	} {
		if f.bad {
			faults = append(faults, errors.New(f.text))
		}
	}
	return errors.Join(faults...)
}

// FeederStatus is where a feed stands.
type FeederStatus struct {
	// Connected: the service has answered the stream's hello.
	Connected bool
	// Synced: the whole list is on disk and the cluster is live.
	Synced bool
	// Sequence is the stream's last message sent, and Acked the last one of which
	// the service said that all up to it is on disk. Each stream counts from 1.
	Sequence, Acked uint64
	// Mode, NodeHealth and ServerVersion are what the service said last.
	Mode          reprievev1.Mode
	NodeHealth    reprievev1.NodeHealthMode
	ServerVersion string
	// LastError is why the last stream ended; nil before the first did.
	LastError error
}

// Feeder feeds one cluster. Create it with [NewFeeder].
type Feeder struct {
	conf   FeederConfig
	client reprievev1.FeedServiceClient
	log    *slog.Logger
	losses losses // Run's

	callback sync.Mutex // serialises OnSynced, OnMode and OnNodeHealth

	mu      sync.Mutex // guards what follows
	running bool
	status  FeederStatus
	synced  chan struct{} // closed while synced
}

// NewFeeder returns a feeder that uses conn, usually a [*Conn]. It fails if the
// configuration lacks something.
func NewFeeder(conn grpc.ClientConnInterface, conf FeederConfig) (*Feeder, error) {
	if err := conf.validate(); err != nil {
		return nil, fmt.Errorf("feeder configuration: %w", err)
	}
	log := logger(conf.Logger).With("cluster", conf.Cluster)
	return &Feeder{
		conf: conf, client: reprievev1.NewFeedServiceClient(conn),
		log: log, losses: losses{log: log}, synced: make(chan struct{}),
	}, nil
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// Status is where the feed stands now.
func (f *Feeder) Status() FeederStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Synced returns a channel that is closed once the cluster is synced. After the
// sync is lost it returns another channel, so ask again for each wait.
func (f *Feeder) Synced() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced
}

// Run feeds until ctx is done, and then returns the context's cause. Whenever the
// stream ends it opens another, with a back-off of 0.2 s to 30 s (to 2 s while
// the service cannot be reached), and lists again. It returns nil when the source
// has no more and all is acknowledged, and otherwise ends for good on the source's
// own error, on bad input, on missing or insufficient credentials
// (INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED), when the name is bound
// to another cluster UID ([IsClusterUIDMismatch]), when a newer stream took the
// cluster over (ABORTED), and when another feeder held it HeldAttempts times in a
// row (ALREADY_EXISTS).
func (f *Feeder) Run(ctx context.Context) error {
	if err := f.start(); err != nil {
		return err
	}
	defer f.stop()
	var wait backoff
	held := 0
	for {
		s := &feedSession{feeder: f, wait: &wait}
		err := s.run(ctx)
		f.ended(err)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		case IsClusterUIDMismatch(err):
			return fmt.Errorf("feed of cluster %q with UID %q: %w; give the right UID, feed under another name, or forget the old cluster first", f.conf.Cluster, f.conf.ClusterUID, err)
		case f.final(err):
			return fmt.Errorf("feed of cluster %q: %w", f.conf.Cluster, err)
		}
		if codeOf(err) != codes.AlreadyExists {
			held = 0
		} else if held++; held == f.conf.HeldAttempts {
			return fmt.Errorf("feed of cluster %q: refused %d times: %w", f.conf.Cluster, held, err)
		}
		f.losses.lost(ctx, err)
		if err := wait.pause(ctx, err); err != nil {
			return err
		}
	}
}

func (f *Feeder) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running {
		return errors.New("the feeder is running already")
	}
	f.running = true
	return nil
}

func (f *Feeder) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = false
}

// final reports whether a stream's end is Run's.
func (f *Feeder) final(err error) bool {
	var own *sourceError
	return errors.As(err, &own) || hopeless(err) || codeOf(err) == codes.Aborted
}

// ended notes a stream's end.
func (f *Feeder) ended(err error) {
	f.setSynced(false)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = false
	if err != nil {
		f.status.LastError = err
	}
}

// setSynced moves the sync state and tells of it once for each change.
func (f *Feeder) setSynced(synced bool) {
	f.callback.Lock()
	defer f.callback.Unlock()
	f.mu.Lock()
	changed := f.status.Synced != synced
	f.status.Synced = synced
	if changed && synced {
		close(f.synced)
	} else if changed {
		f.synced = make(chan struct{})
	}
	f.mu.Unlock()
	if changed && f.conf.OnSynced != nil {
		f.conf.OnSynced(synced)
	}
}

// setMode notes the cluster's mode and tells of it.
func (f *Feeder) setMode(mode reprievev1.Mode) {
	f.callback.Lock()
	defer f.callback.Unlock()
	f.mu.Lock()
	f.status.Mode = mode
	f.mu.Unlock()
	if f.conf.OnMode != nil {
		f.conf.OnMode(mode)
	}
}

// setNodeHealth notes whether node health is wanted and tells of it.
func (f *Feeder) setNodeHealth(mode reprievev1.NodeHealthMode) {
	f.callback.Lock()
	defer f.callback.Unlock()
	f.mu.Lock()
	f.status.NodeHealth = mode
	f.mu.Unlock()
	if f.conf.OnNodeHealth != nil {
		f.conf.OnNodeHealth(mode)
	}
}

// sourceError is an error that the source returned of its own accord.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "source: " + e.err.Error() }

func (e *sourceError) Unwrap() error { return e.err }
