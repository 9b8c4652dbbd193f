package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usage writes how a command is called, in tableWidth columns. The flags that all
// commands have are explained by the root's help alone, and named elsewhere.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND\n", cmd.CommandPath())
	} else {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAlso called: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString(subcommands(cmd))
	}
	if fs := cmd.LocalFlags(); fs.HasAvailableFlags() {
		b.WriteString("\nFlags:\n" + flagLines(fs))
	}
	if fs := cmd.InheritedFlags(); fs.HasAvailableFlags() {
		var names []string
		fs.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, strings.TrimSpace(flagName(f)))
			}
		})
		fmt.Fprintf(&b, "\nGlobal flags (`%s --help` explains them):\n", cmd.Root().Name())
		for _, l := range wrap(strings.Join(names, ", "), tableWidth-2) {
			b.WriteString("  " + l + "\n")
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n`%s COMMAND --help` explains one command, with examples.\n", cmd.CommandPath())
	}
	cmd.Print(b.String())
	return nil
}

// subcommands lists a command's commands, by group where it has groups.
func subcommands(cmd *cobra.Command) string {
	var b strings.Builder
	list := func(title, group string) {
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, c := range cmd.Commands() {
			if c.GroupID == group && (c.IsAvailableCommand() || c.Name() == "help") {
				fmt.Fprintf(&b, "  %-*s  %s\n", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	if !cmd.AllChildCommandsHaveGroup() {
		list("Commands:", "")
	}
	return b.String()
}

// flagName is a flag's names without its value, with room for a short name.
func flagName(f *pflag.Flag) string {
	if f.Shorthand == "" {
		return "    --" + f.Name
	}
	return "-" + f.Shorthand + ", --" + f.Name
}

// flagLines explains flags, one or more lines each.
func flagLines(fs *pflag.FlagSet) string {
	type line struct{ left, right string }
	var lines []line
	width := 0
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, text := pflag.UnquoteUsage(f)
		left := flagName(f)
		if kind = strings.TrimSuffix(kind, "Array"); kind != "" {
			left += " " + kind
		}
		switch f.DefValue {
		case "", "0", "0s", "false", "[]":
		default:
			text += " (default " + f.DefValue + ")"
		}
		width = max(width, utf8.RuneCountInString(left))
		lines = append(lines, line{left, text})
	})
	var b strings.Builder
	for _, l := range lines {
		for i, text := range wrap(l.right, tableWidth-width-5) {
			if i > 0 {
				l.left = ""
			}
			fmt.Fprintf(&b, "  %-*s   %s\n", width, l.left, text)
		}
	}
	return b.String()
}

// wrap breaks a text between words into lines of at most width characters. A
// longer word has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line, n := "", 0
	for w := range strings.FieldsSeq(text) {
		k := utf8.RuneCountInString(w)
		if n > 0 && n+1+k > width {
			lines = append(lines, line)
			line, n = "", 0
		}
		if n > 0 {
			line, n = line+" ", n+1
		}
		line, n = line+w, n+k
	}
	if n > 0 || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}
