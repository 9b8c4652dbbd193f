package timeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlWhole is the size up to which a YAML document is read as one. Of a larger
// list the items are read one by one, for which it must be laid out as kubectl
// does: items in block style, and no alias from one to another.
const yamlWhole = 1 << 20

// yamlSplitter cuts a stream into documents, and large lists into items.
type yamlSplitter struct {
	buf *bufio.Reader
	// line is how many lines were read, consumed how many bytes.
	line     int
	consumed int64
	docs     int
	// next is a line that was read and belongs to what follows.
	next []byte
	// large: the document is a list that is read item by item; item: lines belong to an item.
	large, item bool
	// indent is how far the items' dashes are indented, -1 before the first.
	indent int
	// head are the lines of a large document outside its items.
	head  []byte
	chunk []byte
	// from is the line that chunk begins after.
	from int
}

// readLine returns the next line with its newline.
func (y *yamlSplitter) readLine() ([]byte, error) {
	if y.next != nil {
		line := y.next
		y.next = nil
		return line, nil
	}
	line, err := y.buf.ReadBytes('\n')
	if len(line) > 0 && (err == nil || errors.Is(err, io.EOF)) {
		y.line++
		y.consumed += int64(len(line))
		return line, nil
	}
	return nil, err
}

// marker tells whether a line begins a document (---) or ends one (...).
func marker(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// blank tells whether text has nothing but blank lines, comments, directives and
// a marker, so that a marker that follows begins no other document.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		t := bytes.TrimSpace(line)
		if len(t) > 0 && t[0] != '#' && t[0] != '%' {
			return false
		}
	}
	return true
}

// nextYAML reads one document, or one item of a large list.
func (r *Reader) nextYAML() error {
	y := r.yaml
	for {
		line, err := y.readLine()
		switch {
		case errors.Is(err, io.EOF):
			if blank(y.chunk) && !y.large {
				return r.end()
			}
			return r.yamlDocument()
		case errors.Is(err, errTooLarge):
			return r.src.tooLarge(Position{File: r.name, Document: y.docs + 1})
		case err != nil:
			return r.inputError(err)
		}
		if marker(line, "---") && (y.large || !blank(y.chunk)) {
			y.next = line
			return r.yamlDocument()
		}
		if marker(line, "...") {
			return r.yamlDocument()
		}
		if y.large {
			if done, err := r.largeLine(line); done || err != nil {
				return err
			}
			continue
		}
		y.chunk = append(y.chunk, line...)
		if len(y.chunk) > yamlWhole && (bytes.HasPrefix(y.chunk, []byte("items:")) || bytes.Contains(y.chunk, []byte("\nitems:"))) {
			return r.startLarge()
		}
	}
}

// startLarge begins to read a document item by item, with the lines so far.
func (r *Reader) startLarge() error {
	y := r.yaml
	lines := y.chunk
	y.large, y.item, y.indent = true, false, -1
	y.chunk, y.head = nil, nil
	after := y.line - bytes.Count(lines, []byte("\n"))
	r.list = &listState{fields: map[string]json.RawMessage{}, pos: Position{File: r.name, Document: y.docs + 1}}
	last := y.line
	y.line = after
	for line := range bytes.Lines(lines) {
		y.line++
		if _, err := r.largeLine(line); err != nil {
			return err
		}
	}
	y.line = last
	return nil
}

// largeLine takes one line of a large list. done: an item was complete.
func (r *Reader) largeLine(line []byte) (done bool, err error) {
	y := r.yaml
	body := bytes.TrimLeft(line, " ")
	indent := len(line) - len(body)
	text := bytes.TrimSpace(body)
	empty := len(text) == 0 || text[0] == '#'
	switch {
	case !y.item && string(text) == "items:" && indent == 0:
		if r.list.items {
			return false, &Error{Pos: r.list.pos, Reason: `field "items" is there twice`}
		}
		y.item, r.list.items = true, true
		return false, nil
	case !y.item:
		y.head = append(y.head, line...)
		return false, nil
	case empty:
		y.chunk = append(y.chunk, line...)
		return false, nil
	}
	dash := body[0] == '-' && (len(body) == 1 || bytes.IndexByte([]byte(" \t\r\n"), body[1]) >= 0)
	if y.indent < 0 && dash {
		y.indent = indent
	}
	switch {
	case dash && indent == y.indent:
		err = r.largeItem()
		y.chunk, y.from = append(y.chunk[:0], line...), y.line-1
		return true, err
	case indent == 0 && body[0] != '\t': // A tab is the parser's to refuse.
		err = r.largeItem()
		y.item, y.chunk = false, y.chunk[:0]
		y.head = append(y.head, line...)
		return true, err
	}
	y.chunk = append(y.chunk, line...)
	return false, nil
}

