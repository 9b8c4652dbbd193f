package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
	"go.etcd.io/bbolt"
)

// step brings the tree from one schema version to the next. It runs in the
// transaction that stamps the new version, and keeps no state of its own: after
// a failure it is run again on the file as it was.
type step func(tx *bbolt.Tx) error

// steps are the way from the first version to this program's: the first leads from 1 to 2.
// What an older program would misread needs a step, and a file of the new version
// among those of testdata. A field or a bucket that it leaves alone does not.
func steps() []step { return slices.Concat([]step{shortEvictions}, rehearsal()) }

// shortEvictions leads to version 2, which writes the instants and UIDs of an
// eviction in less room. It changes nothing: what version 1 wrote is read as it is,
// for as long as it stays; but a program of version 1 would take what is written
// from here on for damaged.
func shortEvictions(*bbolt.Tx) error { return nil }

// newest is the schema version that the steps end at.
func newest(list []step) uint32 { return 1 + uint32(len(list)) }

// backupName is what a copy of the file before its migration is called.
func backupName(path string, version uint32) string {
	return fmt.Sprintf("%s.schema-%d", path, version)
}

// migrate brings a file of an older version to this program's: a copy of it
// first, whole and synced, then all steps and the stamp in one transaction. Until
// that is on disk the file is of the old version; a start after a kill begins anew.
func (s *Store) migrate(o *Options, from uint32) error {
	to, backup := newest(o.steps), backupName(s.path, from)
	err := s.copyTo(backup)
	if err == nil {
		failpoint.Hit(failpoint.MigrateBefore)
		err = s.update("write", func(tx *bbolt.Tx) error { return runSteps(tx, o.steps, from) })
	}
	if err != nil {
		if isDamage(err) {
			// A step that failed, whatever on, is no reason to set the file aside.
			err = errors.New(err.Error())
		}
		return fmt.Errorf("migrate data file %s from schema version %d to %d, which has not changed it (go back to the version of the program that wrote it, or make room, and start again): %w",
			s.path, from, to, err)
	}
	failpoint.Hit(failpoint.MigrateAfter)
	if o.Migrated != nil {
		o.Migrated(from, to, backup)
	}
	return nil
}

// copyTo makes a copy of the file, in the place of one that an earlier attempt left.
func (s *Store) copyTo(backup string) error {
	if err := removeAny(backup); err != nil {
		return err
	}
	return WriteFile(backup, func(w io.Writer) error {
		_, err := s.WriteSnapshot(context.Background(), w)
		return err
	})
}

func runSteps(tx *bbolt.Tx, steps []step, from uint32) error {
	for v := from; v < newest(steps); v++ {
		if err := runStep(tx, steps[v-1]); err != nil {
			return fmt.Errorf("step from version %d: %w", v, err)
		}
		failpoint.Hit(failpoint.MigrateWithin)
	}
	return stamp(tx, newest(steps))
}

// runStep turns a step's panic into an error.
func runStep(tx *bbolt.Tx, step step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return step(tx)
}

// stamp writes the schema version.
func stamp(tx *bbolt.Tx, version uint32) error {
	return tx.Bucket(bucketMeta).Put(keySchemaVersion, binary.BigEndian.AppendUint32(nil, version))
}
