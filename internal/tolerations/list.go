package tolerations

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// pageSize is how many pods a list takes at a time.
const pageSize = 500

// Source says which pods to look at, and through what.
type Source struct {
	// Pods is the way to the API server. Required.
	Pods corev1client.PodsGetter
	// Namespace and Selector bound the pods; empty is all.
	Namespace, Selector string
	// ComparisonOperators says that the API server and the policy have Gt and Lt on.
	ComparisonOperators bool
	// Timeout bounds each call; 0 is no bound.
	Timeout time.Duration
	// Progress is told how many pods have been looked at, and how many there are as
	// far as is known; may be nil.
	Progress func(done, total int)
}

// call bounds one call.
func (s *Source) call(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.Timeout)
}

// each calls f for every pod, a page at a time. Where a page is asked for after the
// state that the list began with is gone, the list goes on with the pods' newer
// state: each pod is looked at alone.
func (s *Source) each(ctx context.Context, f func(*corev1.Pod)) error {
	opts := metav1.ListOptions{LabelSelector: s.Selector, Limit: pageSize}
	done := 0
	for {
		list, err := s.page(ctx, opts)
		if next := goOn(err); next != "" && next != opts.Continue {
			opts.Continue = next
			continue
		}
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		done += len(list.Items)
		if s.Progress != nil {
			total := done
			if left := list.RemainingItemCount; left != nil {
				total += int(*left)
			}
			s.Progress(done, total)
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return nil
		}
	}
}

func (s *Source) page(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	return s.Pods.Pods(s.Namespace).List(ctx, opts)
}

// goOn is the place that the API server offers with the refusal of a page that came
// too late; empty if it offers none.
func goOn(err error) string {
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}
