package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// offset is up to where the input has been decoded.
func (r *Reader) offset() int64 { return r.lead + r.json.InputOffset() }

func (r *Reader) pos() Position {
	return Position{File: r.name, Line: r.src.line(r.offset())}
}

// nextJSON begins the next JSON value.
func (r *Reader) nextJSON() error {
	r.src.done(r.offset())
	tok, err := r.json.Token()
	if errors.Is(err, io.EOF) {
		return r.end()
	}
	if err != nil {
		return r.syntax(err)
	}
	if tok != json.Delim('{') {
		return &Error{Pos: r.pos(), Reason: fmt.Sprintf("not a Kubernetes object: it begins with %v", tok), Hint: "an object begins with {"}
	}
	r.list = &listState{fields: map[string]json.RawMessage{}, pos: r.pos()}
	return nil
}

// nextField reads one field of the object begun, or one item of its items.
func (r *Reader) nextField() error {
	l := r.list
	if l.inside {
		if r.json.More() {
			return r.nextItem()
		}
		l.inside = false
		_, err := r.json.Token() // ]
		return r.syntax(err)
	}
	if !r.json.More() {
		if _, err := r.json.Token(); err != nil { // }
			return r.syntax(err)
		}
		r.list = nil
		return r.whole(l)
	}
	tok, err := r.json.Token()
	if err != nil {
		return r.syntax(err)
	}
	key, _ := tok.(string)
	if _, twice := l.fields[key]; twice || key == "items" && l.items {
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

func (r *Reader) nextItem() error {
	var raw json.RawMessage
	if err := r.json.Decode(&raw); err != nil {
		return r.syntax(err)
	}
	pos := r.pos()
	pos.Line -= bytes.Count(raw, []byte("\n")) // Where it begins.
	r.src.done(r.offset())
	return r.listItem(raw, pos)
}

// syntax turns a decoder's error into one that says where and what to do.
func (r *Reader) syntax(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errTooLarge):
		return r.src.tooLarge(r.pos())
	case r.src.failed != nil && errors.Is(err, r.src.failed):
		return r.inputError(err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Pos: r.pos(), Reason: "the JSON ends in the middle of an object", Hint: "the input was cut off; write it again"}
	}
	out := &Error{Pos: r.pos(), Reason: "not JSON: " + err.Error()}
	if r.looksLikeRuby(err) {
		out.Hint = "this looks like a Ruby hash; write the objects with kubectl get -o json"
	}
	return out
}

// looksLikeRuby finds => where a colon belongs, or a :symbol where a key does.
func (r *Reader) looksLikeRuby(err error) bool {
	if strings.Contains(err.Error(), "'='") || err.Error() == "invalid character ':'" {
		return true
	}
	// For a key without a colon the decoder does not say what it met: it is the next in its buffer.
	rest := make([]byte, 64)
	n, _ := r.json.Buffered().Read(rest)
	return bytes.HasPrefix(bytes.TrimLeft(rest[:n], " \t\r\n"), []byte("="))
}
