package cli

import (
	"io"
	"strings"
	"unicode/utf8"
)

// tableWidth is the width that tables keep to unless the terminal is wider.
const tableWidth = 100

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

// widths fits the columns into width, counting two spaces between them.
func (t *table) widths(width int) []int {
	w := make([]int, len(t.columns))
	total := -2
	for i, c := range t.columns {
		w[i] = utf8.RuneCountInString(c.title)
		for _, row := range t.rows {
			w[i] = max(w[i], utf8.RuneCountInString(row[i]))
		}
		total += w[i] + 2
	}
	for total > width {
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

// write prints the table in at most width columns; 0 means the standard width.
func (t *table) write(out io.Writer, width int) error {
	_, err := io.WriteString(out, t.render(width))
	return err
}

func (t *table) render(width int) string {
	w := t.widths(max(width, tableWidth))
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

// printTable prints t, or says in one line on the error stream that there is nothing.
func (a *app) printTable(t *table, nothing string) error {
	if len(t.rows) == 0 {
		_, err := io.WriteString(a.Err, nothing+"\n")
		return err
	}
	return t.write(a.Out, a.Width())
}
