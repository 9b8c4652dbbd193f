package timeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Reader reads one input, an entry at a time, as soon as each is complete. It
// finds the format out by itself. It holds one line, object or list item at a
// time; of YAML it may hold a document of a megabyte.
type Reader struct {
	name string
	opts Options
	src  *source
	buf  *bufio.Reader

	json *json.Decoder
	yaml *yamlSplitter
	// lead is how many bytes detect took before the decoder began.
	lead int64
	// indent is what of it stands before the first character on its line.
	indent []byte

	// list is the object or list being read, nil between two.
	list *listState
	// queue has entries that are ready.
	queue []Entry
	times times
	// found: there was an object, a list or a line.
	found bool
	// skipped counts objects that are neither nodes nor pods nor nodes' leases.
	skipped map[string]int
	// renewed has the renewTime that was last shown of each node's lease.
	renewed map[string]time.Time
	failed  error
}

// listState is an object of which the fields are read one by one, so that the
// items of a list need not be held.
type listState struct {
	fields map[string]json.RawMessage
	pos    Position
	// items: it has items, which makes it a list; inside: they are being read.
	items, inside bool
	// count is how many items were read.
	count int
	// bare are items without a kind of their own, of a list whose kind comes after them.
	bare []bareItem
}

type bareItem struct {
	o   *object
	err error
	pos Position
}

// NewReader returns a reader of r, which is called name in errors.
func NewReader(r io.Reader, name string, opts Options) *Reader {
	if opts.UIDs == nil {
		opts.UIDs = NewUIDs()
	}
	if opts.Warn == nil {
		opts.Warn = func(Warning) {}
	}
	if opts.MaxObject <= 0 {
		opts.MaxObject = DefaultMaxObject
	}
	src := &source{r: r, limit: opts.MaxObject}
	return &Reader{name: name, opts: opts, src: src, buf: bufio.NewReaderSize(src, 64<<10), skipped: map[string]int{}, renewed: map[string]time.Time{}}
}

// Skipped returns how many objects of each other kind were passed over so far.
func (r *Reader) Skipped() map[string]int { return maps.Clone(r.skipped) }

// Next returns the next entry, or io.EOF at the end. Any other error is an
// [*Error] or wraps the input's own; all are final.
func (r *Reader) Next() (Entry, error) {
	for {
		if len(r.queue) > 0 {
			e := r.queue[0]
			r.queue = r.queue[1:]
			return e, nil
		}
		if r.failed != nil {
			return Entry{}, r.failed
		}
		if err := r.advance(); err != nil {
			r.failed = err
			r.warnOfSkipped()
		}
	}
}

// warnOfSkipped tells once what was passed over.
func (r *Reader) warnOfSkipped() {
	if len(r.skipped) == 0 {
		return
	}
	total, kinds := 0, make([]string, 0, len(r.skipped))
	for _, k := range slices.Sorted(maps.Keys(r.skipped)) {
		total += r.skipped[k]
		kinds = append(kinds, fmt.Sprintf("%s %d", k, r.skipped[k]))
	}
	r.opts.Warn(Warning{
		Pos:  Position{File: r.name},
		Text: fmt.Sprintf("passed over %d that are neither nodes nor pods nor leases of nodes: %s", total, strings.Join(kinds, ", ")),
	})
}

// advance reads a little more: one document, one field or one item of a list.
func (r *Reader) advance() error {
	switch {
	case r.json == nil && r.yaml == nil:
		return r.detect()
	case r.yaml != nil:
		return r.nextYAML()
	case r.list != nil:
		return r.nextField()
	}
	return r.nextJSON()
}

// detect finds the format out by the first character that counts.
func (r *Reader) detect() error {
	for {
		b, err := r.buf.Peek(1)
		if len(b) == 0 {
			if errors.Is(err, io.EOF) {
				return r.end()
			}
			return r.inputError(err)
		}
		if b[0] == 0xef && r.lead == 0 {
			// A byte order mark says nothing in UTF-8.
			if b, _ = r.buf.Peek(3); bytes.Equal(b, []byte("\xef\xbb\xbf")) {
				r.take(3)
				continue
			}
		}
		switch c := b[0]; {
		case c == ' ' || c == '\n' || c == '\r' || c == '\t':
			r.take(1)
			if r.indent = append(r.indent, c); c == '\n' {
				r.indent = nil
			}
			continue
		case c == '{' || c == '[':
			r.json = json.NewDecoder(r.buf)
			return nil
		}
		return r.detectOther(b[0])
	}
}

func (r *Reader) take(n int) {
	_, _ = r.buf.Discard(n) // It was peeked at, so it is there.
	r.lead += int64(n)
	r.src.done(r.lead)
}

// detectOther deals with an input that does not begin as JSON.
func (r *Reader) detectOther(c byte) error {
	pos := Position{File: r.name, Line: r.src.line(r.lead)}
	switch {
	case c == '<':
		return &Error{Pos: pos, Reason: "this is HTML or XML, not Kubernetes objects"}
	case c >= 0xfe:
		return &Error{Pos: pos, Reason: "this is UTF-16, not UTF-8", Hint: "write it again as UTF-8"}
	case c == 0x1f:
		return &Error{Pos: pos, Reason: "this is not text", Hint: "if it is compressed, decompress it first"}
	case c < ' ' || c > 0x7e && c < 0xc0:
		return &Error{Pos: pos, Reason: "this is not text"}
	}
	r.yaml = &yamlSplitter{buf: r.buf, line: pos.Line - 1, from: pos.Line - 1, consumed: r.lead, chunk: r.indent}
	return nil
}

// end is what the end of the input means.
func (r *Reader) end() error {
	if !r.found {
		return &Error{Pos: Position{File: r.name}, Reason: "no Kubernetes objects and no timeline lines in it"}
	}
	return io.EOF
}

