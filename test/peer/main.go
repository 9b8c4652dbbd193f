package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// settings are what the command line says.
type settings struct {
	rounds      int
	quick       bool
	rows        string
	dir, out    string
	row, side   string
	sideTimeout time.Duration
	profile     string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run() error {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 5, "how often each side is measured")
	flag.BoolVar(&s.quick, "quick", false, "smaller sizes")
	flag.StringVar(&s.rows, "rows", "", "names of the rows to measure, with commas between; default all")
	flag.StringVar(&s.dir, "dir", "", "folder for data files; default one beside the system's temporary files")
	flag.StringVar(&s.out, "out", "", "document to write the table into, between its markers; default is to print it")
	flag.StringVar(&s.row, "row", "", "measure one row in this process")
	flag.StringVar(&s.side, "side", "", "measure one side in this process")
	flag.DurationVar(&s.sideTimeout, "side-timeout", 10*time.Minute, "how long one measurement may take")
	flag.StringVar(&s.profile, "cpuprofile", "", "with -row and -side: file for a processor profile")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if s.row != "" {
		return s.child(ctx)
	}
	return s.parent(ctx)
}

// child measures one side and prints its figures as JSON.
func (s *settings) child(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.sideTimeout)
	defer cancel()
	// The original logs every event that its recorder has no room for. An empty logger
	// does not even format them, which is in its favour.
	klog.SetLogger(klog.Logger{})
	if s.profile != "" {
		f, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	for _, r := range rows {
		for _, d := range r.sides {
			if r.name != s.row || d.name != s.side {
				continue
			}
			got, err := d.measure(&run1{Context: ctx, dir: s.dir, size: r.size(s.quick)})
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(got)
		}
	}
	return fmt.Errorf("no side %q of a row %q", s.side, s.row)
}

// parent measures all sides of all rows in turn, and writes the table.
func (s *settings) parent(ctx context.Context) (err error) {
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "reprieve-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(s.dir)
	} else if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	chosen := rows
	if s.rows != "" {
		names := strings.Split(s.rows, ",")
		chosen = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !slices.Contains(names, r.name) })
		if len(chosen) != len(names) {
			return fmt.Errorf("-rows %s: not all of these are rows", s.rows)
		}
	}
	began, load := time.Now(), loadAverage()
	res := results{}
	var failed []error
	// A round measures all rows, so that no row has all of its turns in one minute.
	for round := range s.rounds {
		for _, r := range chosen {
			for _, d := range r.sides {
				got, err := s.spawn(ctx, r.name, d.name)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err != nil {
					// The other rows are worth having; the command fails in the end.
					failed = append(failed, fmt.Errorf("%s, %s: %w", r.name, d.name, err))
				}
				res.add(r.name, d.name, round, got)
				fmt.Fprintf(os.Stderr, "%7s round %d %s, %s: %v %v\n", time.Since(began).Round(time.Second/10), round+1, r.name, d.name, got, err)
			}
		}
	}
	t := table(chosen, res, about(s, time.Since(began), load), s.quick)
	if s.out == "" {
		fmt.Print(t)
		return errors.Join(failed...)
	}
	return errors.Join(append(failed, insert(s.out, t))...)
}

// spawn measures one side in a process of its own.
func (s *settings) spawn(ctx context.Context, row, side string) (figures, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-row", row, "-side", side, "-dir", s.dir, fmt.Sprintf("-quick=%t", s.quick), "-side-timeout", s.sideTimeout.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var got figures
	return got, json.Unmarshal(out, &got)
}
