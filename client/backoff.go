package client

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	backoffMin = 200 * time.Millisecond
	backoffMax = 30 * time.Second
	// unreachedMax takes backoffMax's place while the service cannot be reached: the
	// connection, which has a back-off of its own (connectMaxDelay), spares the
	// network, and a stream should follow it soon.
	unreachedMax = 2 * time.Second
)

// backoff gives the pauses between attempts: doubled from backoffMin to
// backoffMax, each shortened at random by up to half so that many clients do not
// come back in step.
type backoff struct{ last time.Duration }

// next is the pause after err.
func (b *backoff) next(err error) time.Duration {
	longest := backoffMax
	if unreached(err) {
		longest = unreachedMax
	}
	b.last = min(max(b.last*2, backoffMin), longest)
	return b.last - rand.N(b.last/2)
}

func (b *backoff) reset() { b.last = 0 }

// pause waits for the next back-off, and no shorter than err asks for. It returns
// early with the context's cause.
func (b *backoff) pause(ctx context.Context, err error) error {
	wait := b.next(err)
	if after := retryAfter(err); after > wait {
		// Not all who were told the same come back in step.
		wait = after + rand.N(after/4+1)
	}
	timer, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	<-timer.Done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// longestPause bounds what an answer can make a client wait.
const longestPause = 10 * time.Minute

// retryAfter is the time that an error asks to wait before the next attempt.
func retryAfter(err error) time.Duration {
	if e, ok := FromError(err); ok {
		return min(max(e.RetryAfter, 0), longestPause)
	}
	return 0
}

// unreached reports whether it was the way to the service that failed: what the
// service itself refuses comes with a reason.
func unreached(err error) bool {
	e, ok := FromError(err)
	return ok && e.Code == codes.Unavailable && e.Reason == ""
}

// hopeless reports whether trying again cannot help: the request or the
// credentials are bad, or what answers is not this service.
func hopeless(err error) bool {
	switch codeOf(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return false
	}
}
