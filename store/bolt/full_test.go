package bolt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store"
	"github.com/reprieve-dev/reprieve/store/bolt"
	"github.com/reprieve-dev/reprieve/store/storetest"
	"golang.org/x/sys/unix"
)

// fullDisk names the data file to the child process of TestFullDisk.
const fullDisk = "REPRIEVE_TEST_FULL_DISK"

func TestMain(m *testing.M) {
	if path := os.Getenv(fullDisk); path != "" {
		if err := runOutOfSpace(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if code, asked := bolt.CheckMain(os.Args[1:], os.Stdout, os.Stderr); asked {
		os.Exit(code)
	}
	var err error
	if selfCheck, err = bolt.SelfCheck(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestFullDisk lets a store run out of space in a process of its own, whose
// files may not grow: a limit that needs no rights and no file system of its own.
func TestFullDisk(t *testing.T) {
	path := newFile(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fullDisk+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// What the child left is read here once more.
	if c := load(t, path); len(c.Clusters) != 1 || len(c.Clusters[0].Evictions) == 0 {
		t.Errorf("the file of the child has %+v", c.Clusters)
	}
}

// runOutOfSpace commits until the limit is met, frees it, and looks that what
// was acknowledged is there.
func runOutOfSpace(path string) error {
	// Without this the kernel ends the process instead of failing its writes.
	signal.Ignore(unix.SIGXFSZ)
	ctx := context.Background()
	s, err := bolt.Open(ctx, bolt.Options{Path: path})
	if err != nil {
		return err
	}
	free, err := limitFiles(uint64(s.Size()))
	if err != nil {
		return err
	}
	acknowledged, failure := fill(ctx, s)
	if failure == nil || !strings.Contains(failure.Error(), path) {
		return fmt.Errorf("commits into a full disk end with %v after %d", failure, acknowledged)
	}
	if err := s.Commit(ctx, batchOf(9999)); !errors.Is(err, store.ErrBroken) {
		return fmt.Errorf("commit after the failed one: %w", err)
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if err := free(); err != nil {
		return err
	}
	if s, err = bolt.Open(ctx, bolt.Options{Path: path}); err != nil {
		return fmt.Errorf("open with room again: %w", err)
	}
	c, err := storetest.Load(ctx, s)
	if err != nil {
		return err
	}
	// The failed commit may be there or not, but not in part.
	if n := len(c.Clusters[0].Evictions); uint64(n) != c.Meta.Revision*perBatch || c.Meta.Revision != acknowledged && c.Meta.Revision != acknowledged+1 {
		return fmt.Errorf("%d evictions at revision %d, acknowledged was %d", n, c.Meta.Revision, acknowledged)
	}
	if err := s.Commit(ctx, batchOf(c.Meta.Revision+1)); err != nil {
		return fmt.Errorf("commit with room again: %w", err)
	}
	return s.Close()
}

// limitFiles bounds the size of files and returns what lifts the bound.
func limitFiles(size uint64) (free func() error, err error) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		return nil, err
	}
	limit := unix.Rlimit{Cur: size, Max: before.Max}
	return func() error { return unix.Setrlimit(unix.RLIMIT_FSIZE, &before) }, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit)
}

const perBatch = 200

// fill commits batches until one fails, and returns how many did not.
func fill(ctx context.Context, s engine.Store) (done uint64, err error) {
	for done < 1000 {
		if err := s.Commit(ctx, batchOf(done+1)); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

func batchOf(revision uint64) *engine.Batch {
	b := &engine.Batch{Revision: revision, Now: epoch}
	for i := range uint64(perBatch) {
		r := storetest.Eviction("a", (revision-1)*perBatch+i+1)
		b.Changes = append(b.Changes, engine.Change{Kind: engine.ChangePutEviction, Cluster: "a", Eviction: storetest.VersionOf(r)})
	}
	return b
}
