package timeline

import (
	"errors"
	"fmt"
	"io"
)

// errTooLarge ends an input of which one line, object or list item is too large.
var errTooLarge = errors.New("too large")

// source is an input that knows its lines and bounds what it gives out for one value.
type source struct {
	r     io.Reader
	limit int64
	// read and mark are offsets: up to where r was read, and up to where values are done with.
	read, mark int64
	// lines are the newlines counted so far, newlines the offsets of those to be counted.
	lines    int
	newlines []int64
	// failed is r's own error.
	failed error
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	if s.read-s.mark > s.limit {
		return 0, errTooLarge
	}
	n, err := s.r.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			s.newlines = append(s.newlines, s.read+int64(i))
		}
	}
	s.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// line returns the line of an offset; offsets must not go back.
func (s *source) line(offset int64) int {
	i := 0
	for i < len(s.newlines) && s.newlines[i] < offset {
		i++
	}
	s.lines += i
	s.newlines = s.newlines[i:]
	return s.lines + 1
}

// done tells that all before an offset has been dealt with.
func (s *source) done(offset int64) {
	s.mark = max(s.mark, offset)
	s.line(offset)
}

// tooLarge is the error for a value over the limit.
func (s *source) tooLarge(pos Position) error {
	return &Error{
		Pos: pos, Reason: "a line, object or list item is larger than " + size(s.limit),
		Hint: "no node or pod is that large; write one object a line, or a list",
	}
}

func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
