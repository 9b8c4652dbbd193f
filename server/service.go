package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/adminhttp"
	"github.com/reprieve-dev/reprieve/internal/clock"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// StoreSettings say which data file to open, and what to do about damage.
type StoreSettings struct {
	Path string
	// Room is how many bytes its file system must have free; 0 asks for none.
	Room uint64
	// Damaged, which must not block, is told of records that reading finds damaged later.
	Damaged func(where string, err error)
	// SetAside returns the name for a file that is beyond help, which makes room
	// for a new one; nil: such a file is refused.
	SetAside func(path string) (to string)
	// WasSetAside is told of such a file, and why.
	WasSetAside func(to string, why error)
	// Migrated is told of a file that was of an older schema version, and of the
	// copy that was made of it before.
	Migrated func(from, to uint32, backup string)
}

// OpenStore opens a data file. It gives up when ctx ends.
type OpenStore func(ctx context.Context, s StoreSettings) (engine.Store, error)

// roomAfterFull is what a disk that was full must have free before the service
// goes on: the data file grows by 16 MiB at a time, and takes two such steps.
const roomAfterFull = 32 << 20

// handshakeTimeout bounds how long a client may take to connect.
const handshakeTimeout = 10 * time.Second

// dataFile is the file's name in the data folder.
const dataFile = "reprieve.db"

// Deps are what a service needs from outside.
type Deps struct {
	Clock     clock.Clock
	OpenStore OpenStore
	Logger    *slog.Logger
	// Registry gets the service's metrics.
	Registry *prometheus.Registry
	// NewAgent makes the agent of a service that joins a cluster itself.
	NewAgent NewAgent
	// Jitter spreads back-offs; nil is the engine's own.
	Jitter func(time.Duration) time.Duration
	// CommitRest is the engine's; see [CommitRest].
	CommitRest time.Duration
}

// CommitRest is how long the service rests at most between two transactions of its
// store. An order waits for less than this; the store has half the work.
const CommitRest = time.Millisecond

// Service is a configured service: engine, gRPC services and what goes with
// them. [New] makes it, Start begins, Stop ends it.
type Service struct {
	conf   Config
	deps   Deps
	engine *engine.Engine
	chain  *chain
	health *health.Server
	grpc   *grpc.Server
	admin  *http.Server
	// stopped is closed when the engine has stopped.
	stopped chan struct{}
	// running has goroutines of calls that may outlive their handlers for a moment.
	running   sync.WaitGroup
	stopOnce  sync.Once
	started   bool
	unhealthy atomic.Pointer[error]
	metrics   *metrics
	stopClock func()
	reloader  *reloader
	audit     *auditor
	// agent is the one in this process; nil if the service joins no cluster itself.
	agent *inProcess
}

// errStarting is why a service is not ready before its start.
var errStarting = fmt.Errorf("%w: starting", engine.ErrUnavailable)

// New builds a service of a valid configuration. Nothing runs and no port or
// store is open until it is started.
func New(conf Config, deps Deps) (*Service, error) {
	policies, err := conf.clusterPolicies()
	if err != nil {
		return nil, err
	}
	for _, w := range conf.Warnings() {
		deps.Logger.Warn("a configured policy field has no effect", "field", w)
	}
	s := &Service{conf: conf, deps: deps, health: health.NewServer(), stopped: make(chan struct{}), stopClock: func() {}}
	s.unhealthy.Store(&errStarting)
	s.metrics = newMetrics(deps.Registry)
	s.engine = engine.New(engine.Options{
		Clock: deps.Clock, Open: s.open, Shards: conf.Shards, ClusterPolicy: policies, HistoryQuotas: conf.History.quotas(),
		SelfPodUID: conf.SelfPodUID,
		MaxGap:     time.Duration(conf.MaxGap), FeedTimeout: time.Duration(conf.FeedTimeout),
		HeartbeatInterval: time.Duration(conf.FeedTimeout) / 3,
		Observer:          s.metrics, Logger: deps.Logger, OnHealth: s.onHealth, Jitter: deps.Jitter, CommitRest: deps.CommitRest,
	})
	deps.Registry.MustRegister(newCollector(s.engine, deps.Clock, deps.Logger))
	if err := s.buildGRPC(); err != nil {
		if s.audit != nil {
			s.audit.close()
		}
		return nil, err
	}
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	admin := adminhttp.Config{Registry: deps.Registry, Ready: s.ready, Profiles: conf.Pprof, Logger: deps.Logger}
	if s.agent != nil {
		admin.Parts = map[string]func() error{"agent": s.agent.ready}
	}
	s.admin = adminhttp.NewServer(admin)
	return s, nil
}

// open is the engine's way to the store.
func (s *Service) open(ctx context.Context) (engine.Store, error) {
	settings := StoreSettings{
		Path: filepath.Join(s.conf.DataDir, dataFile),
		Damaged: func(where string, err error) {
			s.metrics.Damaged(where)
			s.deps.Logger.Warn("a closed eviction cannot be read and is left out", "where", where, "error", err)
		},
		WasSetAside: func(to string, why error) {
			s.deps.Logger.Error("the data file was beyond help and is set aside; the service begins anew: every cluster is adopted again, and pauses, reprieves and stored policies are gone",
				"file", to, "error", why)
		},
		Migrated: func(from, to uint32, backup string) {
			s.deps.Logger.Warn("the data file was of an older schema version and is migrated; an older program needs the copy",
				"from", from, "to", to, "copy", backup)
		},
	}
	if last := s.unhealthy.Load(); last != nil && errors.Is(*last, syscall.ENOSPC) {
		settings.Room = roomAfterFull
	}
	if s.conf.Store.OnDamage == onDamageSetAside {
		settings.SetAside = func(path string) string {
			return path + ".damaged-" + s.deps.Clock.Now().UTC().Format("20060102T150405Z")
		}
	}
	return s.deps.OpenStore(ctx, settings)
}

