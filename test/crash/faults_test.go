//go:build crash

package crash

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// enough is how many kills may pass before a planted fault is found.
const enough = 120

// edit replaces what stands once in a file.
type edit struct{ file, old, new string }

const (
	machine, restore = "engine/health/machine.go", "engine/health/want.go"
	owner, orders    = "engine/healthowner.go", "engine/healthorder.go"
)

// planted are the faults that TestPlantedFaultsAreFound plants, plantedInNodes those of TestPlantedFaultsAreFoundInNodes.
var planted = map[string][]edit{
	"an order before its commit": {{"engine/shard_life.go",
		"session: p.link.session, cluster: sc.name})\n\ts.put(sc, e)\n", "session: p.link.session, cluster: sc.name})\n\ts.hand(sc, e)\n\ts.put(sc, e)\n"}},
	"a lost reschedule": {{"engine/shard_life.go",
		"sc.set(e, StateWaiting, HoldNone, time.Time{})\n\t}\n\ts.put(sc, e)\n", "sc.set(e, StateWaiting, HoldNone, time.Time{})\n\t}\n\ts.arm(sc, e)\n"}},
	"a token that is not checked": {{"engine/executor.go",
		"\tref, ok := d.live[token]\n\treturn ref, ok\n",
		"\tref, ok := d.live[token]\n\tfor other := range d.live {\n\t\tif !ok {\n\t\t\tref, ok = d.live[other], true\n\t\t\tref.ev.rest.delivery.Token = token\n\t\t}\n\t}\n\treturn ref, ok\n"}},
	"a hold that is skipped after a restart": {{"engine/shard_life.go",
		"\tcase !c.live || !c.released:\n", "\tcase !c.live && !c.released && now.IsZero():\n"}},
	"the wall clock read while running": {{"internal/clock/real.go",
		"\treturn c.start.Add(c.boot() - c.boot0)\n", "\treturn c.wall().Round(0).UTC()\n"}},
}

var plantedInNodes = map[string][]edit{
	"an owed update that a restart forgets": {{restore, "podsPending: r.PodsPending,\n", "\n"}},
	"a restart that is taken for silence": {{machine, "m.doubtSilence()\n\t\tm.amnesty()\n",
		"m.doubtSilence()\n\t\tm.amnesty()\n\t\tfor n := m.heard.first; n != nil; n = n.next {\n\t\t\tn.heard = n.heard.Add(-m.figures.Grace)\n\t\t}\n"}},
	"an order before its commit": {{orders, "\th.storeThen(n, func() {", "\th.saved(n)\n\th.storeThen(n, func() {"}},
	"a taint that a restart strips": {
		{restore, "queuedAt: r.QueuedAt, grantedAt: r.GrantedAt, podsPending", "queuedAt: r.QueuedAt, podsPending"},
		{machine, "m.disruptedSince.IsZero():\n\t\tn.grantedAt", "m.disruptedSince.IsZero() && m.blindSince.IsZero():\n\t\tn.grantedAt"},
	},
	"an order that a restart forgets": {
		{owner, "delivery: r.Delivery, sent: true", "sent: true"},
		{owner, "\tif r.Delivery != nil {", "\tif r.Delivery != nil && n.delivery != nil {"},
	},
}

// TestPlantedFaultsFit notices that the code has changed where a fault is to be planted, without waiting for a kill.
func TestPlantedFaultsFit(t *testing.T) {
	t.Parallel()
	root := moduleRoot(t)
	for _, faults := range []map[string][]edit{planted, plantedInNodes} {
		for name, edits := range faults {
			for _, e := range edits {
				if _, err := e.apply(root); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// TestPlantedFaultsAreFound plants faults into copies of the source, one each, and has the same harness find them.
func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	for name, edits := range planted {
		t.Run(name, func(t *testing.T) {
			root := copyModule(t)
			plant(t, root, edits)
			r := newRun(t, build(t, root), chosenSeed())
			for n := range enough {
				r.life()
				if found := r.j.found(); len(found) > 0 {
					t.Logf("found after %d kills: %s", n+1, found[0])
					return
				}
			}
			t.Errorf("not found in %d kills", enough)
		})
	}
}

// TestPlantedFaultsAreFoundInNodes does the same to the health of nodes.
func TestPlantedFaultsAreFoundInNodes(t *testing.T) {
	t.Parallel()
	for name, edits := range plantedInNodes {
		t.Run(name, func(t *testing.T) {
			root := copyModule(t)
			plant(t, root, edits)
			r := newNodeRun(t, build(t, root), chosenSeed())
			for n := range enough {
				if found := r.turn(n); len(found) > 0 {
					t.Logf("found after %d kills: %s", n+1, found[0])
					return
				}
			}
			t.Errorf("not found in %d kills", enough)
		})
	}
}

// copyModule copies what the service is built from.
func copyModule(t *testing.T) string {
	t.Helper()
	root, to := moduleRoot(t), t.TempDir()
	list := exec.Command("git", "ls-files", "--", "*.go", "go.mod", "go.sum", ":!test/")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) {
			continue // removed and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func plant(t *testing.T, root string, edits []edit) {
	t.Helper()
	for _, e := range edits {
		text, err := e.apply(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, e.file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// apply returns the file as it is to be.
func (e *edit) apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, e.file))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(e.old)); n != 1 {
		return nil, fmt.Errorf("%s has changed, the fault is to be fitted anew: %q is there %d times", e.file, e.old, n)
	}
	return bytes.Replace(text, []byte(e.old), []byte(e.new), 1), nil
}
