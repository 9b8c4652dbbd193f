package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The lease's times. A leader that cannot renew within renewDeadline stops before
// another may follow it, after leaseDuration.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = 2 * time.Second
)

// errLeaseLost ends a leader that could not renew its lease.
var errLeaseLost = fmt.Errorf("the lease was lost: it was not renewed for %s, or another agent has it", renewDeadline)

// campaign is one try to lead, and the time as leader that comes of it. lead is
// called with the lease's number of transitions, which grows with each leader;
// its context ends when ctx does or the lease is lost. campaign returns when lead
// has, with its error.
func campaign(ctx context.Context, kube kubernetes.Interface, conf *Config, told *troubles, lead func(ctx context.Context, epoch uint64) error) error {
	lock := &toldLock{troubles: told, Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: conf.Namespace, Name: conf.LeaseName},
		Client:    kube.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: holder(conf.ID)},
	}}
	// The lease outlives ctx until lead has returned: only then may another lead.
	electing, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	r := &reign{resign: resign, done: make(chan struct{})}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: conf.LeaseName, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				r.rule(ctx, leading, func(ctx context.Context) error {
					epoch, err := transitions(ctx, kube, conf)
					if err != nil {
						return err
					}
					return lead(ctx, epoch)
				})
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	defer context.AfterFunc(ctx, r.abandon)()
	elector.Run(electing)
	return r.wait(electing)
}

// holder is the lease's holder in one campaign. With the id alone two agents that
// were given one id would both lead.
func holder(id string) string { return fmt.Sprintf("%s_%08x", id, rand.Uint32()) }

// transitions reads how often the lease has changed hands. The elector's own lock
// is not for others: it remembers what it read.
func transitions(ctx context.Context, kube kubernetes.Interface, conf *Config) (uint64, error) {
	lease, err := kube.CoordinationV1().Leases(conf.Namespace).Get(ctx, conf.LeaseName, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("read the lease for its transitions: %w", err)
	}
	if n := lease.Spec.LeaseTransitions; n != nil && *n > 0 {
		return uint64(*n), nil
	}
	return 0, nil
}

// reign is what becomes of a campaign.
type reign struct {
	resign context.CancelFunc
	done   chan struct{} // closed when rule has returned

	mu        sync.Mutex // guards what follows
	began     bool
	abandoned bool
	err       error
}

// rule leads, unless the campaign was abandoned before it began.
func (r *reign) rule(ctx, leading context.Context, lead func(context.Context) error) {
	defer close(r.done)
	defer r.resign()
	r.mu.Lock()
	if r.abandoned {
		r.mu.Unlock()
		return
	}
	r.began = true
	r.mu.Unlock()
	both, cancel := context.WithCancelCause(leading)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	err := lead(both)
	if leading.Err() != nil && ctx.Err() == nil {
		err = errLeaseLost
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// abandon ends a campaign that has not led to anything yet.
func (r *reign) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = true
	if !r.began {
		r.resign()
	}
}

// wait waits for a rule that has begun, or is about to because the elector ended
// by itself: it lost the lease, so it had it.
func (r *reign) wait(electing context.Context) error {
	r.mu.Lock()
	wait := r.began || electing.Err() == nil
	r.mu.Unlock()
	if !wait {
		return nil
	}
	<-r.done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
