package bolt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// compactBatch is how many bytes of records one transaction of a compaction writes.
const compactBatch = 16 << 20

// WriteSnapshot writes a copy of the file as it is now, a data file itself, and
// returns its size in bytes. Commits go on meanwhile, but the room of what they
// replace is not used again until it ends, so w should be fast: a file, not a peer.
func (s *Store) WriteSnapshot(ctx context.Context, w io.Writer) (int64, error) {
	var n int64
	err := s.view(func(tx *bbolt.Tx) (err error) {
		n, err = tx.WriteTo(&cancelled{ctx: ctx, w: w})
		return err
	})
	if err != nil {
		return n, fmt.Errorf("copy data file %s: %w", s.path, err)
	}
	return n, nil
}

// cancelled is a writer that ends with its context.
type cancelled struct {
	ctx context.Context
	w   io.Writer
}

// Write implements [io.Writer].
func (c *cancelled) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.w.Write(p)
}

// WriteFile makes a file of what write gives it: under another name first, synced,
// and then under its own, so that there is never half a file. The file must not
// be there yet.
func WriteFile(path string, write func(io.Writer) error) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("write %s: it is there already; name another file", path)
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(part))
	}
	return syncFolder(filepath.Dir(path))
}

// Backup copies a data file that no process has open to a file that is not there
// yet, and returns the copy's size in bytes.
func Backup(ctx context.Context, path, to string) (size int64, err error) {
	err = offline(path, true, func(s *Store) error {
		return WriteFile(to, func(w io.Writer) (err error) {
			size, err = s.WriteSnapshot(ctx, w)
			return err
		})
	})
	return size, err
}

// offline opens a data file that is there and lends it to f.
func offline(path string, readOnly bool, f func(*Store) error) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("open data file: %w", err)
	}
	o := Options{Path: path, LockTimeout: DefaultLockTimeout, steps: steps()}
	if err := inspect(o, info.Size()); err != nil {
		return err
	}
	db, err := openFile(o, info.Size(), readOnly)
	if err != nil {
		return err
	}
	return errors.Join(f(&Store{path: path, db: db, damaged: func(string, error) {}}), db.Close())
}

// Compact writes a data file that no process has open anew without the room that
// removed records left, and puts the new one in its place at once. It returns
// the sizes in bytes. The old file is locked until then, so no service starts on it.
func Compact(ctx context.Context, path string) (before, after int64, err error) {
	err = offline(path, false, func(s *Store) error {
		before = s.Size()
		part := path + ".compact"
		if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("compact data file %s: %w", path, err)
		}
		err := compactTo(ctx, s, part)
		if err == nil {
			err = giveTo(part, path)
		}
		if err == nil {
			err = os.Rename(part, path)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("compact data file %s: %w", path, err), removeAny(part))
		}
		after = s.Size()
		return syncFolder(filepath.Dir(path))
	})
	return before, after, err
}

func compactTo(ctx context.Context, s *Store, part string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// NoSync until the end: nobody reads it before that.
	dst, err := bbolt.Open(part, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoSync: true})
	if err != nil {
		return err
	}
	err = guard(s.path, func() error { return bbolt.Compact(dst, s.db, compactBatch) })
	return errors.Join(err, dst.Sync(), dst.Close())
}

// removeAny removes a file that may not be there.
func removeAny(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Restore makes a copy of a backup the data file at path. A data file that is
// there is kept under the name keep; without one it is refused. The new file is
// the old one's owner's, or the folder's. The backup should have been checked.
func Restore(ctx context.Context, backup, path, keep string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("restore data file %s: %w", path, err)
	}
	_, err := os.Lstat(path)
	there := err == nil
	if there && keep == "" {
		return fmt.Errorf("restore data file %s: it is there already", path)
	}
	fresh := path + ".restore"
	if err := removeAny(fresh); err != nil {
		return fmt.Errorf("restore data file %s: %w", path, err)
	}
	if err := WriteFile(fresh, func(w io.Writer) error { return copyFile(ctx, w, backup) }); err != nil {
		return fmt.Errorf("restore data file %s: %w", path, err)
	}
	owner := filepath.Dir(path)
	if there {
		owner = path
	}
	err = giveTo(fresh, owner)
	if err == nil && there {
		err = unused(path)
	}
	if err == nil && there {
		err = keepAs(path, keep)
	}
	if err != nil {
		return errors.Join(err, removeAny(fresh))
	}
	if err := errors.Join(os.Rename(fresh, path), removeAny(path+markerSuffix)); err != nil {
		return fmt.Errorf("restore data file %s: %w", path, err)
	}
	return syncFolder(filepath.Dir(path))
}

// keepAs gives a file a second name, so that there is never none under the first:
// a service would begin anew. Where the file system knows no links it is renamed.
func keepAs(path, keep string) error {
	if err := os.Link(path, keep); err == nil {
		return syncFolder(filepath.Dir(path))
	}
	return setAside(path, keep)
}

func copyFile(ctx context.Context, w io.Writer, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(&cancelled{ctx: ctx, w: w}, f)
	return err
}
