package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"
)

// reigns runs a campaign for id; began gets the epoch of each lead.
func reigns(ctx context.Context, kube *fake.Clientset, id string, began chan<- uint64, end error) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- campaign(ctx, kube, &Config{ID: id, Namespace: "ns", LeaseName: "agent"}, func(ctx context.Context, epoch uint64) error {
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
		if took := time.Since(gaveUp); took > 2*retryPeriod {
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
