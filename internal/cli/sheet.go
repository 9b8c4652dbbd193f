package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// sheet prints one thing as lines of a label and a value.
type sheet struct{ out io.Writer }

func newSheet(out io.Writer) *sheet { return &sheet{out: out} }

func (s *sheet) row(label, value string) {
	fmt.Fprintf(s.out, "%-13s%s\n", label+":", strings.TrimSpace(cleanText(value)))
}

// text is a row whose value goes on below where it does not fit the width.
func (s *sheet) text(label, value string) {
	for i, part := range wrap(cleanText(value), tableWidth-13) {
		if i > 0 {
			fmt.Fprintf(s.out, "%-13s%s\n", "", part)
			continue
		}
		s.row(label, part)
	}
}

// block prints a heading and indented lines; nothing if there are none. What does
// not fit the width goes on below.
func (s *sheet) block(heading string, lines ...string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(s.out, "%s:\n", heading)
	for _, l := range lines {
		l = cleanText(l)
		// Short lines keep the spaces that align them.
		if utf8.RuneCountInString(l) <= tableWidth-2 {
			fmt.Fprintf(s.out, "  %s\n", l)
			continue
		}
		for i, part := range wrap(l, tableWidth-6) {
			indent := "  "
			if i > 0 {
				indent = "      "
			}
			fmt.Fprintf(s.out, "%s%s\n", indent, part)
		}
	}
}

// parseWord finds an enum value by its short name: no-executor is HOLD_REASON_NO_EXECUTOR.
func parseWord(what, prefix, given string, values map[string]int32) (int32, error) {
	name := strings.ToUpper(strings.ReplaceAll(given, "-", "_"))
	if v, ok := values[prefix+name]; ok && v != 0 {
		return v, nil
	}
	return 0, usagef("%s %q is unknown; use one of %s", what, given, strings.Join(words(prefix, values), ", "))
}

// words are the short names of an enum's values, in their order.
func words(prefix string, values map[string]int32) []string {
	var out []string
	for name, v := range values {
		if v != 0 {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return int(values[a] - values[b]) })
	for i, name := range out {
		out[i] = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
	}
	return out
}
