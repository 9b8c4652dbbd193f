package cli

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

// dataDir makes a data folder as a service with one cluster leaves it.
func dataDir(t *testing.T) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, dataFile)
	s, err := bolt.Open(t.Context(), bolt.Options{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	b := &engine.Batch{Revision: 7, Changes: []engine.Change{
		{Kind: engine.ChangePutCluster, Cluster: "east", Record: &engine.ClusterRecord{Name: "east", UID: "u"}},
		{Kind: engine.ChangePutNode, Cluster: "east", Node: &engine.NodeRecord{Cluster: "east", Name: "n1", UID: "n"}},
	}}
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

// wantRun runs a command and compares its exit code and a part of what it says.
func wantRun(t *testing.T, h *harness, code int, said string, args ...string) {
	t.Helper()
	got, out, errs := h.run(args...)
	if got != code || !strings.Contains(out+errs, said) {
		t.Errorf("%q: exit code %d, want %d with %q; output:\n%s%s", args, got, code, said, out, errs)
	}
}

// TestStore backs a file up, restores it into an empty folder and over another
// file, and compacts it.
func TestStore(t *testing.T) {
	h := newHarness(t)
	dir, file := dataDir(t)
	wantRun(t, h, exitOK, "clusters/east/nodes      1        0", "store", "check", "--data-dir", dir)
	wantRun(t, h, exitOK, `"revision": 7`, "store", "check", "-o", "json", file)
	wantRun(t, h, exitOK, "revision: 7", "store", "check", "-o", "yaml", file)
	backup := filepath.Join(t.TempDir(), "b.db")
	wantRun(t, h, exitOK, "checked", "store", "backup", "--data-dir", dir, backup)
	wantRun(t, h, exitFailure, "there already", "store", "backup", "--data-dir", dir, backup)
	wantRun(t, h, exitUsage, "--force", "store", "restore", "--data-dir", dir, backup)
	wantRun(t, h, exitOK, "what was there before", "store", "restore", "--force", "--data-dir", dir, backup)
	fresh := filepath.Join(t.TempDir(), "data")
	wantRun(t, h, exitOK, "restored", "store", "restore", "--data-dir", fresh, backup)
	wantRun(t, h, exitOK, "bytes became", "store", "compact", "--data-dir", fresh)
	wantRun(t, h, exitOK, "Nothing is damaged", "store", "check", "--data-dir", fresh)
}

// TestStoreInUse: nothing works on a file that a service has open.
func TestStoreInUse(t *testing.T) {
	h := newHarness(t)
	dir, file := dataDir(t)
	backup := filepath.Join(t.TempDir(), "b.db")
	wantRun(t, h, exitOK, "checked", "store", "backup", "--data-dir", dir, backup)
	s, err := bolt.Open(t.Context(), bolt.Options{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, args := range [][]string{{"check"}, {"backup", backup + "2"}, {"restore", "--force", backup}, {"compact"}} {
		wantRun(t, h, exitFailure, "stop the service first", append([]string{"store", "--data-dir", dir}, args...)...)
	}
}

// TestLiveBackup takes the copy from the service; half of one is none.
func TestLiveBackup(t *testing.T) {
	h := newHarness(t)
	_, file := dataDir(t)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	part := func(b []byte) *reprievev1.BackupStoreResponse {
		return &reprievev1.BackupStoreResponse{Part: &reprievev1.BackupStoreResponse_Data{Data: b}}
	}
	end := &reprievev1.BackupStoreResponse{Part: &reprievev1.BackupStoreResponse_End{End: &reprievev1.BackupEnd{
		SizeBytes: uint64(len(data)), Crc32C: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)),
	}}}
	data = data[:len(data):len(data)]
	half := len(data) / 2
	backup := filepath.Join(t.TempDir(), "b.db")
	h.fake.backup = []*reprievev1.BackupStoreResponse{part(data[:half])}
	wantRun(t, h, exitFailure, "before it was complete", "store", "backup", "--live", backup)
	h.fake.backup = []*reprievev1.BackupStoreResponse{part(data[:half]), end}
	wantRun(t, h, exitFailure, "came damaged", "store", "backup", "--live", backup)
	if _, err := os.Stat(backup); !os.IsNotExist(err) {
		t.Errorf("half a copy has the name of a backup: %v", err)
	}
	h.fake.backup = nil
	for at := 0; at < len(data); at += 1 << 20 {
		h.fake.backup = append(h.fake.backup, part(data[at:min(at+1<<20, len(data))]))
	}
	h.fake.backup = append(h.fake.backup, end)
	wantRun(t, h, exitOK, "checked", "store", "backup", "--live", backup)
	wantRun(t, h, exitOK, "clusters/east/nodes      1        0", "store", "check", backup)
}

// TestStoreMissing: the way out of a file that is not there depends on who named it.
func TestStoreMissing(t *testing.T) {
	h := newHarness(t)
	none := filepath.Join(t.TempDir(), "none")
	wantRun(t, h, exitFailure, "--data-dir names", "store", "check", "--data-dir", none)
	wantRun(t, h, exitFailure, "--data-dir names", "store", "backup", "--data-dir", none, none+".db")
	wantRun(t, h, exitFailure, "--data-dir names", "store", "compact", "--data-dir", none)
	wantRun(t, h, exitFailure, "no such file or directory\n", "store", "check", none)
	wantRun(t, h, exitUsage, "say what", "store")
	wantRun(t, h, exitUsage, "unknown command", "store", "chekc")
}

// TestStoreDamaged: damage is said with exit code 1, and is neither restored nor compacted.
func TestStoreDamaged(t *testing.T) {
	h := newHarness(t)
	dir, file := dataDir(t)
	if err := os.WriteFile(file, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	wantRun(t, h, exitFailure, "Restore a backup", "store", "check", "--data-dir", dir)
	wantRun(t, h, exitFailure, "damaged", "store", "compact", "--data-dir", dir)
	empty := filepath.Join(t.TempDir(), "data")
	wantRun(t, h, exitFailure, "damaged", "store", "restore", "--data-dir", empty, file)
	if _, err := os.Stat(empty); !os.IsNotExist(err) {
		t.Errorf("a damaged backup was restored: %v", err)
	}
}
