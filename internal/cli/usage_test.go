package cli

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestHelp checks that each command's help fits the width and names its flags
// and commands.
func TestHelp(t *testing.T) {
	var check func(cmd *cobra.Command, path []string)
	check = func(cmd *cobra.Command, path []string) {
		h := newHarness(t)
		code, out, errs := h.run(append(slices.Clone(path), "--help")...)
		name := strings.Join(path, " ")
		if code != exitOK || errs != "" || !strings.Contains(out, "\nUsage:\n  reprieve") {
			t.Fatalf("%s: exit %d, stderr %q, output %q", name, code, errs, out)
		}
		for line := range strings.SplitSeq(out, "\n") {
			if utf8.RuneCountInString(line) > tableWidth {
				t.Errorf("%s: a line is wider than %d columns: %s", name, tableWidth, line)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(out, "--"+f.Name) || strings.Contains(out, "--"+f.Name+"[") {
				t.Errorf("%s: the help shows no --%s", name, f.Name)
			}
		})
		for _, c := range cmd.Commands() {
			if !strings.Contains(out, "\n  "+c.Name()+" ") {
				t.Errorf("%s: the help shows no command %s", name, c.Name())
			}
			check(c, append(slices.Clone(path), c.Name()))
		}
	}
	check(newRoot(newHarness(t).environment(nil, nil)), nil)
}

func TestWrap(t *testing.T) {
	for text, want := range map[string][]string{
		"":                     {""},
		"a bb ccc":             {"a bb", "ccc"},
		"longer-than-width a":  {"longer-than-width", "a"},
		"ä ö ü ß é":            {"ä ö ü", "ß é"},
		"  spaces   are  one ": {"spaces", "are", "one"},
	} {
		if got := wrap(text, 6); !slices.Equal(got, want) {
			t.Errorf("wrap(%q) is %q, want %q", text, got, want)
		}
	}
}
