package bolt_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/store/bolt"
)

// A file whose disk was full is not opened before there is the room asked for.
func TestRoomAfterAFullDisk(t *testing.T) {
	path := newFile(t)
	s, err := bolt.Open(t.Context(), bolt.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = bolt.Open(t.Context(), bolt.Options{Path: path, Room: 1 << 62})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "make room") {
		t.Fatalf("open without the room: %v", err)
	}
	if s, err = bolt.Open(t.Context(), bolt.Options{Path: path, Room: 1}); err != nil {
		t.Fatalf("open with room: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
