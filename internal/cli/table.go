package cli

import (
	"io"
	"strings"
	"unicode/utf8"
)

// tableWidth is the width that tables on a terminal keep to unless it is wider.
const tableWidth = 100

// column is one column of a table. Columns with min 0 are never cut; the others
// give way, the widest first, down to min characters. Of nodes' names the domain that
// all of them share goes before that.
type column struct {
	title string
	min   int
	nodes bool
}

// table is rows under a heading.
type table struct {
	columns []column
	rows    [][]string
}

func (t *table) add(cells ...string) {
	for i := range cells {
		cells[i] = cleanText(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// widths are those of the columns with nothing cut, and total that of a line, counting
// two spaces between them.
func (t *table) widths() (w []int, total int) {
	w, total = make([]int, len(t.columns)), -2
	for i, c := range t.columns {
		w[i] = utf8.RuneCountInString(c.title)
		for _, row := range t.rows {
			w[i] = max(w[i], utf8.RuneCountInString(row[i]))
		}
		total += w[i] + 2
	}
	return w, total
}

// fit makes the columns as wide as they may be in width, unless that is 0.
func (t *table) fit(width int) []int {
	w, total := t.widths()
	if width == 0 || total <= width {
		return w
	}
	t.dropDomains()
	for w, total = t.widths(); total > width; total-- {
		widest := -1
		for i, c := range t.columns {
			if c.min > 0 && w[i] > max(c.min, utf8.RuneCountInString(c.title)) && (widest < 0 || w[i] > w[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		w[widest]--
	}
	return w
}

// dropDomains takes the domain that all nodes of a column share off their names: that
// of a cloud tells nothing.
func (t *table) dropDomains() {
	for i, c := range t.columns {
		domain := ""
		if c.nodes {
			domain = t.sharedDomain(i)
		}
		if domain == "" {
			continue
		}
		for _, row := range t.rows {
			if host, ok := strings.CutSuffix(row[i], domain); ok {
				row[i] = host + "…"
			}
		}
	}
}

// sharedDomain is what all names of a column that have a dot end with, from a dot on;
// empty if there is no such thing, or if it ends in a number, as an address does.
func (t *table) sharedDomain(column int) string {
	domain, found := "", false
	for _, row := range t.rows {
		host, rest, dotted := strings.Cut(row[column], ".")
		if !dotted || host == "" {
			continue
		}
		if !found {
			domain, found = "."+rest, true
		}
		for domain != "" && (!strings.HasSuffix(row[column], domain) || row[column] == domain) {
			if next := strings.IndexByte(domain[1:], '.'); next >= 0 {
				domain = domain[1+next:]
			} else {
				domain = ""
			}
		}
	}
	if last := domain[strings.LastIndexByte(domain, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return ""
	}
	return domain
}

// render is the table in at most width columns as far as the columns' least widths
// allow that; with 0 nothing is cut.
func (t *table) render(width int) string {
	w := t.fit(width)
	var b strings.Builder
	line := func(cell func(i int) string) {
		var l strings.Builder
		for i := range t.columns {
			s := truncate(cell(i), w[i])
			l.WriteString(s)
			if i < len(t.columns)-1 {
				l.WriteString(strings.Repeat(" ", w[i]-utf8.RuneCountInString(s)+2))
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(func(i int) string { return t.columns[i].title })
	for _, row := range t.rows {
		line(func(i int) string { return row[i] })
	}
	return b.String()
}

// truncate cuts the middle out of s so that it has at most width characters:
// both ends of a pod's name tell it from its neighbours.
func truncate(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	if width <= 1 {
		return string(r[:width])
	}
	tail := (width - 1) / 2
	head := width - 1 - tail
	return string(r[:head]) + "…" + string(r[len(r)-tail:])
}

// columns is how wide a table may be: where nobody looks at it, as in a pipe, or
// with -o wide, nothing is cut, and it is 0. In a narrow terminal a line that wraps
// tells more than one that is cut to a few letters a column.
func (a *app) columns() int {
	if w := a.Width(); w > 0 && !a.flags.wide {
		return max(w, tableWidth)
	}
	return 0
}

// draws reports whether a watch is a table that is drawn over itself; otherwise it
// prints what changes.
func (a *app) draws() bool { return a.columns() > 0 && a.flags.output == outputTable }

// printTable prints t, or says in one line on the error stream that there is nothing.
func (a *app) printTable(t *table, nothing string) error {
	if len(t.rows) == 0 {
		_, err := io.WriteString(a.Err, nothing+"\n")
		return err
	}
	_, err := io.WriteString(a.Out, t.render(a.columns()))
	return err
}
