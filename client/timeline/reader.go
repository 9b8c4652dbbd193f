package timeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Reader reads one input, an entry at a time, as soon as each is complete. It
// finds the format out by itself.
type Reader struct {
	name string
	opts Options
	src  *lineCounter
	buf  *bufio.Reader

	json *json.Decoder
	yaml *yaml.Decoder
	docs int

	// list is the list being read, nil outside one.
	list *listState
	// queue has entries that are ready.
	queue []Entry
	at    time.Duration
	count int
	// Skipped counts objects of kinds that are neither nodes nor pods.
	skipped map[string]int
	failed  error
}

// listState is a JSON list whose items are read one by one.
type listState struct {
	fields map[string]json.RawMessage
	items  bool
	inside bool
	// bare are items without a kind of their own: the list's kind, which may come last, says what they are.
	bare []rawAt
}

type rawAt struct {
	raw json.RawMessage
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
	src := &lineCounter{r: r}
	return &Reader{name: name, opts: opts, src: src, buf: bufio.NewReaderSize(src, 64<<10), skipped: map[string]int{}}
}

// Skipped returns how many objects of each other kind were passed over.
func (r *Reader) Skipped() map[string]int { return r.skipped }

// Next returns the next entry, or io.EOF at the end. Any other error is an
// [*Error] or the input's own, and final.
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
		}
	}
}

// advance reads a little more: one document, or one item of a list.
func (r *Reader) advance() error {
	if r.json == nil && r.yaml == nil {
		return r.detect()
	}
	if r.yaml != nil {
		return r.nextYAML()
	}
	if r.list != nil {
		return r.nextItem()
	}
	return r.nextJSON()
}

// detect looks at the first character that counts.
func (r *Reader) detect() error {
	for {
		b, err := r.buf.Peek(3)
		if len(b) == 0 {
			if errors.Is(err, io.EOF) {
				return &Error{Pos: Position{File: r.name}, Reason: "no Kubernetes objects and no timeline lines in it"}
			}
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if bytes.Equal(b, []byte("\xef\xbb\xbf")) {
			r.src.lead += 3
			_, _ = r.buf.Discard(3)
			continue
		}
		switch c := b[0]; {
		case c == ' ' || c == '\n' || c == '\r' || c == '\t':
			r.src.lead++
			_, _ = r.buf.Discard(1)
			continue
		case c == '{' || c == '[':
			r.json = json.NewDecoder(r.buf)
		case c == '<':
			return &Error{Pos: Position{File: r.name, Line: 1}, Reason: "this is HTML or XML, not Kubernetes objects"}
		case c < ' ' || c > 0x7e && c < 0xc0:
			return &Error{Pos: Position{File: r.name, Line: 1}, Reason: "this is not text"}
		default:
			r.yaml = yaml.NewDecoder(r.buf)
		}
		return nil
	}
}

func (r *Reader) pos() Position {
	if r.yaml != nil {
		return Position{File: r.name, Document: r.docs}
	}
	return Position{File: r.name, Line: r.src.line(r.json.InputOffset() + r.lead())}
}

// lead is how many bytes detect took before the decoder began.
func (r *Reader) lead() int64 { return r.src.lead }

// nextJSON begins the next JSON value.
func (r *Reader) nextJSON() error {
	tok, err := r.json.Token()
	if errors.Is(err, io.EOF) {
		if r.count == 0 && len(r.skipped) == 0 {
			return &Error{Pos: Position{File: r.name}, Reason: "no Kubernetes objects and no timeline lines in it"}
		}
		return io.EOF
	}
	if err != nil {
		return r.syntax(err)
	}
	if tok != json.Delim('{') {
		return &Error{Pos: r.pos(), Reason: fmt.Sprintf("not a Kubernetes object: it begins with %v", tok), Hint: "an object begins with {"}
	}
	r.list = &listState{fields: map[string]json.RawMessage{}}
	return nil
}

// nextItem reads one field of the object begun, or one item of its items.
func (r *Reader) nextItem() error {
	l := r.list
	if l.inside {
		if r.json.More() {
			return r.item()
		}
		l.inside = false
		_, err := r.json.Token() // ]
		return r.syntax(err)
	}
	if !r.json.More() {
		r.list = nil
		if _, err := r.json.Token(); err != nil { // }
			return r.syntax(err)
		}
		return r.whole(l)
	}
	tok, err := r.json.Token()
	if err != nil {
		return r.syntax(err)
	}
	key, _ := tok.(string)
	if _, twice := l.fields[key]; twice {
		return &Error{Pos: r.pos(), Reason: fmt.Sprintf("field %q is there twice", key)}
	}
	if key == "items" {
		return r.openItems()
	}
	var raw json.RawMessage
	if err := r.json.Decode(&raw); err != nil {
		return r.syntax(err)
	}
	l.fields[key] = raw
	return nil
}

func (r *Reader) openItems() error {
	tok, err := r.json.Token()
	if err != nil {
		return r.syntax(err)
	}
	r.list.items = true
	switch tok {
	case nil:
		return nil
	case json.Delim('['):
		r.list.inside = true
		return nil
	}
	return &Error{Pos: r.pos(), Reason: "items is not a list"}
}

func (r *Reader) item() error {
	var raw json.RawMessage
	if err := r.json.Decode(&raw); err != nil {
		return r.syntax(err)
	}
	o, err := decodeObject(raw)
	if err != nil {
		return &Error{Pos: r.pos(), Reason: err.Error()}
	}
	if o.Kind == "" {
		r.list.bare = append(r.list.bare, rawAt{raw, r.pos()})
		return nil
	}
	return r.emit(o, Entry{Type: Added, Listed: true, Pos: r.pos()})
}

// syntax turns a decoder's error into one that says where and what to do.
func (r *Reader) syntax(err error) error {
	if err == nil {
		return nil
	}
	out := &Error{Pos: r.pos(), Reason: "not JSON: " + err.Error()}
	var syn *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		out.Reason, out.Hint = "the JSON ends in the middle of an object", "the file was cut off; write it again"
	case strings.Contains(err.Error(), "colon") || strings.Contains(err.Error(), "'='"):
		out.Hint = "this looks like a Ruby hash; write the objects with kubectl get -o json"
	case !errors.As(err, &syn) && r.src.failed != nil:
		return fmt.Errorf("%s: %w", r.name, err)
	}
	return out
}

