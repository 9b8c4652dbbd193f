package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cold measures with the data file out of the page cache, and checks that the
// file was read from the disk.
func cold(measure func(*run1) (figures, error)) func(*run1) (figures, error) {
	return func(r *run1) (figures, error) {
		dir, err := openFile(r)
		if err != nil {
			return nil, err
		}
		if err := dropCache(filepath.Join(dir, "reprieve.db")); err != nil {
			return nil, err
		}
		before, err := readFromDisk()
		if err != nil {
			return nil, err
		}
		got, err := measure(r)
		if err != nil {
			return nil, err
		}
		after, err := readFromDisk()
		if err != nil {
			return nil, err
		}
		// Every eviction has been read, so at least their keys and values come from the disk.
		if read, least := after-before, 100*r.size; read < least {
			return nil, fmt.Errorf("%d bytes were read from the disk, want at least %d: is %s in memory? choose with -dir", read, least, r.dir)
		}
		got["read"] = float64(after-before) / (1 << 20)
		return got, nil
	}
}

// dropCache takes a file out of the page cache. Only what is on the disk can go.
func dropCache(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// readFromDisk is how many bytes the process has had read from a disk so far.
func readFromDisk() (int, error) {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "read_bytes:"); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, errors.New("/proc/self/io has no read_bytes")
}
