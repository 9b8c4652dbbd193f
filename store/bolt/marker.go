package bolt

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// markerSuffix is what the name of the marker of a clean close has beside the
// data file's.
const markerSuffix = ".clean"

// marker says which state of a data file was closed cleanly. It is bound to that
// state by the pages that every commit changes one of, so nothing about it has to
// be synced: a marker that is lost, or older than the file, costs a check.
type marker struct {
	Size  int64  `json:"size"`
	Metas uint32 `json:"metas"`
}

// markerOf reads the file's state.
func markerOf(path string) (marker, error) {
	f, err := os.Open(path)
	if err != nil {
		return marker{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return marker{}, err
	}
	metas := make([]byte, 2*os.Getpagesize())
	if _, err := io.ReadFull(f, metas); err != nil {
		return marker{}, err
	}
	return marker{Size: info.Size(), Metas: crc32.Checksum(metas, crc32.MakeTable(crc32.Castagnoli))}, nil
}

// closedCleanly reports whether the file is as a clean close left it.
func closedCleanly(path string) bool {
	data, err := os.ReadFile(path + markerSuffix)
	if err != nil {
		return false
	}
	var left marker
	if err := json.Unmarshal(data, &left); err != nil {
		return false
	}
	now, err := markerOf(path)
	return err == nil && now == left
}

// markClean leaves the marker of a clean close.
func markClean(path string) error {
	m, err := markerOf(path)
	if err != nil {
		return fmt.Errorf("mark data file %s as closed cleanly: %w", path, err)
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+markerSuffix, data, 0o600); err != nil {
		return fmt.Errorf("mark data file %s as closed cleanly: %w", path, err)
	}
	return nil
}
