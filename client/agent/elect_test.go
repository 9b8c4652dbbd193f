package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
)

func quiet() *troubles { return newTroubles(slog.New(slog.DiscardHandler)) }

// reigns runs a campaign for id; began gets the epoch of each lead.
func reigns(ctx context.Context, kube *fake.Clientset, id string, began chan<- uint64, end error) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- campaign(ctx, kube, &Config{ID: id, Namespace: "ns", LeaseName: "agent"}, quiet(), func(ctx context.Context, epoch uint64) error {
			began <- epoch
			if end != nil {
				return end
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	return done
}

// One leads, the other follows it as soon as the lease is given back, in a
// higher epoch.
func TestCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		first, stopFirst := context.WithCancel(t.Context())
		second, stopSecond := context.WithCancel(t.Context())
		beganFirst, beganSecond := make(chan uint64, 1), make(chan uint64, 1)
		firstDone := reigns(first, kube, "a", beganFirst, nil)
		epoch := <-beganFirst
		secondDone := reigns(second, kube, "b", beganSecond, nil)
		time.Sleep(time.Minute)
		if len(beganSecond) != 0 {
			t.Fatal("two lead at once")
		}
		stopFirst()
		if err := <-firstDone; !errors.Is(err, context.Canceled) {
			t.Errorf("the first campaign ended with %v", err)
		}
		gaveUp := time.Now()
		if next := <-beganSecond; next <= epoch {
			t.Errorf("epoch %d follows %d", next, epoch)
		}
		// It looks again after retryPeriod and at most JitterFactor times as much.
		latest := retryPeriod + time.Duration(leaderelection.JitterFactor*float64(retryPeriod))
		if took := time.Since(gaveUp); took > latest {
			t.Errorf("the second led %s after the lease was given back", took)
		}
		stopSecond()
		<-secondDone
	})
}

// A leader whose lead fails gives the lease back at once, and its error is told.
func TestCampaignEndsWithItsLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		began, want := make(chan uint64, 2), errors.New("refused")
		if err := <-reigns(t.Context(), kube, "a", began, want); !errors.Is(err, want) {
			t.Errorf("campaign ended with %v, want %v", err, want)
		}
		since := time.Now()
		if err := <-reigns(t.Context(), kube, "b", began, want); !errors.Is(err, want) {
			t.Errorf("the next campaign ended with %v", err)
		}
		if took := time.Since(since); took > 2*retryPeriod {
			t.Errorf("the lease was free only after %s", took)
		}
	})
}

// A campaign that never led ends with its context.
func TestCampaignAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		began := make(chan uint64, 1)
		holder := reigns(ctx, kube, "a", began, nil)
		<-began
		waiting, abandon := context.WithCancel(t.Context())
		done := reigns(waiting, kube, "b", began, nil)
		time.Sleep(time.Minute)
		abandon()
		if err := <-done; err != nil {
			t.Errorf("an abandoned campaign ended with %v", err)
		}
		stop()
		<-holder
	})
}

// Two agents that were given one id are two all the same.
func TestCampaignOfOneIDTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		ctx, stop := context.WithCancel(t.Context())
		began := make(chan uint64, 2)
		first, second := reigns(ctx, kube, "a", began, nil), reigns(ctx, kube, "a", began, nil)
		time.Sleep(time.Minute)
		if len(began) != 1 {
			t.Errorf("%d lead", len(began))
		}
		stop()
		<-first
		<-second
	})
}

// A leader whose lease cannot be renewed ends, and both the call and the end say why.
func TestCampaignLosesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "agent", errors.New("not yours"))
		})
		began := make(chan uint64, 1)
		told := quiet()
		done := make(chan error, 1)
		go func() {
			done <- campaign(t.Context(), kube, &Config{ID: "a", Namespace: "ns", LeaseName: "agent"}, told, func(ctx context.Context, epoch uint64) error {
				began <- epoch
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		<-began
		if err := <-done; !errors.Is(err, errLeaseLost) {
			t.Errorf("the campaign ended with %v", err)
		}
		if err := told.err(); err == nil || !strings.Contains(err.Error(), "Role reprieve-agent in the lease's namespace") {
			t.Errorf("told: %v", err)
		}
	})
}