// whole interprets a complete JSON object.
func (r *Reader) whole(l *listState) error {
	pos := r.pos()
	var kind string
	_ = json.Unmarshal(l.fields["kind"], &kind)
	switch {
	case l.items:
		r.count++
		for _, b := range l.bare {
			if err := r.bareItem(b, kind); err != nil {
				return err
			}
		}
		return nil
	case l.fields["control"] != nil || l.fields["type"] != nil || l.fields["object"] != nil || l.fields["at"] != nil:
		return r.line(l.fields, pos)
	case l.fields["Items"] != nil:
		return &Error{Pos: pos, Reason: "the list has Items in capitals, as old versions of kubectl wrote it", Hint: "write it again with a current kubectl"}
	case kind == "":
		return &Error{Pos: pos, Reason: "not a Kubernetes object: it has no kind", Hint: "kubectl get -o json writes objects that have one"}
	case strings.HasSuffix(kind, "List"):
		return &Error{Pos: pos, Reason: kind + " has no items"}
	}
	raw, err := json.Marshal(l.fields)
	if err != nil {
		return &Error{Pos: pos, Reason: err.Error()}
	}
	o, err := decodeObject(raw)
	if err != nil {
		return &Error{Pos: pos, Reason: err.Error()}
	}
	return r.emit(o, Entry{Type: Added, Listed: true, Pos: pos})
}

// bareItem is an item without kind: the typed list says what it is.
func (r *Reader) bareItem(b rawAt, listKind string) error {
	o, err := decodeObject(b.raw)
	if err != nil {
		return &Error{Pos: b.pos, Reason: err.Error()}
	}
	o.Kind = strings.TrimSuffix(listKind, "List")
	if o.Kind == "" {
		return &Error{Pos: b.pos, Reason: "an item has no kind, and neither has its list"}
	}
	return r.emit(o, Entry{Type: Added, Listed: true, Pos: b.pos})
}

// emit checks an object and queues its entry.
func (r *Reader) emit(o *object, e Entry) error {
	r.count++
	if e.Cluster == "" {
		e.Cluster = DefaultCluster
	}
	if o.Kind != "Node" && o.Kind != "Pod" {
		r.skipped[o.Kind]++
		return nil
	}
	if e.Type == Bookmark {
		r.queue = append(r.queue, e)
		return nil
	}
	if err := r.checkIdentity(o, &e); err != nil {
		return err
	}
	if o.Kind == "Node" {
		e.Node = o.node()
	} else {
		e.Pod = o.pod()
	}
	r.queue = append(r.queue, e)
	return nil
}