// largeItem interprets the item collected.
func (r *Reader) largeItem() error {
	y := r.yaml
	if blank(y.chunk) {
		return nil
	}
	defer r.src.done(y.consumed)
	v, err := r.decodeYAML(y.chunk, y.from)
	if err != nil {
		return err
	}
	items, _ := v.([]any)
	for _, it := range items {
		raw, err := json.Marshal(it)
		if err != nil {
			return r.yamlError(err, y.from)
		}
		if err := r.listItem(raw, r.list.pos); err != nil {
			return err
		}
	}
	return nil
}

// yamlDocument interprets the document collected.
func (r *Reader) yamlDocument() error {
	y := r.yaml
	defer func() {
		y.chunk, y.head, y.large = y.chunk[:0], nil, false
		if y.from = y.line; y.next != nil {
			y.from--
		}
		r.list = nil
		r.src.done(y.consumed)
	}()
	y.docs++
	text, from := y.chunk, y.from
	if y.large {
		if y.item {
			if err := r.largeItem(); err != nil {
				return err
			}
		}
		text, from = y.head, 0
	} else {
		r.list = &listState{pos: Position{File: r.name, Document: y.docs}}
	}
	v, err := r.decodeYAML(text, from)
	switch {
	case err != nil:
		return err
	case v == nil && !y.large:
		return nil
	case v == nil:
		v = map[string]any{}
	}
	return r.yamlValue(v)
}

// yamlValue interprets a document's value.
func (r *Reader) yamlValue(v any) error {
	l := r.list
	fields, ok := v.(map[string]any)
	if !ok {
		return &Error{Pos: l.pos, Reason: "not a Kubernetes object", Hint: "a document must have apiVersion, kind and metadata, as kubectl get -o yaml writes them"}
	}
	var items []any
	if v, ok := fields["items"]; ok {
		delete(fields, "items")
		l.items = true
		if items, ok = v.([]any); !ok && v != nil {
			return &Error{Pos: l.pos, Reason: "items is not a list"}
		}
	}
	l.fields = make(map[string]json.RawMessage, len(fields))
	for k, v := range fields {
		raw, err := json.Marshal(v)
		if err != nil {
			return r.yamlError(err, 0)
		}
		l.fields[k] = raw
	}
	for _, it := range items {
		raw, err := json.Marshal(it)
		if err != nil {
			return r.yamlError(err, 0)
		}
		if err := r.listItem(raw, l.pos); err != nil {
			return err
		}
	}
	return r.whole(l)
}

// decodeYAML decodes one document; from is the line before it.
func (r *Reader) decodeYAML(doc []byte, from int) (any, error) {
	dec := yaml.NewDecoder(bytes.NewReader(doc))
	var v, more any
	if err := dec.Decode(&v); err != nil && !errors.Is(err, io.EOF) {
		return nil, r.yamlError(err, from)
	}
	// Text after the value would go unnoticed.
	if err := dec.Decode(&more); err == nil {
		return nil, &Error{Pos: r.list.pos, Reason: "not YAML: there is something after the document's end"}
	} else if !errors.Is(err, io.EOF) {
		return nil, r.yamlError(err, from)
	}
	return textKeys(v), nil
}

// textKeys makes the keys of mappings text, as Kubernetes reads them.
func textKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = textKeys(e)
		}
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[fmt.Sprint(k)] = textKeys(e)
		}
		return out
	case []any:
		for i, e := range v {
			v[i] = textKeys(e)
		}
	}
	return v
}

var yamlLine = regexp.MustCompile(`\bline (\d+)`)

// yamlError turns a decoder's error into one that says where and what to do.
// Its lines count from the document's beginning; from is the line before it.
func (r *Reader) yamlError(err error, from int) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "unmarshal errors: ", "")
	text = yamlLine.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(s, "line ")) // The pattern has digits only.
		return "line " + strconv.Itoa(n+from)
	})
	out := &Error{Pos: r.list.pos, Reason: "not YAML: " + text}
	if strings.Contains(text, "cannot start any token") || strings.Contains(text, "tab character") {
		out.Hint = "YAML is indented with spaces, never with tabs"
	}
	return out
}