// inputError is an error of the input itself, not of what is in it.
func (r *Reader) inputError(err error) error { return fmt.Errorf("%s: %w", r.name, err) }

// whole interprets a complete object: a line, a list whose items have been
// read, or a Kubernetes object.
func (r *Reader) whole(l *listState) error {
	r.found = true
	var kind, version string
	if err := text(l.fields, "kind", &kind); err != nil {
		return &Error{Pos: l.pos, Reason: "not a Kubernetes object: " + err.Error()}
	}
	if err := text(l.fields, "apiVersion", &version); err != nil {
		return &Error{Pos: l.pos, Reason: "not a Kubernetes object: " + err.Error()}
	}
	switch {
	case l.items:
		return r.listEnd(l, kind, version)
	case isLine(l.fields):
		return r.line(l.fields, l.pos)
	case l.fields["Items"] != nil:
		return &Error{Pos: l.pos, Reason: "the list has Items in capitals, as old versions of kubectl wrote it", Hint: "write it again with a current kubectl"}
	case kind == "":
		return &Error{Pos: l.pos, Reason: "not a Kubernetes object: it has no kind", Hint: "kubectl get -o json writes objects that have one"}
	case kind == "List" || kind == "NodeList" || kind == "PodList" || kind == "LeaseList":
		return &Error{Pos: l.pos, Reason: kind + " has no items"}
	}
	raw, err := json.Marshal(l.fields)
	if err != nil {
		return &Error{Pos: l.pos, Reason: "not a Kubernetes object: " + err.Error()}
	}
	o, err := decodeObject(raw)
	return r.emit(o, err, Entry{Type: Added, Listed: true, Pos: l.pos})
}

// isLine tells a timeline's line or a watch's event from an object: there are
// kinds that have a field type.
func isLine(fields map[string]json.RawMessage) bool {
	if fields["control"] != nil || fields["object"] != nil {
		return true
	}
	return (fields["at"] != nil || fields["type"] != nil) && fields["kind"] == nil && fields["apiVersion"] == nil
}

// listItem interprets one item of a list.
func (r *Reader) listItem(raw json.RawMessage, pos Position) error {
	l := r.list
	l.count++
	o, err := decodeObject(raw)
	if o == nil {
		return &Error{Pos: pos, Reason: fmt.Sprintf("item %d of the list is %s", l.count, err)}
	}
	if o.Kind == "" {
		var kind, version string
		if text(l.fields, "kind", &kind) != nil || text(l.fields, "apiVersion", &version) != nil || kind == "" {
			// The list's kind, which comes later, says what it is.
			l.bare = append(l.bare, bareItem{o, err, pos})
			return nil //nolint:nilerr // the fault is kept with the item and told when its kind is known
		}
		return r.bareItem(bareItem{o, err, pos}, kind, version)
	}
	return r.emit(o, err, Entry{Type: Added, Listed: true, Pos: pos})
}

// bareItem interprets an item without kind: the typed list says what it is.
func (r *Reader) bareItem(b bareItem, listKind, listVersion string) error {
	kind, ok := strings.CutSuffix(listKind, "List")
	if !ok || kind == "" {
		return &Error{Pos: b.pos, Reason: "not a Kubernetes object: an item has no kind, and its list does not tell"}
	}
	b.o.Kind = kind
	if b.o.APIVersion == "" {
		b.o.APIVersion = listVersion
	}
	return r.emit(b.o, b.err, Entry{Type: Added, Listed: true, Pos: b.pos})
}

// listEnd checks a list whose items have been read.
func (r *Reader) listEnd(l *listState, kind, version string) error {
	if !strings.HasSuffix(kind, "List") {
		return &Error{
			Pos: l.pos, Reason: fmt.Sprintf("not a Kubernetes list: it has items, but kind is %q", kind),
			Hint: "the kind of a list ends in List",
		}
	}
	for _, b := range l.bare {
		if err := r.bareItem(b, kind, version); err != nil {
			return err
		}
	}
	return nil
}

// emit checks an object and queues its entry. bad is what decodeObject found.
func (r *Reader) emit(o *object, bad error, e Entry) error {
	r.found = true
	if o == nil {
		return &Error{Pos: e.Pos, Reason: "not a Kubernetes object: it is " + bad.Error()}
	}
	if e.Cluster == "" {
		e.Cluster = DefaultCluster
	}
	core := o.APIVersion == "" || o.APIVersion == "v1"
	switch {
	case core && o.Kind == "Status":
		return &Error{Pos: e.Pos, Reason: "this is an error of the API server, not an object: " + o.Message}
	case o.Kind == "Node" && !core, o.Kind == "Pod" && !core:
		r.skipped[o.Kind+" of "+o.APIVersion]++
		return nil
	case o.Kind != "Node" && o.Kind != "Pod" && !o.nodeLease():
		r.skipped[o.Kind]++
		return nil
	case bad != nil:
		return &Error{Pos: e.Pos, Reason: o.called() + ": " + bad.Error()}
	case e.Type == Bookmark:
		r.queue = append(r.queue, e)
		return nil
	}
	if err := r.checkIdentity(o, &e); err != nil {
		return err
	}
	var err error
	switch {
	case o.Kind == "Node":
		e.Node, err = o.node()
	case o.Kind == "Pod":
		e.Pod, err = o.pod()
	default:
		if e.Lease, err = o.lease(e.Cluster, r.renewed); e.Type == Deleted {
			e.Lease.Renewed = false // What it said it had said before.
		}
	}
	if err != nil {
		return &Error{Pos: e.Pos, Reason: o.called() + ": " + err.Error()}
	}
	r.queue = append(r.queue, e)
	return nil
}
