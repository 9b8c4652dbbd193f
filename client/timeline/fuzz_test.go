package timeline_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/reprieve-dev/reprieve/client/timeline"
)

func FuzzReader(f *testing.F) {
	for _, s := range []string{
		nodeJSON, podJSON, `{"items":[` + podJSON + `]}`, `{"kind":"PodList","items":[{"metadata":{"name":"p"}}]}`,
		`{"at":"1s","control":"policy","policy":{"rate":{"per_second":1,"burst":1},"ignored_taint_keys":[]}}`,
		`{"type":"ADDED","object":` + podJSON + `}{"type":"BOOKMARK","object":{"kind":"Pod"}}`,
		`{"at":"1s","control":"executor","pod":"a/b","outcome":"GONE"}`, `{"control":"executor","node":"n","outcome":"APPLIED"}`, `{"control":"renew","nodes":["n"],"every":"1s","until":"9s"}`,
		`{"type":"ADDED","object":{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n","namespace":"kube-node-lease"},"spec":{"renewTime":"2026-01-01T00:00:00.000001Z"}}}`, `{"at":"1s","control":"restart","down":"5s"}`,
		"kind: Pod\nmetadata: {name: p}\n---\nkind: NodeList\nitems:\n- metadata: {name: n, labels: {1: 2}}\n", "- a\n", "{\"a\"=>1}", "\xef\xbb\xbf{}", "a: &x [*x]\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		o := timeline.Options{MissingUID: timeline.DeriveMissingUID, MaxObject: 1 << 20}
		r := timeline.NewReader(bytes.NewReader(in), "fuzz", o)
		again := timeline.NewReader(iotest.OneByteReader(bytes.NewReader(in)), "fuzz", o)
		var at time.Duration
		for {
			e, err := r.Next()
			e2, err2 := again.Next()
			if (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
				t.Fatalf("got %v, byte by byte %v", err, err2)
			}
			if err != nil {
				var bad *timeline.Error
				if !errors.Is(err, io.EOF) && !errors.As(err, &bad) {
					t.Fatalf("error %T %v", err, err)
				}
				return
			}
			checkEntry(t, e, at)
			at = e.At
			if !proto.Equal(e.Event(), e2.Event()) {
				t.Fatalf("got %v, byte by byte %v", e.Event(), e2.Event())
			}
		}
	})
}

// checkEntry checks what every user of entries relies on.
func checkEntry(t *testing.T, e timeline.Entry, before time.Duration) {
	t.Helper()
	ev := e.Event()
	switch {
	case e.At < before || e.Cluster == "" || e.Pos.String() == "fuzz":
		t.Fatalf("entry %+v after %s", e, before)
	case e.Control != nil && ev != nil, e.Control == nil && e.Type == "", e.Control == nil && ev == nil && e.Type != timeline.Bookmark:
		t.Fatalf("entry is neither one control nor one event: %+v", e)
	case ev == nil:
		return
	}
	if _, err := proto.Marshal(ev); err != nil {
		t.Fatalf("%v cannot be sent: %v", ev, err)
	}
	if n := ev.GetNode(); n != nil && (n.GetName() == "" || n.GetUid() == "") {
		t.Fatalf("node without a name or UID: %v", n)
	}
	if p := ev.GetPod(); p != nil && (p.GetName() == "" || p.GetUid() == "" || p.GetNamespace() == "") {
		t.Fatalf("pod without a name or UID: %v", p)
	}
}

func FuzzExpectation(f *testing.F) {
	f.Add([]byte(`{"name":"n","until":"5s","evict":[{"pod":"a/b","uid":"u","at":"1s","tolerance":"1s"}]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		e, err := timeline.ReadExpectation(bytes.NewReader(in), "fuzz")
		if err != nil {
			return
		}
		if diff := e.Compare(nil); len(diff) != len(e.Evict) {
			t.Fatalf("%d orders are expected and %d are missing: %q", len(e.Evict), len(diff), diff)
		}
	})
}
