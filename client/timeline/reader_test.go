package timeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/client/timeline"
)

const (
	nodeJSON = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","uid":"u-n1"},"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`
	podJSON  = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default","uid":"u-p"},"spec":{"nodeName":"n1"},"status":{"phase":"Running"}}`
)

func readAll(t *testing.T, in string, o timeline.Options) ([]timeline.Entry, error) {
	t.Helper()
	r := timeline.NewReader(strings.NewReader(in), "in", o)
	var out []timeline.Entry
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
}

func TestFormats(t *testing.T) {
	for name, tc := range map[string]struct {
		in    string
		nodes int
		pods  int
	}{
		"timeline":           {`{"at":"0s","type":"ADDED","object":` + nodeJSON + "}\n" + `{"type":"MODIFIED","object":` + podJSON + `}`, 1, 1},
		"watch stream":       {`{"type":"ADDED","object":` + nodeJSON + `}{"type":"ADDED",` + "\n" + `"object":` + podJSON + `}`, 1, 1},
		"v1 List":            {`{"apiVersion":"v1","items":[` + nodeJSON + `,` + podJSON + `],"kind":"List"}`, 1, 1},
		"items null":         {`{"apiVersion":"v1","items":null,"kind":"PodList"}`, 0, 0},
		"typed list":         {`{"items":[{"metadata":{"name":"n","uid":"1"}},{"metadata":{"name":"m","uid":"2"}}],"kind":"NodeList"}`, 2, 0},
		"plain object":       {podJSON, 0, 1},
		"other kinds":        {`{"kind":"List","items":[{"kind":"ConfigMap","metadata":{"name":"c"}},` + podJSON + `]}`, 0, 1},
		"byte order mark":    {"\xef\xbb\xbf" + podJSON, 0, 1},
		"YAML list":          {"apiVersion: v1\nkind: List\nitems:\n- kind: Node\n  metadata: {name: n, uid: a}\n- kind: Pod\n  metadata: {name: p, uid: b}\n", 1, 1},
		"YAML documents":     {"kind: Node\nmetadata: {name: n, uid: a}\n---\nkind: Pod\nmetadata: {name: p, uid: b}\n", 1, 1},
		"taint, no effect":   {`{"kind":"Node","metadata":{"name":"n","uid":"1"},"spec":{"taints":[{"key":"x"}]}}`, 1, 0},
		"YAML creation time": {"kind: Pod\nmetadata: {name: p, uid: b, creationTimestamp: 2024-01-02T03:04:05Z}\n", 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAll(t, tc.in, timeline.Options{})
			if err != nil {
				t.Fatal(err)
			}
			nodes, pods := 0, 0
			for _, e := range got {
				if e.Node != nil {
					nodes++
				}
				if e.Pod != nil {
					pods++
				}
			}
			if nodes != tc.nodes || pods != tc.pods {
				t.Fatalf("got %d nodes and %d pods, want %d and %d", nodes, pods, tc.nodes, tc.pods)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"truncated line":   {`{"at":"0s","type":"ADDED","object":` + nodeJSON + "}\n" + `{"at":"1s","type":"ADD`, "in:2: the JSON ends in the middle of an object; the file was cut off; write it again"},
		"YAML with a tab":  {"kind: Pod\nmetadata:\n\tname: p\n", "YAML is indented with spaces, never with tabs"},
		"Ruby hash":        {`{"kind"=>"Pod"}`, "this looks like a Ruby hash"},
		"Items capital":    {`{"kind":"List","Items":[]}`, "in:1: the list has Items in capitals, as old versions of kubectl wrote it; write it again with a current kubectl"},
		"no uid":           {`{"kind":"Pod","metadata":{"name":"p"}}`, "in:1: Pod default/p has no metadata.uid; a UID is what tells a pod from its replacement; feed objects as the API server has them"},
		"one uid":          {`{"kind":"List","items":[` + podJSON + `,{"kind":"Pod","metadata":{"name":"q","namespace":"default","uid":"u-p"}}]}`, "in:1: UID u-p is Pod default/p and Pod default/q; a UID has one name for ever; the input mixes clusters or was edited"},
		"at goes back":     {`{"at":"5s","control":"pause"}` + "\n" + `{"at":"4s","control":"resume"}`, "in:2: at goes back from 5s to 4s; a timeline's lines are in the order of time"},
		"bad at":           {`{"at":"5","control":"pause"}`, `in:1: at: "5" is not a duration from the start, such as 63.5s or 1m3.5s`},
		"unknown control":  {`{"control":"stop"}`, `in:1: unknown control "stop"; controls are synced, restart, feed-lost, pause, resume, policy, executor`},
		"unknown type":     {`{"type":"CHANGED","object":` + podJSON + `}`, `in:1: unknown type "CHANGED"; type is ADDED, MODIFIED, DELETED or BOOKMARK`},
		"unknown field":    {`{"at":"1s","controll":"pause"}`, `in:1: unknown field "controll"`},
		"empty":            {"  \n", "in: no Kubernetes objects and no timeline lines in it"},
		"HTML":             {"<html>", "in:1: this is HTML or XML, not Kubernetes objects"},
		"binary":           {"\x00\x01", "in:1: this is not text"},
		"wrong type":       {`{"kind":"Pod","metadata":{"name":7}}`, "in:1: field metadata.name: a number cannot be there"},
		"not an object":    {"[1]", "in:1: not a Kubernetes object: it begins with [; an object begins with {"},
		"no kind":          {`{"metadata":{"name":"p"}}`, "in:1: not a Kubernetes object: it has no kind; kubectl get -o json writes objects that have one"},
		"outcome":          {`{"control":"executor","pod":"a/b","outcome":"YES"}`, `in:1: control executor: unknown outcome "YES"`},
		"policy field":     {`{"control":"policy","policy":{"rates":1}}`, `in:1: control policy: policy: `},
		"watch error":      {`{"type":"ERROR","object":{"message":"too old"}}`, `in:1: the watch ended with an error: {"message":"too old"}; start the watch again`},
		"plain text":       {"hello there", "in: document 1: not a Kubernetes object"},
		"document 2 wrong": {"kind: Pod\nmetadata: {name: p, uid: a}\n---\n- 1\n", "in: document 2: not a Kubernetes object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(t, tc.in, timeline.Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestDerivedUIDIsStableAndWarnedOf(t *testing.T) {
	in := `{"kind":"Pod","metadata":{"name":"p","namespace":"ns"}}`
	var warnings []string
	o := timeline.Options{MissingUID: timeline.DeriveMissingUID, Warn: func(w timeline.Warning) { warnings = append(warnings, w.Text) }}
	a, err := readAll(t, in, o)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := readAll(t, in, o)
	if uid := a[0].Pod.GetUid(); uid != "derived-pod-ns-p" || uid != b[0].Pod.GetUid() || len(warnings) != 2 {
		t.Fatalf("uid %q, then %q, warnings %q", uid, b[0].Pod.GetUid(), warnings)
	}
}

// TestStreaming proves that an entry comes out while its writer still writes,
// and that a long list is not held in memory.
func TestStreaming(t *testing.T) {
	pr, pw := io.Pipe()
	const n = 5_000
	step := make(chan struct{})
	go func() {
		_, _ = io.WriteString(pw, `{"items":[`+nodeJSON)
		<-step
		for i := range n {
			_, _ = fmt.Fprintf(pw, `,{"kind":"Pod","metadata":{"name":"p%d","uid":"u%d","annotations":{"pad":%q}}}`, i, i, strings.Repeat("x", 300))
		}
		_, _ = io.WriteString(pw, `],"kind":"List"}`)
		_ = pw.Close()
	}()
	r := timeline.NewReader(pr, "pipe", timeline.Options{})
	e, err := r.Next()
	if err != nil || e.Node.GetName() != "n1" {
		t.Fatalf("first entry %+v, %v: want node n1 before the writer goes on", e, err)
	}
	close(step)
	pods := 0
	for {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pods++
	}
	if pods != n {
		t.Fatalf("read %d pods, want %d", pods, n)
	}
}

func TestMergeIsSyncedWhenEveryInputIs(t *testing.T) {
	nodes, nw := io.Pipe()
	pods := strings.NewReader(`{"type":"ADDED","object":` + podJSON + `}{"type":"MODIFIED","object":` + podJSON + `}`)
	fire := make(chan func(), 8)
	o := timeline.MergeOptions{SyncedAfter: time.Second, AfterFunc: func(_ time.Duration, f func()) func() bool {
		fire <- f
		return func() bool { return true }
	}}
	go func() { _, _ = io.WriteString(nw, `{"type":"ADDED","object":`+nodeJSON+`}`) }()
	var got []string
	seen := 0
	synced := make(chan struct{})
	err := timeline.Merge(context.Background(), []timeline.Input{{Name: "nodes", R: nodes}, {Name: "pods", R: pods}}, o,
		func(e timeline.Entry) error {
			got = append(got, string(e.Type))
			if seen++; seen == 3 {
				// All there is has been read; the silence of the nodes' stream ends its list.
				go func() {
					for f := range fire {
						f()
						select {
						case <-synced:
							_ = nw.Close()
							return
						default:
						}
					}
				}()
			}
			return nil
		}, func() error {
			got = append(got, "synced")
			close(synced)
			return nil
		})
	if err != nil || len(got) != 4 || got[3] != "synced" {
		t.Fatalf("got %v, %v; want three events, then synced", got, err)
	}
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{nodeJSON, podJSON, `{"items":[` + podJSON + `]}`, `{"at":"1s","control":"policy","policy":{}}`, "kind: Pod\n", "- a\n", "{\"a\"=>1}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := timeline.NewReader(strings.NewReader(string(in)), "fuzz", timeline.Options{MissingUID: timeline.DeriveMissingUID})
		for range 1000 {
			e, err := r.Next()
			if err != nil {
				return
			}
			if e.Control == nil && e.Type == "" {
				t.Fatalf("entry without a control and without a type: %+v", e)
			}
		}
	})
}
