package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
)

// object is a pointer to an API object; its zero value is nil.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// follow lists and watches a resource of the core group until the test ends, and tells of each object what it was and
// is: was is nil for a new one, is for one that is gone. It returns when the first list was told. An API server that was
// away is found within half a second of being back: with an informer's back-off what is told would be late by up to
// half the outage.
func follow[T object](t testing.TB, cs kubernetes.Interface, resource string, example T, tell func(was, is T)) {
	t.Helper()
	s := &followed[T]{objects: map[types.UID]T{}, listed: make(chan struct{}), tell: tell}
	r := cache.NewReflectorWithOptions(
		cache.NewListWatchFromClient(cs.CoreV1().RESTClient(), resource, metav1.NamespaceAll, fields.Everything()), example, s,
		cache.ReflectorOptions{Name: "test " + resource, Backoff: &wait.Backoff{Duration: 250 * time.Millisecond, Factor: 1, Steps: 1, Jitter: 1}},
	)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); r.RunWithContext(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	await.Until(t, settleWithin, "a list of "+resource, func(context.Context) error {
		select {
		case <-s.listed:
			return nil
		default:
			return errors.New("the watch has not synced")
		}
	})
}

// followed is the store of follow's reflector, whose goroutine it belongs to.
type followed[T object] struct {
	objects map[types.UID]T
	listed  chan struct{}
	tell    func(was, is T)
}

// Add implements [cache.ReflectorStore].
func (s *followed[T]) Add(obj any) error { return s.put(obj) }

// Update implements [cache.ReflectorStore].
func (s *followed[T]) Update(obj any) error { return s.put(obj) }

func (s *followed[T]) put(obj any) error {
	is, ok := obj.(T)
	if !ok {
		return fmt.Errorf("an object of type %T", obj)
	}
	was := s.objects[is.GetUID()]
	s.objects[is.GetUID()] = is
	s.tell(was, is)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (s *followed[T]) Delete(obj any) error {
	last, ok := obj.(T)
	if !ok {
		return fmt.Errorf("an object of type %T", obj)
	}
	s.gone(last)
	return nil
}

func (s *followed[T]) gone(last T) {
	var none T
	delete(s.objects, last.GetUID())
	s.tell(last, none)
}

// Replace implements [cache.ReflectorStore]: a whole list.
func (s *followed[T]) Replace(list []any, _ string) error {
	there := map[types.UID]bool{}
	for _, obj := range list {
		if err := s.put(obj); err != nil {
			return err
		}
		there[obj.(T).GetUID()] = true
	}
	for uid, last := range s.objects {
		if !there[uid] {
			s.gone(last)
		}
	}
	select {
	case <-s.listed:
	default:
		close(s.listed)
	}
	return nil
}

// Resync implements [cache.ReflectorStore]; there is nothing to tell again.
func (s *followed[T]) Resync() error { return nil }
