package agent

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest/fake"

	"github.com/reprieve-dev/reprieve/internal/clock"
)

// A watch that is stopped while events are left that nobody has read does not count as
// open any more when Stop returns.
func TestStopEndsAWatch(t *testing.T) {
	f := &follower{clock: clock.NewVirtual(epoch), stirred: func() {}}
	w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 3})
	for range 3 {
		w.Add(testNode("n"))
	}
	a := f.attend(w)
	<-a.ResultChan()
	if _, open := f.quiet(); !open {
		t.Error("a watch that stands does not count as open")
	}
	a.Stop()
	if _, open := f.quiet(); open {
		t.Error("a stopped watch counts as open")
	}
	if _, more := <-a.ResultChan(); more {
		t.Error("a stopped watch tells of events")
	}
}

// client-go tries a watch that is refused as expired again at once, tens of
// thousands of times in ten seconds if each is.
func TestExpiredWatchesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := fake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: http.StatusGone, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)),
			}, nil
		})
		core := &fake.RESTClient{NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: scheme.Scheme.PrioritizedVersionsForGroup("")[0], Client: gone}
		f := newFollowers(newState(silent()), core, clock.NewVirtual(epoch), quiet())[0]
		began := time.Now()
		if _, err := f.WatchWithContext(t.Context(), metav1.ListOptions{}); err == nil {
			t.Fatal("the watch stands")
		}
		if took := time.Since(began); took < expiredPause {
			t.Errorf("the refusal came back after %s", took)
		}
	})
}
