package cli

import (
	"io"
	"strings"
	"unicode/utf8"
)

const (
	// tableWidth is the width that tables on a terminal keep to unless it is wider.
	tableWidth = 100
	// nodeTitle is the title of columns that have nodes' names.
	nodeTitle = "NODE"
)

// column is one column of a table. Columns with min 0 are never cut; the others
// give way, the widest first, down to min characters.
type column struct {
	title string
	min   int
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

// widths fits the columns into width, unless that is 0, counting two spaces between them.
func (t *table) widths(width int) []int {
	w := make([]int, len(t.columns))
	total := -2
	for i := range t.columns {
		w[i] = t.widest(i, func(cell string) string { return cell })
		total += w[i] + 2
	}
	for i, c := range t.columns {
		if width > 0 && total > width && c.title == nodeTitle {
			hosts := t.widest(i, withoutDomain)
			total -= w[i] - hosts
			w[i] = hosts
		}
	}
	for width > 0 && total > width {
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
		total--
	}
	return w
}

// widest is how wide a column is whose cells are shown so.
func (t *table) widest(column int, shown func(string) string) int {
	w := utf8.RuneCountInString(t.columns[column].title)
	for _, row := range t.rows {
		w = max(w, utf8.RuneCountInString(shown(row[column])))
	}
	return w
}

// render is the table in at most width columns as far as the columns' least widths
// allow that; with 0 nothing is cut.
func (t *table) render(width int) string {
	w := t.widths(width)
	var b strings.Builder
	line := func(cell func(i int) string) {
		var l strings.Builder
		for i := range t.columns {
			cut := truncate
			if t.columns[i].title == nodeTitle {
				cut = truncateNode
			}
			s := cut(cell(i), w[i])
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

// truncateNode cuts a node's name as truncate does, the domain first.
func truncateNode(s string, width int) string {
	if utf8.RuneCountInString(s) <= width || width < 2 {
		return truncate(s, width)
	}
	short := withoutDomain(s)
	if short == s {
		return truncate(s, width)
	}
	return truncate(strings.TrimSuffix(short, "…"), width-1) + "…"
}

// withoutDomain is a node's name without its domain, which is the same for all nodes of a cloud.
func withoutDomain(s string) string {
	if host, _, ok := strings.Cut(s, "."); ok {
		return host + "…"
	}
	return s
}

// columns is how wide a table may be: where nobody looks at it, as in a pipe, or
// with -o wide, nothing is cut, and it is 0.
func (a *app) columns() int {
	if w := a.Width(); w > 0 && !a.flags.wide {
		return max(w, tableWidth)
	}
	return 0
}

// printTable prints t, or says in one line on the error stream that there is nothing.
func (a *app) printTable(t *table, nothing string) error {
	if len(t.rows) == 0 {
		_, err := io.WriteString(a.Err, nothing+"\n")
		return err
	}
	_, err := io.WriteString(a.Out, t.render(a.columns()))
	return err
}
