//go:build crash

package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// diskSize is the file system's: with the data in it and nothing else, more is free than a service asks for
	// whose disk was full.
	diskSize = "size=96m"
	// flood is how many pods come to a full disk.
	flood = 2000
)

// TestFullDisk has the file system of the data fill up under load and be cleared: real writes end with ENOSPC.
func TestFullDisk(t *testing.T) {
	bin := build(t, moduleRoot(t))
	for range *times {
		r := newRun(t, bin, chosenSeed())
		dir := filepath.Join(r.p.dir, "data")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, diskSize); err != nil {
			t.Fatalf("a disk of its own for the data cannot be mounted: %v; this test needs the right to mount (as root has it)", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		s := stageOn(r)
		s.meet(staged{name: "disk full", how: "a tmpfs filled to the last byte while records grow, cleared 5 s after the service stopped serving", do: fillDisk(dir)})
		s.finish()
		s.down()
	}
}

// fillDisk takes all room, lets records come, and clears the disk again once the service has noticed.
func fillDisk(dir string) func(*stage) {
	return func(s *stage) {
		ballast := filepath.Join(dir, "ballast")
		if err := fill(ballast); !errors.Is(err, unix.ENOSPC) {
			s.t.Fatalf("filling the disk ended with %v", err)
		}
		s.w.mu.Lock()
		for i := range flood {
			s.w.put(fmt.Sprint(bulkPrefix, i), 1)
		}
		s.w.mu.Unlock()
		for until := time.Now().Add(recoverWithin); s.p.metric(s.t, "reprieve_serving") != 0; s.pause(20 * time.Millisecond) {
			if time.Now().After(until) {
				s.t.Fatal("the disk is full and the service serves")
			}
		}
		s.pause(5 * time.Second)
		if s.p.metric(s.t, "reprieve_serving") != 0 {
			s.j.violation("the disk is still full and the service serves again")
		}
		if err := os.Remove(ballast); err != nil {
			s.t.Fatal(err)
		}
	}
}

// fill writes a file until there is no room.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for chunk := make([]byte, 4096); err == nil; {
		_, err = f.Write(chunk)
	}
	return errors.Join(err, f.Close())
}
