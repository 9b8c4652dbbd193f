package cli

import (
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

// openInputs opens files, which may be pipes. close closes them.
func (a *app) openInputs(names []string) (list []opened, closeAll func(), err error) {
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
			list = append(list, opened{"stdin", a.progress("stdin", a.In)})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			closeAll()
			return nil, nil, usagef("%v", err)
		}
		files = append(files, f)
		list = append(list, opened{name, a.progress(name, f)})
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
