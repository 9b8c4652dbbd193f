package cli

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/engine"
	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
	"github.com/reprieve-dev/reprieve/store/bolt"
)

// storeFlags are those of `reprieve store`.
type storeFlags struct {
	dataDir string
	force   bool
	live    bool
}

// dataFile is the name of the service's data file in its folder.
const dataFile = "reprieve.db"

func (f *storeFlags) path() string { return filepath.Join(f.dataDir, dataFile) }

func newStore(a *app) *cobra.Command {
	f := &storeFlags{}
	cmd := &cobra.Command{
		Use:   "store COMMAND",
		Short: "Check, back up, restore and compact the service's data file",
		Long: `These commands work on the data file itself, on the machine that has it, while the
service is stopped; backup --live asks the running service.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("say what: store check, store backup, store restore or store compact")
		},
	}
	cmd.PersistentFlags().StringVar(&f.dataDir, "data-dir", "./data", "the service's data folder")
	cmd.AddCommand(newStoreCheck(a, f), newStoreBackup(a, f), newStoreRestore(a, f), newStoreCompact(a, f))
	return cmd
}

func newStoreCheck(a *app, f *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read all of a data file and say what is in it and what is damaged",
		Long: `It runs bbolt's check of the file's pages and decodes every record, in a process of
its own, since some damage ends the process that meets it. FILE is a data file or a
backup; without it the one of --data-dir is checked. Exit code 1: something is damaged.`,
		Example: "  reprieve store check --data-dir /var/lib/reprieve\n  reprieve store check backup.db",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := f.path()
			if len(args) > 0 {
				path = args[0]
			}
			r, err := a.CheckStore(cmd.Context(), path)
			if err != nil {
				return f.wayOut(err)
			}
			if err := a.printReport(r); err != nil {
				return err
			}
			if r.Damaged() {
				return &silentError{code: exitFailure}
			}
			return nil
		},
	}
}

// wayOut says what to do about a data file that the service has open, or that is
// not there.
func (f *storeFlags) wayOut(err error) error {
	var missing *fs.PathError
	switch {
	case errors.Is(err, engine.ErrStoreLocked):
		return &hintError{err: err, hint: "stop the service first"}
	case errors.Is(err, fs.ErrNotExist) && errors.As(err, &missing) && missing.Path == f.path():
		return &hintError{err: err, hint: "--data-dir names the service's data folder"}
	}
	return err
}

func (a *app) printReport(r *bolt.Report) error {
	if a.flags.output != outputTable {
		return a.printValue(r)
	}
	out := a.Out
	fmt.Fprintf(out, "%s: %d bytes, %d of them free; schema version %d, revision %d\n", r.Path, r.SizeBytes, r.FreeBytes, r.SchemaVersion, r.Revision)
	t := &table{columns: []column{{title: "BUCKET", min: 20}, {title: "RECORDS"}, {title: "DAMAGED"}}}
	for _, b := range r.Buckets {
		t.add(b.Bucket, fmt.Sprint(b.Records), fmt.Sprint(b.Damaged))
	}
	fmt.Fprint(out, t.render(a.columns()))
	for _, list := range [][]string{r.Pages, r.Records} {
		for _, d := range list {
			fmt.Fprintln(out, "damaged:", cleanText(d))
		}
	}
	switch {
	case r.BeyondHelp():
		fmt.Fprintln(out, "Pages are damaged: the service cannot start on this file. Restore a backup.")
	case r.Damaged():
		fmt.Fprintf(out, "%d records are damaged: the service sets them aside and serves the rest.\n", r.DamagedRecords)
	default:
		fmt.Fprintln(out, "Nothing is damaged.")
	}
	return nil
}

func newStoreBackup(a *app, f *storeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the data file",
		Long: `The copy is checked, and gets its name only when it is whole. FILE must not be there
yet. With --live the running service sends the copy, which needs the role operator for
all clusters; without it the service must be stopped.`,
		Example: "  reprieve store backup --live backup.db\n  reprieve store backup --data-dir /var/lib/reprieve backup.db",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.live {
				err = a.liveBackup(cmd.Context(), args[0])
			} else {
				_, err = bolt.Backup(cmd.Context(), f.path(), args[0])
			}
			if err != nil {
				return f.wayOut(err)
			}
			if err := a.sound(cmd.Context(), args[0]); err != nil {
				return err
			}
			info, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "%s: %d bytes, checked\n", args[0], info.Size())
			return nil
		},
	}
	cmd.Flags().BoolVar(&f.live, "live", false, "ask the running service for the copy")
	return cmd
}

// liveBackup writes what the service sends to a file.
func (a *app) liveBackup(ctx context.Context, to string) error {
	return a.admin(ctx, func(s *session) error {
		stream, err := s.admin.BackupStore(ctx, &reprievev1.BackupStoreRequest{})
		if err != nil {
			return err
		}
		return bolt.WriteFile(to, func(w io.Writer) error { return receiveBackup(stream.Recv, w) })
	})
}

// receiveBackup writes the parts of a copy and compares the whole with its end.
func receiveBackup(recv func() (*reprievev1.BackupStoreResponse, error), w io.Writer) error {
	sum, size := crc32.New(crc32.MakeTable(crc32.Castagnoli)), uint64(0)
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the service ended the copy before it was complete; try again")
		}
		if err != nil {
			return err
		}
		if end := m.GetEnd(); end != nil {
			if size != end.GetSizeBytes() || sum.Sum32() != end.GetCrc32C() {
				return fmt.Errorf("the copy came damaged: %d bytes of %d; try again", size, end.GetSizeBytes())
			}
			return nil
		}
		size += uint64(len(m.GetData()))
		if _, err := io.MultiWriter(w, sum).Write(m.GetData()); err != nil {
			return err
		}
	}
}

// sound is an error if a file is beyond help.
func (a *app) sound(ctx context.Context, path string) error {
	r, err := a.CheckStore(ctx, path)
	if err == nil && r.BeyondHelp() {
		err = fmt.Errorf("%s is damaged: %s", path, r.Pages[0])
	}
	return err
}

func newStoreRestore(a *app, f *storeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore BACKUP",
		Short: "Put a backup in the data file's place",
		Long: `The backup is checked first. A data folder that is not empty is refused without
--force; with it the data file that is there is kept as reprieve.db.before-TIME.

If the backup is older than the service's max_gap (24 h), the next list of each feed
is an adoption: every wait begins anew.`,
		Example: "  reprieve store restore --data-dir /var/lib/reprieve backup.db",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.restore(cmd.Context(), f, args[0])
		},
	}
	cmd.Flags().BoolVar(&f.force, "force", false, "restore into a folder that is not empty, and keep the data file that is there under another name")
	return cmd
}

func (a *app) restore(ctx context.Context, f *storeFlags, backup string) error {
	entries, err := os.ReadDir(f.dataDir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(entries) > 0 && !f.force:
		return usagef("%s is not empty; --force keeps its data file under another name and restores", f.dataDir)
	}
	if err := a.sound(ctx, backup); err != nil {
		return err
	}
	keep := ""
	if _, err := os.Lstat(f.path()); err == nil {
		keep = f.path() + ".before-" + a.Clock.Now().UTC().Format("20060102T150405Z")
	}
	if err := bolt.Restore(ctx, backup, f.path(), keep); err != nil {
		return f.wayOut(err)
	}
	fmt.Fprintf(a.Out, "%s: restored\n", f.path())
	if keep != "" {
		fmt.Fprintf(a.Out, "%s: what was there before\n", keep)
	}
	return nil
}

func newStoreCompact(a *app, f *storeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "compact",
		Short: "Give the room of removed records back to the disk",
		Long: `The data file is written anew and takes the old one's place at once. That needs room
for both.`,
		Example: "  reprieve store compact --data-dir /var/lib/reprieve",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.sound(cmd.Context(), f.path()); err != nil {
				return f.wayOut(err)
			}
			before, after, err := bolt.Compact(cmd.Context(), f.path())
			if err != nil {
				return f.wayOut(err)
			}
			fmt.Fprintf(a.Out, "%s: %d bytes became %d\n", f.path(), before, after)
			return nil
		},
	}
}

// checkInChild checks a data file in a process of its own, which is this program.
func checkInChild(ctx context.Context, path string) (*bolt.Report, error) {
	self, err := bolt.SelfCheck()
	if err != nil {
		return nil, err
	}
	return bolt.CheckInChild(ctx, self, path)
}
