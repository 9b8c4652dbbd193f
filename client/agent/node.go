package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

const (
	// nodeFresh is how long a read of a node serves the orders of that node.
	nodeFresh = time.Second
	// nodeOld is how old a read may have become when the pod is touched: an order
	// waits for its turn, and the whole process may have been stopped.
	nodeOld = 3 * time.Second
	// nodeReads bounds how many reads are remembered.
	nodeReads = 1000
)

// nodeReader reads nodes live, each at most once a second.
type nodeReader struct {
	get   func(ctx context.Context, name string) (*corev1.Node, error)
	clock clock.Clock

	mu    sync.Mutex // guards reads
	reads map[string]*nodeRead
}

// nodeRead is one read of a node; what was read is set when done is closed.
type nodeRead struct {
	at     time.Time
	done   chan struct{}
	uid    types.UID
	ready  corev1.ConditionStatus
	taints []corev1.Taint
	err    error
}

// taints are the node's as the API server has them, read since old ago.
func (r *nodeReader) taints(ctx context.Context, name string, old time.Duration) ([]corev1.Taint, error) {
	read, err := r.look(ctx, name, old)
	if err != nil {
		return nil, err
	}
	return read.taints, nil
}

// look is the node as the API server has it, read since old ago.
func (r *nodeReader) look(ctx context.Context, name string, old time.Duration) (*nodeRead, error) {
	read, mine := r.read(name, old)
	if mine {
		r.carryOut(ctx, read, name)
	}
	select {
	case <-read.done:
		return read, read.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// carryOut makes a read, which is not for this order alone: its recall does not end it.
func (r *nodeReader) carryOut(order context.Context, read *nodeRead, name string) {
	defer close(read.done)
	ctx, cancel := outlasting(order)
	defer cancel()
	node, err := r.get(ctx, name)
	if read.err = err; err == nil {
		read.uid, read.taints = node.UID, node.Spec.Taints
		read.ready, _ = readiness(node)
	}
}

// read finds a fresh read, or begins one that is the caller's to carry out.
func (r *nodeReader) read(name string, fresh time.Duration) (read *nodeRead, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if old := r.reads[name]; old != nil && now.Sub(old.at) < fresh {
		return old, false
	}
	if len(r.reads) >= nodeReads {
		for n, old := range r.reads {
			if now.Sub(old.at) >= nodeOld {
				delete(r.reads, n)
			}
		}
	}
	read = &nodeRead{at: now, done: make(chan struct{})}
	r.reads[name] = read
	return read, true
}
