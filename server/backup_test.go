package server

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

// TestBackupStore takes a copy from a running service: a data file with what was
// acknowledged, and nothing left in the data folder.
func TestBackupStore(t *testing.T) {
	var dir string
	f := newFixture(t, boltFile, func(c *Config) { dir = c.DataDir })
	x := f.feed(f.ctx, hello("east"))
	x.recv()
	x.list(upsertNode("n1", "k"), upsertPod("p1", "n1", waits("k")))
	stream, err := f.admin().BackupStore(f.ctx, &reprievev1.BackupStoreRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var copied bytes.Buffer
	var end *reprievev1.BackupEnd
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if end != nil {
			t.Fatal("something came after the end")
		}
		copied.Write(m.GetData())
		end = m.GetEnd()
	}
	if sum := crc32.Checksum(copied.Bytes(), crc32.MakeTable(crc32.Castagnoli)); end.GetSizeBytes() != uint64(copied.Len()) || end.GetCrc32C() != sum {
		t.Fatalf("%d bytes with sum %d came, the end says %v", copied.Len(), sum, end)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, copied.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := bolt.Check(t.Context(), path)
	if err != nil || r.Damaged() {
		t.Fatalf("report %+v, error %v", r, err)
	}
	found := map[string]int{}
	for _, b := range r.Buckets {
		found[b.Bucket] = b.Records
	}
	if found["clusters/east/evictions"] != 1 || found["clusters/east/nodes"] != 1 {
		t.Errorf("the copy has %v", found)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "backup-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestBackupStoreIsForOperatorsOfAll: the file has the records of every cluster.
func TestBackupStoreIsForOperatorsOfAll(t *testing.T) {
	f := newFixture(t, memory(), withTokens(t, []tokenEntry{
		{Name: "all", Role: "operator", Clusters: []string{"*"}}, {Name: "east", Role: "operator", Clusters: []string{"east"}},
		{Name: "viewer", Role: "viewer", Clusters: []string{"*"}},
	}))
	ask := func(token string) error {
		stream, err := f.admin().BackupStore(f.as(token), &reprievev1.BackupStoreRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	wantError(t, ask("east"), codes.PermissionDenied, "PERMISSION_DENIED")
	wantError(t, ask("viewer"), codes.PermissionDenied, "PERMISSION_DENIED")
	// A store in memory has no file.
	wantError(t, ask("all"), codes.FailedPrecondition, "NO_BACKUP")
}
