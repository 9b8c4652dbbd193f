package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// figures are what one measurement found, by name.
type figures map[string]float64

// run1 is one measurement: where it may put files, and how large it is.
type run1 struct {
	context.Context
	dir  string
	size int
}

// side is one of those that a row compares.
type side struct {
	name    string
	measure func(*run1) (figures, error)
}

// bound is how a row's comparison is judged.
type bound int

const (
	// atLeast: ours by theirs, as a ratio, must be no less.
	atLeast bound = iota
	// atMost: ours by theirs, as a ratio, must be no more.
	atMost
	// within: ours less theirs must be no more.
	within
)

// comparison is one line of the table.
type comparison struct {
	// ours and theirs are "side/figure" of the row, or "row/side/figure" of another.
	// Without theirs the bar is ours' own, whatever the others do.
	ours, theirs string
	// as says what theirs is, to readers.
	as    string
	unit  string
	bound bound
	bar   float64
	// times multiplies theirs, 0 means 1.
	times float64
}

// row is one kind of work.
type row struct {
	name, work  string
	full, small int
	sides       []side
	compare     []comparison
}

func (r *row) size(quick bool) int {
	if quick {
		return r.small
	}
	return r.full
}

// results are all figures, by row/side/figure, one a round.
type results map[string]map[int]float64

func (r results) add(row, side string, round int, got figures) {
	for name, v := range got {
		key := row + "/" + side + "/" + name
		if r[key] == nil {
			r[key] = map[int]float64{}
		}
		r[key][round] = v
	}
}

func (r results) of(row, key string) map[int]float64 {
	if strings.Count(key, "/") < 2 {
		key = row + "/" + key
	}
	return r[key]
}

func median(m map[int]float64) (mid, least, most float64) {
	var v []float64
	for _, x := range m {
		v = append(v, x)
	}
	if len(v) == 0 {
		return 0, 0, 0
	}
	slices.Sort(v)
	mid = v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return mid, v[0], v[len(v)-1]
}

// table writes the results in Markdown.
func table(rows []row, res results, about string, quick bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", about)
	b.WriteString("| row | work | Reprieve | beside | its figure | ratio (spread) | bar | met |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		for i, c := range r.compare {
			name, work := r.name, strings.ReplaceAll(r.work, "N", count(r.size(quick)))
			if i > 0 {
				name, work = "", ""
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, work, c.line(&r, res))
		}
	}
	return b.String()
}

// line is the part of the table that the comparison fills.
func (c *comparison) line(r *row, res results) string {
	ours, theirs := res.of(r.name, c.ours), res.of(r.name, c.theirs)
	if c.theirs == "" {
		return c.lineAlone(ours)
	}
	times := c.times
	if times == 0 {
		times = 1
	}
	rel := map[int]float64{}
	for round, v := range ours {
		if w, ok := theirs[round]; ok {
			if c.bound == within {
				rel[round] = v - times*w
			} else if w != 0 {
				rel[round] = v / (times * w)
			}
		}
	}
	if len(rel) == 0 {
		return fmt.Sprintf("not measured | %s | | | | **no**", c.as)
	}
	mid, least, most := median(rel)
	a, _, _ := median(ours)
	z, _, _ := median(theirs)
	met, sign := mid >= c.bar, "at least "
	if c.bound != atLeast {
		met, sign = mid <= c.bar, "at most "
	}
	ratio, bar := fmt.Sprintf("%.2f (%.2f-%.2f)", mid, least, most), fmt.Sprintf("%s%.3g", sign, c.bar)
	if c.bound == within {
		ratio, bar = fmt.Sprintf("%+.2f %s (%+.2f-%+.2f)", mid, c.unit, least, most), fmt.Sprintf("%s+%.3g %s", sign, c.bar, c.unit)
	}
	return fmt.Sprintf("%s | %s | %s | %s | %s | %s", show(a, c.unit), c.as, show(times*z, c.unit), ratio, bar, verdict(met))
}

// lineAlone is the line of a figure with a bar of its own.
func (c *comparison) lineAlone(ours map[int]float64) string {
	if len(ours) == 0 {
		return fmt.Sprintf("not measured | %s | | | | **no**", c.as)
	}
	mid, least, most := median(ours)
	met, sign := mid >= c.bar, "at least"
	if c.bound == atMost {
		met, sign = mid <= c.bar, "at most"
	}
	return fmt.Sprintf("%s | %s | | (%s to %s) | %s %s | %s", show(mid, c.unit), c.as, show(least, c.unit), show(most, c.unit), sign, show(c.bar, c.unit), verdict(met))
}

func verdict(met bool) string {
	if met {
		return "yes"
	}
	return "**no**"
}

// show writes a figure with as many digits as say something.
func show(v float64, unit string) string {
	switch {
	case v >= 10000:
		return count(int(v)) + " " + unit
	case v >= 100:
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

// count writes a whole number with commas.
func count(n int) string {
	d := fmt.Sprint(n)
	for i := len(d) - 3; i > 0; i -= 3 {
		d = d[:i] + "," + d[i:]
	}
	return d
}

// about says what was measured where.
func about(s *settings, took time.Duration, load string) string {
	deps := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			deps[d.Path] = d.Version
		}
	}
	commit, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	mode := "whole sizes"
	if s.quick {
		mode = "the sizes of `make bench-quick`"
	}
	return fmt.Sprintf("Commit %s, %s; k8s.io/kubernetes %s, bbolt %s, grpc-go %s; %s, %d CPUs, %s; load average %s before, %s after. %d rounds of %s in %s.",
		strings.TrimSpace(string(commit)), runtime.Version(), deps["k8s.io/kubernetes"], deps["go.etcd.io/bbolt"], deps["google.golang.org/grpc"],
		runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), cpuModel(), load, loadAverage(), s.rounds, mode, took.Round(time.Second))
}

// loadAverage is how many programs wanted a processor in the last minute, on average.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(b), " ")
	return load
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown CPU"
}

const (
	tableBegins = "<!-- bench begins -->"
	tableEnds   = "<!-- bench ends -->"
)

// insert puts the table between the markers of a document.
func insert(path, table string) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(doc), tableBegins)
	_, tail, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the lines %q and %q, between which the table goes", path, tableBegins, tableEnds)
	}
	return os.WriteFile(path, []byte(head+tableBegins+"\n"+table+tableEnds+tail), 0o644)
}
