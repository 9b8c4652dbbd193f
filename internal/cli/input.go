package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/reprieve-dev/reprieve/client/timeline"
)

// progressEvery is how many bytes are read between two signs of life at a terminal.
const progressEvery = 8 << 20

// opened are input files; "-" is the standard input.
type opened struct {
	name string
	r    io.Reader
}

// interruptible reads r, but a read that blocks, as one of a terminal or of a pipe
// that is held open, ends with ctx. What it waited for is then lost, and its
// goroutine stays until the read returns.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	if f, ok := r.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			return r
		}
	}
	return &interruptibleReader{ctx: ctx, r: r, done: make(chan readResult, 1)}
}

// readChunk is how much one read in the background takes at most.
const readChunk = 64 << 10

type interruptibleReader struct {
	ctx  context.Context
	r    io.Reader
	done chan readResult
	left []byte // read and not yet taken
	err  error  // of the last read, once left is taken
}

type readResult struct {
	b   []byte
	err error
}

// Read implements [io.Reader].
func (x *interruptibleReader) Read(b []byte) (int, error) {
	if x.ctx.Err() != nil {
		return 0, context.Cause(x.ctx)
	}
	if len(b) == 0 {
		return 0, nil
	}
	if len(x.left) == 0 && x.err == nil {
		// A buffer of its own, for b is its owner's again after an interrupt.
		buf := make([]byte, min(len(b), readChunk))
		go func() {
			n, err := x.r.Read(buf)
			x.done <- readResult{buf[:n], err}
		}()
		select {
		case r := <-x.done:
			x.left, x.err = r.b, r.err
		case <-x.ctx.Done():
			return 0, context.Cause(x.ctx)
		}
	}
	n := copy(b, x.left)
	if x.left = x.left[n:]; len(x.left) > 0 {
		return n, nil
	}
	return n, x.err
}

// openFile opens a file to read. Opening a named pipe that nobody writes to
// blocks; that too ends with ctx.
func openFile(ctx context.Context, name string) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		f, err := os.Open(name)
		done <- result{f, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, usagef("%v", r.err)
		}
		return r.f, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				_ = r.f.Close() // Never read from.
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// openInputs opens files, which may be pipes. close closes them. Reads end with ctx.
func (a *app) openInputs(ctx context.Context, names []string) (list []opened, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, f := range files {
			_ = f.Close() // Only read from.
		}
	}
	stdin := false
	for _, name := range names {
		if name == "-" {
			if stdin {
				closeAll()
				return nil, nil, usagef("- is given twice: the input can be read once")
			}
			stdin = true
			list = append(list, opened{"stdin", a.progress("stdin", interruptible(ctx, a.In))})
			continue
		}
		f, err := openFile(ctx, name)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		files = append(files, f)
		list = append(list, opened{name, a.progress(name, interruptible(ctx, f))})
	}
	return list, closeAll, nil
}

// progress tells at a terminal how much of a long input has been read.
func (a *app) progress(name string, r io.Reader) io.Reader {
	if !a.Interactive {
		return r
	}
	return &progressReader{r: r, name: name, out: a.Err}
}

type progressReader struct {
	r         io.Reader
	name      string
	out       io.Writer
	n, shown  int64
	announced bool
}

// Read implements [io.Reader].
func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.n += int64(n)
	if p.n-p.shown >= progressEvery {
		p.shown, p.announced = p.n, true
		fmt.Fprintf(p.out, "\r%s: %d MiB read", cleanText(p.name), p.n>>20)
	}
	if err != nil && p.announced {
		fmt.Fprintln(p.out)
		p.announced = false
	}
	return n, err
}

// warn prints a warning of a reader.
func (a *app) warn(w timeline.Warning) {
	fmt.Fprintf(a.Err, "warning: %s\n", cleanText(w.Pos.String()+": "+w.Text))
}