func (s *Service) buildGRPC() error {
	creds := &credentialChecker{}
	if s.conf.anonymous() {
		creds.anonymous = anonymousCaller()
	}
	var err error
	if s.audit, err = newAuditor(s.conf.Audit, s.deps.Clock, s.metrics, s.deps.Logger); err != nil {
		return err
	}
	calls := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram())
	s.chain = &chain{metrics: calls, audit: s.audit, logger: s.deps.Logger, stopping: new(atomic.Bool), auth: &authorizer{
		creds: creds, live: newLiveStreams(&s.running), limits: newLimiter(s.deps.Clock, s.conf.Limits, s.metrics),
		denied: func(method string) { s.metrics.denied.WithLabelValues(method).Inc() },
	}}
	opts := append(s.chain.options(), s.transport()...)
	listener, err := s.watchFiles(creds)
	if err != nil {
		return err
	}
	if listener != nil {
		opts = append(opts, grpc.Creds(listener))
	}
	s.grpc = grpc.NewServer(opts...)
	s.register(s.grpc)
	calls.InitializeMetrics(s.grpc)
	s.deps.Registry.MustRegister(calls)
	if s.conf.joins() {
		return s.joinCluster(s.chain, s.deps.NewAgent)
	}
	return nil
}

// watchFiles puts what the files of certificates and tokens hold in force, now
// and whenever they change. It returns the listener's TLS, if there is one.
func (s *Service) watchFiles(creds *credentialChecker) (*listenerTLS, error) {
	listener := newListenerTLS(func() time.Time { return wallTime(s.deps.Clock) }, s.deps.Logger)
	s.reloader = newReloader(&s.deps, s.metrics, s.chain.auth.recheck, func() {
		s.chain.auth.limits.sweep()
		if n := listener.sweep(); n > 0 {
			s.deps.Logger.Info("connections closed: their client certificates are no longer valid", "count", n)
		}
	})
	var files []reloadable
	if s.conf.Auth.TokensFile != "" {
		files = append(files, tokensFile(s.conf.Auth.TokensFile, creds))
	}
	if s.conf.TLS.enabled() {
		files = append(files, listener.files(&s.conf.TLS)...)
	}
	for _, f := range files {
		if err := s.reloader.add(f); err != nil {
			return nil, err
		}
	}
	if !s.conf.TLS.enabled() {
		return nil, nil
	}
	return listener, nil
}

// register gives a server all that this one serves.
func (s *Service) register(g *grpc.Server) {
	reprievev1.RegisterFeedServiceServer(g, &feedService{engine: s.engine, clock: s.deps.Clock, metrics: s.metrics, stopped: s.stopped, running: &s.running})
	reprievev1.RegisterEvictionServiceServer(g, &evictionService{engine: s.engine, stopped: s.stopped, running: &s.running})
	reprievev1.RegisterQueryServiceServer(g, &queryService{engine: s.engine, maxPage: s.conf.Limits.MaxPageSize, reports: make(chan struct{}, 1)})
	reprievev1.RegisterAdminServiceServer(g, &adminService{engine: s.engine, dataDir: s.conf.DataDir, backups: make(chan struct{}, 1)})
	healthv1.RegisterHealthServer(g, s.health)
	reflection.RegisterV1(g)
}

// transport has no age limit of connections: it would cut feeds, each of which
// then has to list a whole cluster again.
func (s *Service) transport() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.conf.Limits.MaxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(s.conf.Limits.MaxStreams)),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 15 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
}

// onHealth follows the engine.
func (s *Service) onHealth(serving bool, cause error) {
	if serving {
		s.unhealthy.Store(nil)
		s.setHealth(healthv1.HealthCheckResponse_SERVING)
		return
	}
	if cause == nil {
		cause = engine.ErrUnavailable
	}
	s.unhealthy.Store(&cause)
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
}

// setHealth sets the health of the whole and of each service: all need the store.
func (s *Service) setHealth(st healthv1.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", st)
	for name := range s.grpc.GetServiceInfo() {
		if !open(name) {
			s.health.SetServingStatus(name, st)
		}
	}
}

// ready says why the service cannot do its work; nil if it can.
func (s *Service) ready() error {
	if s.chain.stopping.Load() {
		return engine.ErrStopped
	}
	if err := s.unhealthy.Load(); err != nil {
		return *err
	}
	return nil
}

// Start opens the store and begins to decide. Its error is the store's.
func (s *Service) Start(ctx context.Context) error {
	if err := s.engine.Start(ctx); err != nil {
		return err
	}
	s.started = true
	s.stopClock = watchClock(s.deps.Clock, s.metrics, s.deps.Logger)
	s.reloader.start()
	return nil
}
