package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/reprieve-dev/reprieve/internal/buildinfo"
)

// farewell is how long the last answers may take to leave after the engine has stopped.
const farewell = time.Second

// errShutdown ends Run without a fault.
var errShutdown = errors.New("asked to stop")

// Run listens, starts, serves until ctx ends or something fails, and stops.
func (s *Service) Run(ctx context.Context) error {
	// What New opened is closed, however far it comes.
	defer s.Stop()
	lis, err := listen("listen", s.conf.Listen)
	if err != nil {
		return err
	}
	defer lis.Close()
	adminLis, err := listen("admin_listen", s.conf.AdminListen)
	if err != nil {
		return err
	}
	if adminLis != nil {
		defer adminLis.Close()
	}
	if err := s.Start(ctx); err != nil {
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			// Asked to stop before it had begun.
			return nil
		}
		return s.startError(err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Serve(lis) })
	admin := "none"
	if adminLis != nil {
		admin = adminLis.Addr().String()
		group.Go(func() error { return s.serveAdmin(adminLis) })
	}
	s.deps.Logger.Info("serving", "version", buildinfo.Version(), "listen", lis.Addr().String(), "admin_listen", admin,
		"data_dir", s.conf.DataDir, "tls", s.conf.TLS.enabled(), "anonymous", s.conf.anonymous())
	served := s.runAgent(ctx, group)
	group.Go(func() error {
		<-ctx.Done()
		// The agent's orders end first, while the service can still take their answers.
		<-served
		s.Stop()
		return errShutdown
	})
	if err := group.Wait(); !errors.Is(err, errShutdown) {
		return err
	}
	return nil
}

// runAgent runs the agent of this process, if there is one, until ctx ends. The
// channel is closed when it has ended.
func (s *Service) runAgent(ctx context.Context, group *errgroup.Group) <-chan struct{} {
	ended := make(chan struct{})
	if s.agent == nil {
		close(ended)
		return ended
	}
	group.Go(s.agent.serve)
	group.Go(func() error {
		defer close(ended)
		s.agent.run(ctx)
		return nil
	})
	return ended
}

// listen opens a port; none for an empty address.
func listen(key, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	lis, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is in use by another process, perhaps another reprieved; stop it or set another address: %w", key, addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return lis, nil
}

// startError says what to do about a store that cannot be used.
func (s *Service) startError(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("data_dir %s: %w; the service's user must be able to write there", s.conf.DataDir, err)
	}
	return fmt.Errorf("data_dir %s: %w", s.conf.DataDir, err)
}

// Serve answers calls on lis until Stop.
func (s *Service) Serve(lis net.Listener) error {
	// A stop may come before it has begun.
	if err := s.grpc.Serve(lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}

func (s *Service) serveAdmin(lis net.Listener) error {
	if err := s.admin.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin HTTP: %w", err)
	}
	return nil
}

// Stop ends the service: it says so in health, takes no new work, waits no
// longer than limits.stop_timeout for what is under way, and closes the store last.
func (s *Service) Stop() {
	s.stopOnce.Do(s.stop)
}

func (s *Service) stop() {
	if s.started {
		s.deps.Logger.Info("stopping")
		defer s.deps.Logger.Info("stopped")
	}
	s.health.Shutdown()
	s.chain.stopping.Store(true)
	s.stopClock()
	s.reloader.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.conf.Limits.StopTimeout))
	defer cancel()
	// Connections are told to go elsewhere while the engine finishes; streams
	// last until it has.
	idle := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(idle)
	}()
	if s.started {
		s.engine.Stop(ctx)
	}
	close(s.stopped)
	if s.agent != nil {
		s.agent.stop()
	}
	// All calls that the engine had a part in end now. What stays are watchers
	// of health and readers of reflection, which nothing is owed.
	last, cancelLast := context.WithTimeout(ctx, farewell)
	defer cancelLast()
	select {
	case <-idle:
	case <-last.Done():
		s.grpc.Stop()
		<-idle
	}
	s.running.Wait()
	if err := s.admin.Shutdown(ctx); err != nil {
		s.deps.Logger.Warn("admin clients were cut off", "error", err)
	}
	s.audit.close()
}
