package client

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func changed(revision string) *reprievev1.WatchEvictionsResponse {
	return &reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_Change{Change: &reprievev1.EvictionChange{
		Revision: revision, Eviction: &reprievev1.Eviction{Id: "c/" + revision},
	}}}
}

func listEnd(revision string) *reprievev1.WatchEvictionsResponse {
	return &reprievev1.WatchEvictionsResponse{Event: &reprievev1.WatchEvictionsResponse_InitialListEnd{InitialListEnd: &reprievev1.InitialListEnd{Revision: revision}}}
}

func TestWatchGoesOn(t *testing.T) {
	var asked []string
	say := func(err error, messages ...*reprievev1.WatchEvictionsResponse) func(*reprievev1.WatchEvictionsRequest, watchServer) error {
		return func(r *reprievev1.WatchEvictionsRequest, s watchServer) error {
			from := "now"
			if r.GetInitialList() {
				from = "list"
			}
			asked = append(asked, from+r.GetResumeRevision())
			if r.GetNode() != "n" {
				return refusal(codes.InvalidArgument, ReasonInvalidArgument)
			}
			for _, m := range messages {
				if err := s.Send(m); err != nil {
					return err
				}
			}
			return err
		}
	}
	f := &fake{watches: []func(*reprievev1.WatchEvictionsRequest, watchServer) error{
		say(refusal(codes.Unavailable, ReasonUnavailable)),
		say(refusal(codes.Unavailable, ReasonStopping), changed("1")),
		say(nil, changed("1"), listEnd("2"), &reprievev1.WatchEvictionsResponse{}, changed("3")),
		say(refusal(codes.OutOfRange, ReasonRevisionTooOld)),
		say(refusal(codes.ResourceExhausted, ReasonReaderTooSlow), listEnd("7")),
		say(refusal(codes.PermissionDenied, ReasonPermissionDenied)),
	}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		var told []string
		err := Watch(ctx, conn, &reprievev1.WatchEvictionsRequest{Node: "n", InitialList: true}, func(e WatchEvent) error {
			switch {
			case e.Reset:
				told = append(told, "reset")
			case e.ListEnd:
				told = append(told, "end"+e.Revision)
			default:
				told = append(told, e.Eviction.GetId())
			}
			return nil
		})
		if !IsDenied(err) {
			t.Errorf("Watch ended with %v", err)
		}
		if want := []string{"list", "list", "list", "now3", "list", "list"}; !slices.Equal(asked, want) {
			t.Errorf("asked from %v, want %v", asked, want)
		}
		if want := []string{"c/1", "reset", "c/1", "end2", "c/3", "reset", "end7", "reset"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
	})
}

// TestWatchWithoutARevisionListsAgain breaks a stream before its first change:
// what changes until the next one stands would be missed.
func TestWatchWithoutARevisionListsAgain(t *testing.T) {
	var asked []bool
	f := &fake{watches: []func(*reprievev1.WatchEvictionsRequest, watchServer) error{func(r *reprievev1.WatchEvictionsRequest, s watchServer) error {
		if asked = append(asked, r.GetInitialList()); len(asked) < 3 {
			return refusal(codes.Unavailable, ReasonStopping)
		}
		return s.Send(listEnd("2"))
	}}}
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		own, resets := errors.New("enough"), 0
		err := Watch(ctx, conn, &reprievev1.WatchEvictionsRequest{}, func(e WatchEvent) error {
			if e.Reset {
				resets++
				return nil
			}
			return own
		})
		if err != own || resets != 1 || !slices.Equal(asked, []bool{false, true, true}) {
			t.Errorf("%v after %d resets, lists asked for: %v", err, resets, asked)
		}
	})
}

func TestWatchEnds(t *testing.T) {
	f := &fake{watches: []func(*reprievev1.WatchEvictionsRequest, watchServer) error{func(_ *reprievev1.WatchEvictionsRequest, s watchServer) error {
		err := s.Send(changed("1"))
		<-s.Context().Done()
		return err
	}}}
	own := errors.New("enough")
	within(t, f, func(t *testing.T, ctx context.Context, conn *Conn) {
		if err := Watch(ctx, conn, &reprievev1.WatchEvictionsRequest{}, func(WatchEvent) error { return own }); err != own {
			t.Errorf("Watch ended with %v, want fn's error", err)
		}
		ctx, cancel := context.WithCancelCause(ctx)
		if err := Watch(ctx, conn, &reprievev1.WatchEvictionsRequest{}, func(WatchEvent) error { cancel(own); return nil }); err != own {
			t.Errorf("Watch ended with %v, want its context's cause", err)
		}
	})
}
