package timeline_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/client/timeline"
)

// TestEntriesComeWhileTheWriterWrites proves that an entry comes out as soon as
// its object is complete: the writer goes on only after it was read.
func TestEntriesComeWhileTheWriterWrites(t *testing.T) {
	pretty := "{\n  \"type\": \"ADDED\",\n  \"object\": " + nodeJSON + "\n}"
	for name, pieces := range map[string][]string{
		"timeline":   {`{"at":"0s","type":"ADDED","object":` + nodeJSON + "}", "\n" + `{"at":"1s","type":"ADDED","object":` + nodeJSON + `}`},
		"watch":      {pretty, "\n" + pretty, pretty},
		"list":       {`{"kind":"List","items":[` + nodeJSON, "," + nodeJSON, "," + nodeJSON},
		"typed list": {`{"kind":"NodeList","items":[{"metadata":{"name":"n1","uid":"u-n1"}}`, `,{"metadata":{"name":"n1","uid":"u-n1"}}`},
		"YAML":       {"kind: Node\nmetadata: {name: n1, uid: u-n1}\n---\n", "kind: Node\nmetadata: {name: n1, uid: u-n1}\n---\n"},
	} {
		t.Run(name, func(t *testing.T) {
			pr, pw := io.Pipe()
			next := make(chan struct{})
			go func() {
				for _, p := range pieces {
					_, _ = io.WriteString(pw, p)
					<-next
				}
				if strings.HasPrefix(pieces[0], `{"kind"`) {
					_, _ = io.WriteString(pw, "]}")
				}
				_ = pw.Close()
			}()
			r := timeline.NewReader(pr, "pipe", timeline.Options{})
			for range pieces {
				if e, err := r.Next(); err != nil || e.Node.GetName() != "n1" {
					t.Fatalf("entry %+v, %v: want node n1 before the writer goes on", e, err)
				}
				next <- struct{}{}
			}
			if _, err := r.Next(); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		})
	}
}

// generate writes a dump of n pods with ballast, as each format has it.
func generate(w io.Writer, format string, n int) error {
	out := bufio.NewWriterSize(w, 64<<10)
	ballast := strings.Repeat("x", 2000)
	switch format {
	case "list":
		fmt.Fprint(out, `{"apiVersion":"v1","items":[`)
	case "bare":
		fmt.Fprint(out, `{"apiVersion":"v1","items":[`)
	case "YAML":
		fmt.Fprint(out, "apiVersion: v1\nitems:\n")
	}
	for i := range n {
		comma := ","
		if i == 0 {
			comma = ""
		}
		switch format {
		case "list":
			fmt.Fprintf(out, `%s{"kind":"Pod","metadata":{"name":"p%d","uid":"u%d","annotations":{"a":"%s"}}}`, comma, i, i, ballast)
		case "bare":
			fmt.Fprintf(out, `%s{"metadata":{"name":"p%d","uid":"u%d","annotations":{"a":"%s"}}}`, comma, i, i, ballast)
		case "watch":
			fmt.Fprintf(out, "{\n\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"name\":\"p%d\",\"uid\":\"u%d\",\"annotations\":{\"a\":\"%s\"}}}}\n", i, i, ballast)
		case "YAML":
			fmt.Fprintf(out, "- kind: Pod\n  # one\n\n  metadata:\n    annotations:\n      a: |\n        - x\n        items:\n        %s\n    name: p%d\n    uid: u%d\n", ballast, i, i)
		}
	}
	switch format {
	case "list":
		fmt.Fprint(out, `],"kind":"List"}`)
	case "bare":
		fmt.Fprint(out, `],"kind":"PodList"}`)
	case "YAML":
		fmt.Fprint(out, "kind: List\nmetadata:\n  resourceVersion: \"\"\n---\nkind: Node\nmetadata: {name: n, uid: a}\n")
	}
	return out.Flush()
}

