package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

const (
	// maxQuiet is how long a watch may show nothing and still be believed. API
	// servers send a bookmark about once a minute.
	maxQuiet = 90 * time.Second
	// expiredPause is the time between watches that are refused for their age.
	expiredPause = time.Second
	// pageSize is how many objects a list takes at a time where the API server
	// does not stream lists.
	pageSize = 500
)

// watchBackoff is how a watch comes back to an API server that was away. Its cap
// is a tenth of client-go's, because due evictions wait for it, and the sight of the
// nodes' heartbeats; a cluster has two agents at most, so that this is no herd.
func watchBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Cap: 3 * time.Second, Steps: 8, Factor: 2, Jitter: 0.5}
}

// follower lists and watches one resource into a store.
type follower struct {
	store    cache.ReflectorStore
	resource string
	rest     rest.Interface
	example  runtime.Object
	// selector is of fields, namespace empty for all.
	selector, namespace string
	clock               clock.Clock
	troubles            *troubles
	// stirred is called when a watch begins, ends, or shows life after long.
	stirred func()

	mu   sync.Mutex // guards what follows
	open int        // watches that stand
	last time.Time  // of the last sign of life
}

// newFollowers returns those of nodes and of pods that have a node: what is not
// bound to one is nobody's to evict.
func newFollowers(s *state, core rest.Interface, clk clock.Clock, t *troubles) []*follower {
	return []*follower{
		{store: &s.nodes, resource: s.nodes.resource, rest: core, example: &corev1.Node{}, clock: clk, troubles: t, stirred: s.stir},
		{store: &s.pods, resource: s.pods.resource, rest: core, example: &corev1.Pod{}, selector: "spec.nodeName!=", clock: clk, troubles: t, stirred: s.stir},
	}
}

// run follows until ctx is done.
func (f *follower) run(ctx context.Context) {
	r := cache.NewReflectorWithOptions(f, f.example, f.store, cache.ReflectorOptions{Name: f.resource, Backoff: watchBackoff()})
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// ListWithContext implements [cache.ListerWithContext].
func (f *follower) ListWithContext(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if opts.ResourceVersion == "0" {
		// That would take any state that the API server has in memory, however
		// old. Deletions are decided on this list.
		opts.ResourceVersion = ""
	}
	opts.FieldSelector = f.selector
	list, err := f.rest.Get().NamespaceIfScoped(f.namespace, f.namespace != "").Resource(f.resource).VersionedParams(&opts, scheme.ParameterCodec).Do(ctx).Get()
	f.troubles.note(ctx, f.calls("list"), err)
	if err != nil {
		return nil, err
	}
	strip(list)
	return list, nil
}

// WatchWithContext implements [cache.WatcherWithContext].
func (f *follower) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch, opts.FieldSelector = true, f.selector
	w, err := f.rest.Get().NamespaceIfScoped(f.namespace, f.namespace != "").Resource(f.resource).VersionedParams(&opts, scheme.ParameterCodec).Watch(ctx)
	f.troubles.note(ctx, f.calls("watch"), err)
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			// The reflector begins anew at once, as if that could not be refused too.
			pause(ctx, expiredPause)
		}
		return nil, err
	}
	// A watch may have taken the place of a list that failed.
	f.troubles.forget(f.calls("list"))
	return f.attend(w), nil
}

// calls names a kind of call for people.
func (f *follower) calls(verb string) string { return verb + " " + f.resource }

// List implements [cache.Lister], which [cache.NewReflectorWithOptions] asks for
// and does not call.
func (f *follower) List(opts metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), opts)
}

// Watch implements [cache.Watcher] as List does [cache.Lister].
func (f *follower) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), opts)
}

// attended is a watch whose signs of life are noted.
type attended struct {
	out  chan watch.Event
	stop func()
}

// ResultChan implements [watch.Interface].
func (a *attended) ResultChan() <-chan watch.Event { return a.out }

// Stop implements [watch.Interface]. When it returns the watch does not count as
// open any more, and nothing of it touches the follower.
func (a *attended) Stop() { a.stop() }

func (f *follower) attend(w watch.Interface) watch.Interface {
	a := &attended{out: make(chan watch.Event)}
	a.stop = sync.OnceFunc(func() {
		w.Stop()
		// The goroutine would wait for a reader for ever, or end after the follower's
		// end was waited for: until then it counts the watch as open.
		for range a.out {
		}
	})
	f.sign(1)
	go func() {
		defer close(a.out)
		defer f.sign(-1)
		for e := range w.ResultChan() {
			f.sign(0)
			strip(e.Object)
			a.out <- e
		}
	}()
	return a
}

// sign notes a sign of life, and by how many the open watches have changed.
func (f *follower) sign(opened int) {
	f.mu.Lock()
	f.open += opened
	stir := opened != 0
	if opened >= 0 {
		now := f.clock.Now()
		// A list waits for a watch that was too quiet to be believed.
		stir = stir || now.Sub(f.last) > maxQuiet
		f.last = now
	}
	f.mu.Unlock()
	if stir {
		f.stirred()
	}
}

// quiet is how long the watch has shown nothing, and whether one stands.
func (f *follower) quiet() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clock.Now().Sub(f.last), f.open > 0
}
