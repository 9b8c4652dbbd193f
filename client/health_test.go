package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

const (
	healthOff     = reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OFF
	healthObserve = reprievev1.NodeHealthMode_NODE_HEALTH_MODE_OBSERVE
)

// The feeder tells at each hello what else runs in the cluster, and is told
// whether node health is wanted before it lists, and when that changes.
func TestFeederAndNodeHealth(t *testing.T) {
	var hellos []string
	open := func(s feedServer, seq *uint64) error {
		m, err := expectFeed[*reprievev1.FeedRequest_Hello](s, seq)
		if err != nil {
			return err
		}
		hellos = append(hellos, m.GetHello().GetNodeLifecycleController())
		if err := s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_Welcome{Welcome: &reprievev1.FeedWelcome{NodeHealth: healthOff}}}); err != nil {
			return err
		}
		return list(s, seq, 1)
	}
	f := &fake{feeds: []func(feedServer) error{func(s feedServer) error {
		var seq uint64
		return open(s, &seq)
	}, func(s feedServer) error {
		var seq uint64
		err := errors.Join(open(s, &seq), s.Send(&reprievev1.FeedResponse{Message: &reprievev1.FeedResponse_NodeHealthChanged{
			NodeHealthChanged: &reprievev1.NodeHealthChanged{NodeHealth: healthObserve},
		}}))
		<-s.Context().Done()
		return err
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		src := &source{size: 1, live: make(chan []*reprievev1.Event)}
		asked, told := 0, []reprievev1.NodeHealthMode{}
		feeder := newTestFeeder(t, conn, func(c *FeederConfig) {
			c.Source = src
			c.NodeLifecycleController = func(context.Context) string {
				asked++
				return strings.Repeat("k", asked*maxMessageBytes)
			}
			c.OnNodeHealth = func(m reprievev1.NodeHealthMode) {
				if n := int(src.lists.Load()); len(told) == 0 && n > 0 {
					t.Errorf("told of node health after %d lists", n)
				}
				told = append(told, m)
			}
		})
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- feeder.Run(ctx) }()
		pass(time.Minute)
		synctest.Wait()
		if want := []reprievev1.NodeHealthMode{healthOff, healthOff, healthObserve}; !slices.Equal(told, want) {
			t.Errorf("OnNodeHealth was told %v, want %v", told, want)
		}
		if got := feeder.Status().NodeHealth; got != healthObserve {
			t.Errorf("the status says %s", got)
		}
		if len(hellos) != 2 || hellos[0] == "" || len(hellos[1]) != maxMessageBytes {
			t.Errorf("%d hellos; the last says %d bytes", len(hellos), len(hellos[len(hellos)-1]))
		}
		cancel()
		<-done
	})
}

func nodeOrder(token string) *reprievev1.EvictResponse {
	return &reprievev1.EvictResponse{Message: &reprievev1.EvictResponse_Order{Order: &reprievev1.Order{
		Token: token, DeadlineIn: durationpb.New(time.Minute), Attempt: 2,
		Action: &reprievev1.Order_UpdateNode{UpdateNode: &reprievev1.UpdateNode{Cluster: "c", Name: "n-" + token, Uid: token}},
	}}}
}

// Orders for nodes go to their own handler, within the cluster's capacity; an
// executor without one says so, and answers them as it does all that is unknown.
func TestExecutorCarriesOutNodeOrders(t *testing.T) {
	for name, handles := range map[string]bool{"with a handler": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			results, extends, hello := map[string]*reprievev1.Result{}, 0, &reprievev1.ExecutorHello{}
			f := &fake{evicts: []func(evictServer) error{func(s evictServer) error {
				return serve(results, &extends, nodeOrder("a"), order("pod"), nodeOrder("b"))(&listening{evictServer: s, hello: &hello})
			}}}
			within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
				var now int
				work := func(outcome reprievev1.Outcome, what func(*Task) string) func(context.Context, *Task) Result {
					return func(_ context.Context, task *Task) Result {
						if now++; now > 1 {
							t.Errorf("%d orders of the cluster at once", now)
						}
						defer func() { now-- }()
						pass(time.Minute / 2)
						return Result{Outcome: outcome, Message: what(task)}
					}
				}
				conf := ExecutorConfig{
					ID: "x", Clusters: []string{"c"}, Capacity: 1,
					Handler: work(reprievev1.Outcome_OUTCOME_EVICTED, func(task *Task) string { return task.Pod.GetName() }),
				}
				if handles {
					conf.NodeHandler = work(reprievev1.Outcome_OUTCOME_APPLIED, func(task *Task) string { return task.Node.GetName() })
				}
				e, err := NewExecutor(conn, conf)
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- e.Run(ctx) }()
				synctest.Wait()
				if err := e.Drain(ctx); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				want := map[string]string{"a": "OUTCOME_APPLIED n-a", "b": "OUTCOME_APPLIED n-b", "pod": "OUTCOME_EVICTED pod"}
				if !handles {
					unknown := "OUTCOME_FAILED this executor does not know the order's action; a newer one is needed"
					want["a"], want["b"] = unknown, unknown
				}
				for token, text := range want {
					if got := results[token].GetOutcome().String() + " " + results[token].GetMessage(); got != text {
						t.Errorf("order %s was answered %q, want %q", token, got, text)
					}
				}
				if hello.GetNodeOrders() != handles {
					t.Errorf("hello says %t of node orders", hello.GetNodeOrders())
				}
			})
		})
	}
}

// listening keeps the hello of an executor's stream.
type listening struct {
	evictServer
	hello **reprievev1.ExecutorHello
}

func (l *listening) Recv() (*reprievev1.EvictRequest, error) {
	m, err := l.evictServer.Recv()
	if h := m.GetHello(); h != nil {
		*l.hello = h
	}
	return m, err
}

// A heartbeat tells of another controller that appears or goes on a living stream, once each.
func TestFeederLooksAgainForAnotherController(t *testing.T) {
	var told []string
	f := &fake{feeds: []func(feedServer) error{func(s feedServer) error {
		var seq uint64
		if err := errors.Join(welcomeFeed(s, &seq), list(s, &seq, 1)); err != nil {
			return err
		}
		for {
			m, err := expectFeed[*reprievev1.FeedRequest_Heartbeat](s, &seq)
			if err != nil {
				return err
			}
			if h := m.GetHeartbeat(); h.NodeLifecycleController != nil {
				told = append(told, h.GetNodeLifecycleController())
			}
		}
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		var known atomic.Value
		known.Store("")
		feeder := newTestFeeder(t, conn, func(c *FeederConfig) {
			c.Source = &source{size: 1, live: make(chan []*reprievev1.Event)}
			c.NodeLifecycleController = func(context.Context) string { return known.Load().(string) }
		})
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- feeder.Run(ctx) }()
		for _, now := range []string{"", "pod a", "pod a", "", ""} {
			known.Store(now)
			pass(lookEvery)
			synctest.Wait()
		}
		pass(lookEvery)
		synctest.Wait()
		if want := []string{"pod a", ""}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		cancel()
		<-done
	})
}
