package bolt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
)

const (
	// checkArg, as a program's first argument, makes it a child that checks the
	// file that the second one names.
	checkArg = "check-data-file"
	// childStack bounds the child's stack: pages that name each other would fill
	// the default of 1 GiB before they end the process.
	childStack = 64 << 20
	// childMemory and a quarter of the file's size bound the child's data: a length
	// that makes no sense would have it ask for all that the machine has.
	childMemory = 1 << 30
	// checkTime and checkTimePerByte bound how long a child may take: 60 s, and
	// a second for each 4 MiB, which a slow disk reads in less.
	checkTime        = time.Minute
	checkTimePerByte = time.Second / (4 << 20)
)

// The child's exit codes beside 0, which means that the report says all.
const (
	childFailed = 10
	childLocked = 11
	childSchema = 12
)

// CheckMain does the child's part of [CheckInChild] if args, a program's without
// its name, ask for it, and returns the exit code.
func CheckMain(args []string, out, errs io.Writer) (code int, asked bool) {
	if len(args) != 2 || args[0] != checkArg {
		return 0, false
	}
	r, err := boundedCheck(args[1])
	if err == nil {
		err = json.NewEncoder(out).Encode(r)
	}
	if err == nil {
		return 0, true
	}
	// A parent that is gone is told nothing.
	_, _ = fmt.Fprintln(errs, err)
	switch {
	case errors.Is(err, engine.ErrStoreLocked):
		return childLocked, true
	case errors.Is(err, engine.ErrSchemaVersion):
		return childSchema, true
	}
	return childFailed, true
}

// boundedCheck is Check within the child's bounds.
func boundedCheck(path string) (*Report, error) {
	debug.SetMaxStack(childStack)
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("check data file: %w", err)
	}
	if err := limitMemory(childMemory + uint64(info.Size())/4); err != nil {
		return nil, fmt.Errorf("bound the memory of a check: %w", err)
	}
	return Check(context.Background(), path)
}

// SelfCheck is the command that runs this program as a child that checks.
func SelfCheck() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program itself, which checks data files in a child process: %w", err)
	}
	return []string{self, checkArg}, nil
}

// CheckInChild is [Check] in a child process, which a damaged page may end
// without harm: that too is a finding then. command is the program that calls
// [CheckMain], with the arguments before the file; see [SelfCheck].
func CheckInChild(ctx context.Context, command []string, path string) (*Report, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("check data file: %w", err)
	}
	limit := checkTime + time.Duration(info.Size())*checkTimePerByte
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], path)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	r := &Report{Path: path, SizeBytes: info.Size()}
	if err == nil {
		if err := json.Unmarshal(out.Bytes(), r); err != nil {
			return nil, fmt.Errorf("check data file %s in a child process: its answer cannot be read: %w", path, err)
		}
		return r, nil
	}
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("check data file %s: not done after %s: the disk is too slow, or the file leads in circles; look with `reprieve store check`", path, limit)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("check data file %s: %w", path, context.Cause(ctx))
	case !errors.As(err, &exit):
		return nil, fmt.Errorf("check data file %s in a child process: %w", path, err)
	}
	said := strings.TrimSpace(errs.String())
	switch exit.ExitCode() {
	case childLocked:
		return nil, fmt.Errorf("%w: data file %s", engine.ErrStoreLocked, path)
	case childSchema:
		return nil, fmt.Errorf("%w: %s", engine.ErrSchemaVersion, strings.TrimPrefix(said, engine.ErrSchemaVersion.Error()+": "))
	case childFailed:
		return nil, fmt.Errorf("check data file %s: %s", path, said)
	}
	first, _, _ := strings.Cut(said, "\n")
	r.page("reading it ends the process that reads (%s: %s)", exit, first)
	return r, nil
}

// damage is the error that stands for a report of a file that is beyond help.
func (r *Report) damage() error {
	return fmt.Errorf("%w: data file %s: %s; restore a backup (reprieve store restore), or move it away to begin anew",
		store.ErrDamaged, r.Path, r.Pages[0])
}