// checkIdentity sees to it that an object has a name and a UID of its own.
func (r *Reader) checkIdentity(o *object, e *Entry) error {
	m := &o.Metadata
	if m.Name == "" {
		return &Error{Pos: e.Pos, Reason: o.Kind + " without metadata.name"}
	}
	if o.Kind == "Pod" && m.Namespace == "" {
		m.Namespace = "default"
	}
	name := o.Kind + " " + m.Name
	if o.Kind == "Pod" {
		name = "Pod " + m.Namespace + "/" + m.Name
	}
	if m.UID == "" {
		if r.opts.MissingUID == RefuseMissingUID {
			return &Error{Pos: e.Pos, Reason: name + " has no metadata.uid", Hint: "a UID is what tells a pod from its replacement; feed objects as the API server has them"}
		}
		m.UID = strings.ToLower("derived-" + strings.NewReplacer(" ", "-", "/", "-").Replace(name))
		r.opts.Warn(Warning{Pos: e.Pos, Text: name + " has no metadata.uid; using " + m.UID})
	}
	if other := r.opts.UIDs.see(e.Cluster, m.UID, name, e.Type == Deleted); other != "" {
		return &Error{Pos: e.Pos, Reason: fmt.Sprintf("UID %s is %s and %s", m.UID, other, name), Hint: "a UID has one name for ever; the input mixes clusters or was edited"}
	}
	return nil
}

// nextYAML reads one YAML document.
func (r *Reader) nextYAML() error {
	r.docs++
	var v any
	err := r.yaml.Decode(&v)
	if errors.Is(err, io.EOF) {
		if r.count == 0 && len(r.skipped) == 0 {
			return &Error{Pos: Position{File: r.name}, Reason: "no Kubernetes objects and no timeline lines in it"}
		}
		return io.EOF
	}
	if err != nil {
		return r.yamlError(err)
	}
	if v == nil {
		return nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return &Error{Pos: r.pos(), Reason: "not a Kubernetes object: " + err.Error()}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return &Error{Pos: r.pos(), Reason: "not a Kubernetes object", Hint: "a document must have apiVersion, kind and metadata, as kubectl get -o yaml writes them"}
	}
	l := &listState{fields: fields}
	if items, ok := fields["items"]; ok {
		delete(fields, "items")
		l.items = true
		if err := r.yamlItems(items, l); err != nil {
			return err
		}
	}
	return r.whole(l)
}

func (r *Reader) yamlItems(raw json.RawMessage, l *listState) error {
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return &Error{Pos: r.pos(), Reason: "items is not a list"}
	}
	for _, it := range items {
		o, err := decodeObject(it)
		if err != nil {
			return &Error{Pos: r.pos(), Reason: err.Error()}
		}
		if o.Kind == "" {
			l.bare = append(l.bare, rawAt{it, r.pos()})
			continue
		}
		if err := r.emit(o, Entry{Type: Added, Listed: true, Pos: r.pos()}); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	out := &Error{Pos: r.pos(), Reason: "not YAML: " + text}
	switch {
	case strings.Contains(text, "cannot start any token"), strings.Contains(text, "tab character"):
		out.Hint = "YAML is indented with spaces, never with tabs"
	case errors.Is(err, io.ErrUnexpectedEOF):
		out.Hint = "the file was cut off; write it again"
	}
	return out
}

// lineCounter knows on which line an offset is.
type lineCounter struct {
	r        io.Reader
	read     int64
	failed   error
	lead     int64
	lines    int
	newlines []int64 // offsets of newlines not yet counted into lines
}

func (c *lineCounter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			c.newlines = append(c.newlines, c.read+int64(i))
		}
	}
	c.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.failed = err
	}
	return n, err
}

// line returns the line of an offset; offsets must not go back.
func (c *lineCounter) line(offset int64) int {
	i := 0
	for i < len(c.newlines) && c.newlines[i] < offset {
		i++
	}
	c.lines += i
	c.newlines = c.newlines[i:]
	return c.lines + 1
}
