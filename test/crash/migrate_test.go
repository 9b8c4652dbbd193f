//go:build crash

package crash

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/reprieve-dev/reprieve/internal/failpoint"
)

const (
	// rehearse gives the program one schema version more than it has.
	rehearse = "REPRIEVE_REHEARSE_MIGRATION=1"
	// migrations is how often the program is killed at each point of a migration.
	migrations = 10
)

// TestCrashInAMigration kills the service while it brings its data file to a newer schema: whichever point it comes to,
// the next start has all that was open, and the copy made before is a data file of the older program.
func TestCrashInAMigration(t *testing.T) {
	r := newRun(t, build(t, moduleRoot(t)), chosenSeed())
	db := filepath.Join(r.p.dir, "data", "reprieve.db")
	for _, point := range failpoint.Migration() {
		for range migrations {
			r.p.env = nil
			r.life()
			r.migrate(point, db)
			r.check("killed at " + point)
		}
	}
	t.Log(r.report())
}

// migrate kills the service at a point of its migration, looks at what it kept, and goes back to the older program by
// the copy.
func (r *run) migrate(point, db string) {
	r.t.Helper()
	r.p.shift(0)
	r.p.env = []string{rehearse}
	l := r.p.start(point, 1, 0)
	if !l.wait(startWithin) {
		l.kill()
		r.t.Fatalf("the service did not come to %s", point)
	}
	r.met[point]++
	r.look()
	r.p.env = nil
	r.refused()
	copied, err := os.ReadFile(db + ".schema-2")
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(db, copied, 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.look()
}

// look starts the service and judges what is open, before anyone feeds it.
func (r *run) look() {
	r.t.Helper()
	l := r.p.start("", 0, 0)
	defer l.kill()
	if err := r.p.ready(l); err != nil {
		r.t.Fatal(err)
	}
	r.j.recovered(r.t.Context(), l)
}

// refused has the older program look at the migrated file: it says what to do and leaves the file alone.
func (r *run) refused() {
	r.t.Helper()
	from, err := r.p.log.Seek(0, 1)
	if err != nil {
		r.t.Fatal(err)
	}
	l := r.p.start("", 0, 0)
	defer l.kill()
	if !l.wait(startWithin) {
		r.t.Fatal("an older program runs on a migrated file")
	}
	text, err := os.ReadFile(r.p.log.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	if text = text[min(from, int64(len(text))):]; !bytes.Contains(text, []byte("has schema version 3, supported is up to 2")) {
		r.t.Fatalf("an older program says of a migrated file: %s", text)
	}
}
