package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// What the header of one of bbolt's pages has, in the machine's own byte order:
// the page's number, and at headerFlags what kind it is.
const (
	headerSize  = 16
	headerFlags = 8
	metaPage    = 4
)

// brokenHeaders returns which of the two meta pages do not have the header of one.
// A power failure during a commit can leave one so: the sector being written holds
// neither the old nor the new. The file is whole then, for the other meta page
// counts, and the next commit writes the broken one anew; but bbolt's check of the
// pages takes the header for a fault and ends there.
func brokenHeaders(f io.ReaderAt, pageSize int64) (broken []int64, err error) {
	for page := range int64(2) {
		h := make([]byte, headerSize)
		if _, err := f.ReadAt(h, page*pageSize); err != nil {
			return nil, err
		}
		if int64(binary.NativeEndian.Uint64(h)) != page || binary.NativeEndian.Uint16(h[headerFlags:]) != metaPage {
			broken = append(broken, page)
		}
	}
	return broken, nil
}

// checkable returns the path of a file that bbolt's check can read: the one at
// path, or else a copy of it with the headers of its meta pages mended, which done
// removes. The file itself is not written to: another process may have it open.
func checkable(path string, pageSize int64) (at string, done func() error, err error) {
	none := func() error { return nil }
	f, err := os.Open(path)
	if err != nil {
		return "", none, err
	}
	defer f.Close()
	broken, err := brokenHeaders(f, pageSize)
	if err != nil || len(broken) == 0 {
		return path, none, err
	}
	c, err := os.CreateTemp(filepath.Dir(path), "check-*.tmp")
	if err != nil {
		// The folder of a backup may be one that nobody may write in.
		c, err = os.CreateTemp("", "reprieve-check-*.tmp")
	}
	if err != nil {
		return "", none, fmt.Errorf("copy data file %s to check it: %w", path, err)
	}
	done = func() error { return os.Remove(c.Name()) }
	_, err = io.Copy(c, f)
	for _, page := range broken {
		h := make([]byte, headerSize)
		binary.NativeEndian.PutUint64(h, uint64(page))
		binary.NativeEndian.PutUint16(h[headerFlags:], metaPage)
		_, wErr := c.WriteAt(h, page*pageSize)
		err = errors.Join(err, wErr)
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return "", none, errors.Join(fmt.Errorf("copy data file %s to check it: %w", path, err), done())
	}
	return c.Name(), done, nil
}