// TestLargeInputInBoundedMemory reads 20 MB (YAML 6) and looks now and then at
// what is held: far less than was read.
func TestLargeInputInBoundedMemory(t *testing.T) {
	for format, n := range map[string]int{"list": 10_000, "bare": 10_000, "watch": 10_000, "YAML": 3_000} {
		t.Run(format, func(t *testing.T) {
			pr, pw := io.Pipe()
			go func() { _ = pw.CloseWithError(generate(pw, format, n)) }()
			r := timeline.NewReader(pr, "pipe", timeline.Options{})
			var before, now runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			limit := int64(5 << 20)
			if format == "bare" {
				limit *= 2 // What the objects are comes last, so that their few fields are held.
			}
			pods, nodes := 0, 0
			for {
				e, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if e.Node != nil {
					nodes++
					continue
				}
				if e.Pod.GetName() != fmt.Sprintf("p%d", pods) {
					t.Fatalf("pod %d is %s", pods, e.Pod.GetName())
				}
				if pods++; pods%1500 == 0 {
					runtime.GC()
					if runtime.ReadMemStats(&now); int64(now.HeapAlloc)-int64(before.HeapAlloc) > limit {
						t.Fatalf("%d bytes are held after %d pods", now.HeapAlloc-before.HeapAlloc, pods)
					}
				}
			}
			if pods != n || format == "YAML" && nodes != 1 {
				t.Fatalf("read %d pods and %d nodes, want %d pods", pods, nodes, n)
			}
		})
	}
}

// TestTooLarge: a value over the limit is refused before it is read whole.
func TestTooLarge(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	o := timeline.Options{MaxObject: 100 << 10}
	for in, want := range map[string]string{
		nodeJSON + "\n" + `{"kind":"Pod","x":"` + long:   "in:2: a line, object or list item is larger than 102400 bytes; no node or pod is that large; write one object a line, or a list",
		`{"kind":"List","items":[` + `{"x":"` + long:     "in:1: a line, object or list item is larger than 102400 bytes; no node or pod is that large; write one object a line, or a list",
		"kind: Pod\nx: " + long:                          "in: document 1: a line, object or list item is larger than 102400 bytes; no node or pod is that large; write one object a line, or a list",
		"kind: Pod\n" + strings.Repeat("# x\n", 100<<10): "in: document 1: a line, object or list item is larger than 102400 bytes; no node or pod is that large; write one object a line, or a list",
	} {
		_, err := drain(timeline.NewReader(strings.NewReader(in), "in", o))
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	endless := io.MultiReader(strings.NewReader(`{"kind":"`), neverEnding{})
	_, err := drain(timeline.NewReader(endless, "in", timeline.Options{MaxObject: 3 << 20}))
	if want := "in:1: a line, object or list item is larger than 3 MiB; no node or pod is that large; write one object a line, or a list"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestLargeYAMLErrors: what is wrong in a list that is read item by item.
func TestLargeYAMLErrors(t *testing.T) {
	item := "- kind: Pod\n  metadata:\n    name: p\n    uid: u\n    annotations: {a: " + strings.Repeat("x", 200<<10) + "}\n"
	list := "kind: List\nitems:\n" + strings.Repeat(item, 6)
	for name, tc := range map[string]struct{ in, want string }{
		"tab":           {list + "- kind: Pod\n  metadata:\n\tname: p\n", "in: document 1: not YAML: line 35: found character that cannot start any token; YAML is indented with spaces, never with tabs"},
		"not an object": {list + "- 5\n", "in: document 1: item 7 of the list is a number, not an object"},
		"items twice":   {list + "metadata: {}\nitems:\n- 5\n", `in: document 1: field "items" is there twice`},
		"no kind":       {list[len("kind: List\n"):], `in: document 1: not a Kubernetes list: it has items, but kind is ""; the kind of a list ends in List`},
		"second":        {list + "---\nhello\n", "in: document 2: not a Kubernetes object; a document must have apiVersion, kind and metadata, as kubectl get -o yaml writes them"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := drain(timeline.NewReader(strings.NewReader(tc.in), "in", timeline.Options{}))
			if err == nil || err.Error() != tc.want || len(got) != 6 {
				t.Fatalf("got  %v after %d entries\nwant %s after 6", err, len(got), tc.want)
			}
		})
	}
}
