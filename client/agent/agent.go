package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/client"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	// drainTime is how long orders that are out are waited for at the end.
	drainTime = 10 * time.Second
	// eventQPS and eventBurst bound the writing of events, apart from evictions.
	eventQPS   = 50
	eventBurst = 100
	// confirmAfter is how old an order may be that is not asked about again.
	confirmAfter = 5 * time.Second
	// retryAfter is the pause before what failed as a whole is begun again.
	retryAfter = 5 * time.Second
	// systemNamespace is the one whose UID is the cluster's.
	systemNamespace = "kube-system"
)

// Agent feeds one cluster and executes for it. Create it with [New].
type Agent struct {
	conf    Config
	log     *slog.Logger
	metrics *metrics
	source  *source
	// act, lease and notes are the API server's clients for orders, the lease and events.
	act, lease, notes kubernetes.Interface
	evictor           *evictor

	// troubles are what keeps the agent from its part; refused are orders' calls
	// that it lacks the rights for, which concern those orders only.
	troubles, refused *troubles

	known, leading, synced atomic.Bool
	feeder                 atomic.Pointer[client.Feeder]
}

// New returns an agent. It connects to nothing yet; it fails if the configuration
// lacks something or the API server's configuration cannot be used.
func New(conf Config) (*Agent, error) {
	if err := conf.Validate(); err != nil {
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	log := conf.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &Agent{conf: conf, log: log.With("cluster", conf.Cluster), metrics: newMetrics(conf.Registry)}
	a.troubles, a.refused = newTroubles(a.log), newTroubles(a.log)
	var follow kubernetes.Interface
	for _, c := range []struct {
		into  *kubernetes.Interface
		qps   float32
		burst int
	}{{&follow, -1, 0}, {&a.act, -1, 0}, {&a.lease, -1, 0}, {&a.notes, eventQPS, eventBurst}} {
		k, err := clientset(conf.Kube, conf.Version, c.qps, c.burst)
		if err != nil {
			return nil, fmt.Errorf("API server configuration: %w", err)
		}
		*c.into = k
	}
	a.source = &source{
		core: follow.CoreV1().RESTClient(), coordination: follow.CoordinationV1().RESTClient(), clock: conf.Clock, troubles: a.troubles,
		teller: newReporter(a.log, a.metrics),
	}
	if conf.Registry != nil {
		conf.Registry.MustRegister(newSourceCollector(a.source))
	}
	limit := rate.NewLimiter(rate.Inf, 0)
	if conf.QPS > 0 {
		limit = rate.NewLimiter(rate.Limit(conf.QPS), conf.Burst)
	}
	a.evictor = &evictor{core: a.act.CoreV1().RESTClient(), limit: limit, clock: conf.Clock, shows: a.shows, marked: func(*reprievev1.EvictPod) {}, refused: a.refused}
	a.evictor.nodes = &nodeReader{get: a.readNode, clock: conf.Clock, reads: map[string]*nodeRead{}}
	return a, nil
}

// clientset is a client of its own, so that one kind of call does not wait for
// another's turn.
func clientset(base *rest.Config, version string, qps float32, burst int) (kubernetes.Interface, error) {
	c := rest.CopyConfig(base)
	c.QPS, c.Burst, c.RateLimiter = qps, burst, nil
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rest.AddUserAgent(c, "reprieve-agent/"+version)
	return kubernetes.NewForConfig(c)
}

func (a *Agent) shows(namespace, name, uid string) bool {
	f := a.source.following()
	return f != nil && f.state.podShows(namespace, name, uid)
}

func (a *Agent) readNode(ctx context.Context, name string) (n *corev1.Node, err error) {
	err = a.evictor.call(ctx, "get nodes", func(ctx context.Context) error {
		n, err = a.act.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return n, err
}

// Ready says why the agent is not doing its part; nil if it is. An agent that
// waits for another one's lease does its part.
func (a *Agent) Ready() error {
	switch {
	case !a.known.Load():
		return because("the API server has not told which cluster this is", a.troubles.err())
	case !a.leading.Load():
		return a.troubles.err()
	case !a.synced.Load():
		var last error
		if f := a.feeder.Load(); f != nil {
			last = f.Status().LastError
		}
		return because("the cluster is not synced with the service", errors.Join(a.troubles.err(), last))
	}
	return nil
}

func because(what string, why error) error {
	if why == nil {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %w", what, why)
}

// Run serves the cluster until ctx is done, and then returns nil, after orders
// that are out have had 10 s to end. What fails is tried again, but for what
// needs a person: bad input, insufficient credentials with the service, and a
// cluster name that is bound to another cluster.
func (a *Agent) Run(ctx context.Context) error {
	who, ok := a.identify(ctx)
	for ok {
		err := a.serve(ctx, who)
		if ctx.Err() == nil && err != nil {
			if hopeless(err) {
				return err
			}
			a.log.WarnContext(ctx, "stopped serving the cluster, beginning again", "error", err)
		}
		ok = pause(ctx, retryAfter)
	}
	return nil
}

// serve leads once, after an election if there is one.
func (a *Agent) serve(ctx context.Context, who identity) error {
	if !a.conf.LeaderElect {
		return a.lead(ctx, who, 0)
	}
	return campaign(ctx, a.lease, &a.conf, a.troubles, func(ctx context.Context, epoch uint64) error { return a.lead(ctx, who, epoch) })
}

// hopeless reports whether the service's refusal will stand until a person acts.
func hopeless(err error) bool {
	if client.ReasonOf(err) == client.ReasonClusterUIDMismatch {
		return true
	}
	e, ok := client.FromError(err)
	return ok && (e.Code == codes.InvalidArgument || e.Code == codes.PermissionDenied || e.Code == codes.Unauthenticated || e.Code == codes.Unimplemented)
}

// pause waits and reports whether ctx still stands.
func pause(ctx context.Context, d time.Duration) bool {
	timer, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-timer.Done()
	return ctx.Err() == nil
}

// identity is what the cluster says of itself.
type identity struct{ uid, version string }

// identify asks the API server, as long as it takes or until ctx is done.
func (a *Agent) identify(ctx context.Context) (identity, bool) {
	for {
		ns, err := a.act.CoreV1().Namespaces().Get(ctx, systemNamespace, metav1.GetOptions{})
		a.troubles.note(ctx, "get namespace "+systemNamespace, err)
		if err == nil {
			a.known.Store(true)
			who := identity{uid: string(ns.UID)}
			// Only told to people.
			if v, err := a.act.Discovery().ServerVersion(); err == nil {
				who.version = v.GitVersion
			}
			return who, true
		}
		if !pause(ctx, retryAfter) {
			return identity{}, false
		}
	}
}

// lead feeds and executes until ctx is done or one of the two ends for good.
func (a *Agent) lead(ctx context.Context, who identity, epoch uint64) error {
	a.log.InfoContext(ctx, "serving the cluster", "cluster_uid", who.uid, "kubernetes_version", who.version, "epoch", epoch)
	a.setLeading(true)
	defer a.setLeading(false)
	defer a.setSynced(false)
	defer a.source.close()
	feeder, err := a.newFeeder(who, epoch)
	if err != nil {
		return err
	}
	a.feeder.Store(feeder)
	// Events and orders outlive ctx until the orders that are out have ended.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	notes := newAnnouncer(working, a.notes.CoreV1())
	defer notes.stop()
	enforcing := func() bool { return feeder.Status().Mode == reprievev1.Mode_MODE_ENFORCE }
	executor, err := a.newExecutor(notes)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ended(feeder.Run(ctx)) })
	group.Go(func() error { return ended(executor.Run(working)) })
	group.Go(func() error {
		a.follow(ctx, feeder, func() error { return notes.watch(ctx, a.conf.Conn, a.conf.Cluster, enforcing) })
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		defer stop()
		draining, cancel := context.WithTimeout(working, drainTime)
		defer cancel()
		if err := executor.Drain(draining); errors.Is(err, context.DeadlineExceeded) {
			a.log.Warn("orders were still out at the end; the service will send them again", "orders", executor.Outstanding())
		}
		return nil
	})
	return group.Wait()
}

// follow watches the cluster's evictions while it is known to the service, which
// it is from its first sync on. Without the permission there is nothing to wait for.
func (a *Agent) follow(ctx context.Context, feeder *client.Feeder, watch func() error) {
	for {
		select {
		case <-feeder.Synced():
		case <-ctx.Done():
			return
		}
		err := watch()
		if ctx.Err() != nil {
			return
		}
		a.log.WarnContext(ctx, "events of cancelled evictions are missing", "error", err)
		if hopeless(err) || !pause(ctx, retryAfter) {
			return
		}
	}
}

// ended makes an end without an error end the rest too.
func ended(err error) error {
	if err == nil {
		return errors.New("a stream to the service has ended")
	}
	return err
}

func (a *Agent) newFeeder(who identity, epoch uint64) (*client.Feeder, error) {
	look := &lifecycleLook{core: a.act.CoreV1(), timeout: lookTime}
	return client.NewFeeder(a.conf.Conn, client.FeederConfig{
		Cluster: a.conf.Cluster, ClusterUID: who.uid, FeederID: a.conf.ID, Epoch: epoch,
		AgentVersion: a.conf.Version, KubernetesVersion: who.version,
		Source: a.source, Alive: a.source.alive, OnSynced: a.setSynced, OnNodeHealth: a.setNodeHealth, Logger: a.conf.Logger,
		NodeLifecycleController: look.controller,
	})
}

func (a *Agent) newExecutor(notes *announcer) (*client.Executor, error) {
	evictor := *a.evictor
	evictor.marked = notes.marked
	updater := &updater{evictor: a.evictor, leases: a.source.leases, notes: notes}
	return client.NewExecutor(a.conf.Conn, client.ExecutorConfig{
		ID: a.conf.ID, Clusters: []string{a.conf.Cluster}, Capacity: uint32(min(a.conf.Workers, math.MaxInt32)), Version: a.conf.Version, Logger: a.log,
		ConfirmAfter: confirmAfter,
		Handler: func(ctx context.Context, t *client.Task) client.Result {
			began := a.conf.Clock.Now()
			r := evictor.evict(ctx, t)
			a.metrics.answered(r.Outcome, a.conf.Clock.Now().Sub(began))
			a.log.DebugContext(ctx, "order carried out", "eviction", t.EvictionID, "namespace", t.Pod.GetNamespace(), "pod", t.Pod.GetName(),
				"uid", t.Pod.GetUid(), "outcome", outcomeLabel(r.Outcome), "message", r.Message)
			return r
		},
		NodeHandler: func(ctx context.Context, t *client.Task) client.Result {
			began := a.conf.Clock.Now()
			r := updater.update(ctx, t)
			a.metrics.answered(r.Outcome, a.conf.Clock.Now().Sub(began))
			a.log.DebugContext(ctx, "order for a node carried out", "node", t.Node.GetName(), "outcome", outcomeLabel(r.Outcome), "message", r.Message)
			return r
		},
	})
}

// setNodeHealth follows the nodes' leases while the service wants them. An older
// service says nothing of it and wants none.
func (a *Agent) setNodeHealth(mode reprievev1.NodeHealthMode) {
	a.source.wantLeases(mode > reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OFF)
}

func (a *Agent) setLeading(on bool) {
	a.leading.Store(on)
	set(a.metrics.leader, on)
}

func (a *Agent) setSynced(on bool) {
	a.synced.Store(on)
	set(a.metrics.synced, on)
}
