package tolerations

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// workers is how many pods are patched at once, so that a slow answer does not
	// lower the rate.
	workers = 8
	// tries is how often a pod is read again that changes meanwhile.
	tries = 5
	// maxFailedInRow ends a run whose every patch is refused: lacking rights or an API
	// server that is away do not mend by trying the next pod.
	maxFailedInRow = 20
)

// Pace says how a plan is carried out.
type Pace struct {
	// PerSecond is the most patches a second. Required.
	PerSecond float64
	// Progress is told how many pods are done with and how many there are; may be nil.
	// It is called by one goroutine at a time.
	Progress func(done, total int)
}

// backfill is one run over a plan.
type backfill struct {
	plan  *Plan
	waits Waits
	pace  Pace
	limit *rate.Limiter

	mu   sync.Mutex // guards what follows
	done int
	row  int // failures since the last success
}

// Apply adds what is missing, pod by pod. What became of each pod is in the plan's
// report, also after an error: ctx's end, or too many failures one after the other.
// Nothing has to be kept for another run to go on: it finds what is still missing.
func (p *Plan) Apply(ctx context.Context, w Waits, pace Pace) error {
	b := &backfill{plan: p, waits: w, pace: pace, limit: rate.NewLimiter(rate.Limit(pace.PerSecond), 1)}
	group, ctx := errgroup.WithContext(ctx)
	next := make(chan *candidate)
	group.Go(func() error {
		defer close(next)
		for _, c := range p.pods {
			select {
			case next <- c:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range workers {
		group.Go(func() error {
			for c := range next {
				if err := b.one(ctx, c); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// one mends one pod and notes what became of it.
func (b *backfill) one(ctx context.Context, c *candidate) error {
	c.outcome, c.err = b.mend(ctx, c)
	if ctx.Err() != nil && c.outcome == failed {
		// Nobody waited for the answer: the pod is not known to have refused.
		c.outcome, c.err = untouched, nil
		return context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	if b.pace.Progress != nil {
		b.pace.Progress(b.done, len(b.plan.pods))
	}
	if c.outcome != failed {
		b.row = 0
		return nil
	}
	if b.row++; b.row >= maxFailedInRow {
		return fmt.Errorf("%d pods in a row could not be mended; the last: %w", b.row, c.err)
	}
	return nil
}

// mend patches a pod, and reads it again when it has changed since it was read.
func (b *backfill) mend(ctx context.Context, c *candidate) (outcome, error) {
	for range tries {
		if err := b.limit.Wait(ctx); err != nil {
			return failed, err
		}
		err := b.patch(ctx, c)
		switch {
		case err == nil:
			return mended, nil
		case apierrors.IsNotFound(err):
			return gone, nil
		case !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !unanswered(err):
			return failed, err
		}
		before := c.version
		if again, readErr := b.read(ctx, c); again != untouched || readErr != nil {
			return again, readErr
		}
		if c.version == before && !unanswered(err) {
			return failed, err // It is as it was read, and was refused as such.
		}
	}
	return failed, errors.New("it changed each time before it could be patched, or the API server did not answer")
}

// unanswered reports whether the API server may or may not have done what it was asked.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

func (b *backfill) patch(ctx context.Context, c *candidate) error {
	body, err := c.patch(b.waits)
	if err != nil {
		return err
	}
	ctx, cancel := b.plan.source.call(ctx)
	defer cancel()
	_, err = b.plan.source.Pods.Pods(c.namespace).Patch(ctx, c.name, types.JSONPatchType, body, metav1.PatchOptions{})
	return err
}

// read reads a pod again: untouched means that it still has to be mended.
func (b *backfill) read(ctx context.Context, c *candidate) (outcome, error) {
	ctx, cancel := b.plan.source.call(ctx)
	defer cancel()
	var pod *corev1.Pod
	pod, err := b.plan.source.Pods.Pods(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return gone, nil
	case err != nil:
		return failed, err
	case pod.UID != c.uid, len(b.plan.examiner.steps(pod)) == 0:
		return gone, nil
	}
	lacked := c.lacks
	if c.read(b.plan.examiner, pod); len(c.lacks) == 0 {
		c.lacks = lacked // The report tells what it was about.
		return whole, nil
	}
	return untouched, nil
}
