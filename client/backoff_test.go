package client

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestBackoff: a service that answers is left alone for up to 30 s; one that
// cannot be reached is looked for again within seconds, however long it was away.
func TestBackoff(t *testing.T) {
	refused, err := status.New(codes.Unavailable, "reopening").WithDetails(&errdetails.ErrorInfo{Domain: ErrorDomain, Reason: ReasonUnavailable})
	if err != nil {
		t.Fatal(err)
	}
	var b backoff
	for range 20 {
		b.next(refused.Err())
	}
	if got := b.next(refused.Err()); got <= backoffMax/2 || got > backoffMax {
		t.Errorf("pause of %s after 20 answers, want about %s", got, backoffMax)
	}
	lost := status.Error(codes.Unavailable, "connection refused")
	for range 20 {
		if got := b.next(lost); got > 2*time.Second {
			t.Fatalf("pause of %s while the service cannot be reached", got)
		}
	}
}
