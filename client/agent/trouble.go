package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// troubles are the API server's calls that fail and are made again. Each is one
// warning for each new reason however long it lasts, and one line at its end; the
// attempts between are for debugging.
type troubles struct {
	log *slog.Logger

	mu   sync.Mutex // guards open
	open map[string]trouble
}

// trouble is a call that failed last time.
type trouble struct {
	reason string
	failed int
	err    error
}

func newTroubles(log *slog.Logger) *troubles {
	return &troubles{log: log, open: map[string]trouble{}}
}

// note tells how a call went, named by its verb and resource. A call that was
// given up says nothing; one that had its time and did not end says that.
func (t *troubles) note(ctx context.Context, call string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	t.mu.Lock()
	old, was := t.open[call]
	now := trouble{failed: old.failed + 1, err: err}
	if err == nil {
		delete(t.open, call)
	} else {
		now.reason = failReason(err)
		t.open[call] = now
	}
	t.mu.Unlock()
	switch {
	case err == nil && was:
		t.log.InfoContext(ctx, "the API server answers as it should again", "call", call, "failed", old.failed)
	case err == nil:
	default:
		level := slog.LevelWarn
		if was && old.reason == now.reason {
			level = slog.LevelDebug
		}
		attrs := []any{"call", call, "error", err, "failed", now.failed}
		if help := remedy(call, err); help != "" {
			attrs = append(attrs, "help", help)
		}
		t.log.Log(ctx, level, "a call to the API server failed, trying again", attrs...)
	}
}

// forget drops calls that nobody makes any more.
func (t *troubles) forget(calls ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, call := range calls {
		delete(t.open, call)
	}
}

// err names all calls that fail; nil if none does.
func (t *troubles) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []error
	for _, call := range slices.Sorted(maps.Keys(t.open)) {
		err := fmt.Errorf("%s: %w", call, t.open[call].err)
		if help := remedy(call, t.open[call].err); help != "" {
			err = fmt.Errorf("%w; %s", err, help)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// failReason is what two failures of one reason have in common. The texts of
// broken connections differ in ports.
func failReason(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// leaseCalls end so: their rights come from a Role, those of the calls for node
// health from an overlay of their own, and those of all others from the ClusterRole.
const leaseCalls = "the lease"

// remedy is what a person can do about a failure; empty where the error says all.
func remedy(call string, err error) string {
	lease := strings.HasSuffix(call, leaseCalls)
	switch {
	case apierrors.IsForbidden(err) && lease:
		return "bind the agent's user to the Role reprieve-agent in the lease's namespace (deploy/kustomize/base/agent/rbac.yaml)"
	case apierrors.IsForbidden(err) && (strings.HasSuffix(call, " leases") || strings.HasPrefix(call, "patch nodes")):
		return "apply deploy/kustomize/overlays/node-health, or switch node_health off in the cluster's policy"
	case apierrors.IsForbidden(err):
		return "bind the agent's user to the ClusterRole reprieve-agent (deploy/kustomize/base/clusterrole)"
	case apierrors.IsUnauthorized(err):
		return "the API server does not know the agent's credentials: renew those of the kubeconfig or the service account"
	case apierrors.IsNotFound(err) && lease:
		return "create the lease's namespace, or name another with --namespace"
	}
	return ""
}

// lacksRight reports whether err is RBAC's refusal of the call itself, and not
// admission's of this object.
func lacksRight(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ") && strings.Contains(err.Error(), " resource ")
}

// toldLock is a lease's lock whose failures are told.
type toldLock struct {
	resourcelock.Interface
	troubles *troubles
}

// Get implements [resourcelock.Interface]. That there is no lease yet is no trouble.
func (l *toldLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.tell(ctx, "get "+leaseCalls, err, apierrors.IsNotFound)
	return record, raw, err
}

// Create implements [resourcelock.Interface].
func (l *toldLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, r)
	l.tell(ctx, "create "+leaseCalls, err, apierrors.IsAlreadyExists)
	return err
}

// Update implements [resourcelock.Interface]. That another was faster is no trouble.
func (l *toldLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, r)
	l.tell(ctx, "update "+leaseCalls, err, apierrors.IsConflict)
	return err
}

func (l *toldLock) tell(ctx context.Context, call string, err error, usual func(error) bool) {
	if err != nil && usual(err) {
		err = nil
	}
	l.troubles.note(ctx, call, err)
}
