package server

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/diskroom"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// backupPart is how many bytes of a backup one message has.
const backupPart = 256 << 10

// BackupStore implements the RPC. The copy is made in a file first: a peer that
// reads slowly must not hold a transaction of the store.
func (s *adminService) BackupStore(_ *reprievev1.BackupStoreRequest, stream grpc.ServerStreamingServer[reprievev1.BackupStoreResponse]) error {
	ctx := stream.Context()
	select {
	case s.backups <- struct{}{}:
		defer func() { <-s.backups }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f, err := s.copyStore(ctx)
	if err != nil {
		return err
	}
	defer f.Close()
	return sendFile(f, stream.Send)
}

// copyStore makes a copy of the store in a file without a name.
func (s *adminService) copyStore(ctx context.Context) (*os.File, error) {
	info, err := os.Stat(filepath.Join(s.dataDir, dataFile))
	if err != nil {
		return nil, fmt.Errorf("%w: the store has no file", engine.ErrNoBackup)
	}
	// The copy must not take the room that commits need.
	if free, known := diskroom.Free(s.dataDir); known && free < 2*uint64(info.Size()) {
		return nil, fmt.Errorf("%w: it needs %d bytes of room in the data folder, there are %d", engine.ErrNoBackup, 2*info.Size(), free)
	}
	f, err := os.CreateTemp(s.dataDir, "backup-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrNoBackup, err)
	}
	// Without a name it goes with the process, whatever ends that.
	err = os.Remove(f.Name())
	if err == nil {
		err = s.engine.Snapshot(ctx, f)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sendFile sends what is in a file, and then its size and checksum.
func sendFile(f io.Reader, send func(*reprievev1.BackupStoreResponse) error) error {
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	size := uint64(0)
	for {
		part := make([]byte, backupPart)
		n, err := io.ReadFull(f, part)
		if n > 0 {
			_, _ = sum.Write(part[:n])
			size += uint64(n)
			if err := send(&reprievev1.BackupStoreResponse{Part: &reprievev1.BackupStoreResponse_Data{Data: part[:n]}}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return send(&reprievev1.BackupStoreResponse{Part: &reprievev1.BackupStoreResponse_End{End: &reprievev1.BackupEnd{SizeBytes: size, Crc32C: sum.Sum32()}}})
		case err != nil:
			return fmt.Errorf("read the copy of the data file: %w", err)
		}
	}
}
