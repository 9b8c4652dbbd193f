package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// ExecutorConfig says what an executor does and for whom.
type ExecutorConfig struct {
	// ID names the executor. A newer stream of the same id ends this one. Required.
	ID string
	// Clusters are the clusters' names, or "*" for all that the credentials allow. Required.
	Clusters []string
	// Capacity is how many orders of one cluster are worked on at once, 1 to 10,000.
	Capacity uint32
	// Handler carries out an order and answers. It runs in a goroutine of its own;
	// a panic is answered as FAILED. Its context ends with [ErrRecalled],
	// [ErrExpired], or when Run ends. Required.
	Handler func(context.Context, *Task) Result
	// NodeHandler carries out orders for nodes, which have [Task.Node], and answers
	// with APPLIED where Handler does with EVICTED; all else is as with Handler.
	// Without it the service sends none.
	NodeHandler func(context.Context, *Task) Result
	// ConfirmAfter is for how long an answer of the service vouches for the orders
	// that come after it. Without one since, an order may have been under way for
	// long, as in the network or in a process that was stopped, and may be held or
	// cancelled by now: the service is asked before the handler starts. 0 asks never.
	ConfirmAfter time.Duration
	// Version is told to the service.
	Version string
	// NoAutoExtend leaves it to the handler to call [Task.Extend]. Without it more
	// time is asked for at half of each deadline while the handler runs, of which
	// the service gives 10 minutes in all.
	NoAutoExtend bool
	// Logger gets what goes wrong and is tried again, an outage as one warning and
	// one line at its end; nil discards it.
	Logger *slog.Logger
}

// maxCapacity is the contract's bound.
const maxCapacity = 10000

func (c *ExecutorConfig) validate() error {
	var faults []error
	if c.ID == "" {
		faults = append(faults, errors.New("id is empty"))
	}
	if len(c.Clusters) == 0 {
		faults = append(faults, errors.New(`clusters are empty: name some, or "*" for all`))
	}
	if c.Capacity < 1 || c.Capacity > maxCapacity {
		faults = append(faults, fmt.Errorf("capacity %d is not within 1 and %d", c.Capacity, maxCapacity))
	}
	if c.Handler == nil {
		faults = append(faults, errors.New("handler is nil"))
	}
	return errors.Join(faults...)
}

// Executor carries out eviction orders. Create it with [NewExecutor].
type Executor struct {
	conf   ExecutorConfig
	client reprievev1.EvictionServiceClient
	log    *slog.Logger
	losses losses         // Run's
	work   sync.WaitGroup // handlers and their deadline keepers
	wake   chan struct{}  // one slot: the outbox or the drain has changed
	done   chan struct{}  // closed when Run has returned

	mu       sync.Mutex // guards what follows
	started  bool
	draining bool
	closing  bool // drained: orders that still arrive cannot be answered
	err      error
	status   ExecutorStatus
	tasks    map[string]*Task   // by token, until the result is acknowledged
	active   map[string]uint32  // handlers by cluster
	queue    map[string][]*Task // beyond capacity, by cluster
	outbox   []*reprievev1.EvictRequest
	fresh    time.Time // until when orders that arrive are known to be new
}

// ExecutorStatus is where an executor stands.
type ExecutorStatus struct {
	// Connected: the service has answered the stream's hello.
	Connected bool
	// Streams is on how many streams the service has answered hello; 0 means that
	// it was never reached.
	Streams uint64
	// LastError is why the last stream ended; nil before the first did.
	LastError error
}

// NewExecutor returns an executor that uses conn, usually a [*Conn]. It fails if
// the configuration lacks something.
func NewExecutor(conn grpc.ClientConnInterface, conf ExecutorConfig) (*Executor, error) {
	if err := conf.validate(); err != nil {
		return nil, fmt.Errorf("executor configuration: %w", err)
	}
	log := logger(conf.Logger).With("executor", conf.ID)
	return &Executor{
		conf: conf, client: reprievev1.NewEvictionServiceClient(conn), log: log, losses: losses{log: log},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		tasks: map[string]*Task{}, active: map[string]uint32{}, queue: map[string][]*Task{},
	}, nil
}

// Run executes until ctx is done, and then returns the context's cause: handlers
// are cancelled and waited for, and what they answer after that is lost, so
// [Executor.Drain] first. Whenever the stream ends it opens another, with a
// back-off of 0.2 s to 30 s (to 2 s while the service cannot be reached), and goes
// on with the orders it has; results are sent again until the service has
// acknowledged them. It returns nil when drained, and ends for good on bad input,
// on missing or insufficient credentials
// (INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED) and when a newer stream
// of the same id took over (ABORTED). Run may be called once.
func (e *Executor) Run(ctx context.Context) (err error) {
	e.mu.Lock()
	if e.started {
		e.mu.Unlock()
		return errors.New("the executor has been run already")
	}
	e.started = true
	e.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		cancel(err)
		e.work.Wait()
		e.mu.Lock()
		e.err = err
		e.mu.Unlock()
		close(e.done)
	}()
	var wait backoff
	for {
		if e.drained() {
			return nil
		}
		welcomed, err := e.stream(ctx)
		e.ended(err)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case e.drained():
			return nil
		case hopeless(err), codeOf(err) == codes.Aborted:
			return fmt.Errorf("executor %q: %w", e.conf.ID, err)
		}
		if welcomed {
			wait.reset()
		}
		e.losses.lost(ctx, err)
		if err := wait.pause(ctx, err); err != nil {
			return err
		}
	}
}

// Drain asks for no more orders, waits until those that are out are answered and
// the answers acknowledged, and for Run to return. It fails with ctx's cause if
// that takes too long, with Run's error if Run ends otherwise; the executor takes
// no more orders either way. Before Run, it makes Run return at once.
func (e *Executor) Drain(ctx context.Context) error {
	e.mu.Lock()
	if !e.draining {
		e.draining = true
		e.postLocked(&reprievev1.EvictRequest{Message: &reprievev1.EvictRequest_Drain{Drain: &reprievev1.Drain{}}})
	}
	started := e.started
	e.mu.Unlock()
	if !started {
		return nil
	}
	select {
	case <-e.done:
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drained reports whether there is nothing left to answer after a drain.
func (e *Executor) drained() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.draining && len(e.tasks) == 0
}

// Status is where the executor stands now.
func (e *Executor) Status() ExecutorStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// ended notes a stream's end.
func (e *Executor) ended(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status.Connected, e.status.LastError = false, err
}

// Outstanding is how many orders are not yet answered and acknowledged.
func (e *Executor) Outstanding() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.tasks)
}

// post queues a message for the stream.
func (e *Executor) post(m *reprievev1.EvictRequest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.postLocked(m)
}

// postLocked is post with mu held.
func (e *Executor) postLocked(m *reprievev1.EvictRequest) {
	e.outbox = append(e.outbox, m)
	e.wakeSender()
}

func (e *Executor) wakeSender() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// cut makes a text fit for a message: valid UTF-8 of at most maxMessageBytes.
func cut(text string) string {
	if len(text) > maxMessageBytes {
		text = text[:maxMessageBytes]
	}
	return strings.ToValidUTF8(text, "")
}
