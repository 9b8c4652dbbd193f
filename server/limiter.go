package server

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// errLimited is what a caller gets who asks for too much.
var errLimited = errors.New("too much of one caller")

// streamRetry is when to try again where streams have to end first.
const streamRetry = 5 * time.Second

// Limits that refuse calls, as metrics name them.
const (
	limitCalls   = "calls"
	limitStreams = "streams"
)

// limitError says which limit was met and when to try again.
type limitError struct {
	text  string
	retry time.Duration
}

func (e *limitError) Error() string { return errLimited.Error() + ": " + e.text }
func (e *limitError) Unwrap() error { return errLimited }

// limiter bounds what each caller may ask for, whatever its connections. A nil
// limiter bounds nothing.
type limiter struct {
	clock   clock.Clock
	conf    Limits
	limited func(limit string)

	mu sync.Mutex // guards quotas and what is in them
	// quotas are by identity. Those that say nothing any more are swept.
	quotas map[string]*quota
}

// quota is what one caller has used.
type quota struct {
	calls   *rate.Limiter
	streams int
}

func newLimiter(c clock.Clock, conf Limits, m *metrics) *limiter {
	for _, limit := range []string{limitCalls, limitStreams} {
		m.limited.WithLabelValues(limit)
	}
	return &limiter{clock: c, conf: conf, quotas: map[string]*quota{}, limited: func(limit string) { m.limited.WithLabelValues(limit).Inc() }}
}

// of is the quota of a caller. mu is held.
func (l *limiter) of(who *caller) *quota {
	id := who.identity()
	q := l.quotas[id]
	if q == nil {
		q = &quota{calls: rate.NewLimiter(rate.Limit(l.conf.CallsPerSecond), l.conf.CallsBurst)}
		if l.conf.CallsPerSecond == 0 {
			q.calls.SetLimit(rate.Inf)
		}
		l.quotas[id] = q
	}
	return q
}

// call takes one call of the caller's.
func (l *limiter) call(who *caller) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	r := l.of(who).calls.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	l.limited(limitCalls)
	return &limitError{retry: wait, text: fmt.Sprintf("%q may call %d times a second (limits.calls_per_second)", who.name, l.conf.CallsPerSecond)}
}

// open takes a stream of the caller's, which closed gives back.
func (l *limiter) open(who *caller) (closed func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.of(who)
	if q.streams >= l.conf.StreamsPerIdentity {
		l.limited(limitStreams)
		return nil, &limitError{retry: streamRetry, text: fmt.Sprintf("%q may have %d streams at a time (limits.streams_per_identity)", who.name, l.conf.StreamsPerIdentity)}
	}
	q.streams++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		q.streams--
	}, nil
}

// sweep forgets the callers that have no streams and have not called for a while.
func (l *limiter) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for id, q := range l.quotas {
		if q.streams == 0 && q.calls.TokensAt(now) >= float64(l.conf.CallsBurst) {
			delete(l.quotas, id)
		}
	}
}
