package timeline_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/client/timeline"
)

// merging runs Merge over pipes inside a synctest bubble, on its virtual time.
type merging struct {
	t       *testing.T
	writers []*io.PipeWriter
	cancel  context.CancelFunc
	// slow, if set, is how long emit takes.
	slow time.Duration

	mu   sync.Mutex // guards what follows
	got  []string
	over bool
	err  error
}

func merge(t *testing.T, inputs int) *merging {
	m := &merging{t: t}
	var list []timeline.Input
	for i := range inputs {
		pr, pw := io.Pipe()
		m.writers = append(m.writers, pw)
		list = append(list, timeline.Input{Name: string(rune('a' + i)), R: pr})
	}
	ctx, cancel := context.WithCancel(t.Context())
	m.cancel = cancel
	o := timeline.MergeOptions{AfterFunc: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }}
	go func() {
		err := timeline.Merge(ctx, list, o, func(e timeline.Entry) error {
			m.add(words([]timeline.Entry{e})[0])
			if m.slow > 0 {
				time.Sleep(m.slow)
			}
			return nil
		}, func() error {
			m.add("synced")
			return nil
		})
		m.mu.Lock()
		defer m.mu.Unlock()
		m.over, m.err = true, err
	}()
	return m
}

func (m *merging) add(s string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got = append(m.got, s)
}

// write writes to one input and waits until all is still.
func (m *merging) write(i int, s string) {
	m.t.Helper()
	if _, err := io.WriteString(m.writers[i], s); err != nil {
		m.t.Fatal(err)
	}
	synctest.Wait()
}

func (m *merging) close() {
	for _, w := range m.writers {
		_ = w.Close()
	}
	synctest.Wait()
}

// want checks what was handed out since the last call.
func (m *merging) want(s ...string) {
	m.t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := cmp.Diff(s, m.got); d != "" {
		m.t.Fatalf("handed out (-want +got):\n%s", d)
	}
	m.got = nil
}

const (
	addNode    = `{"type":"ADDED","object":` + nodeJSON + `}`
	changeNode = `{"type":"MODIFIED","object":` + nodeJSON + `}`
	addPod     = `{"type":"ADDED","object":` + podJSON + `}`
	deletePod  = `{"type":"DELETED","object":` + podJSON + `}`
	renewal    = `{"type":"MODIFIED","object":{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n1","namespace":"kube-node-lease"},"spec":{"renewTime":"2026-01-01T00:00:00Z"}}}`
)

func TestMergeIsSyncedAtTheFirstChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := merge(t, 2)
		m.write(0, addNode+changeNode+renewal)
		m.want("ADDED n1", "MODIFIED") // The change is not of the list, which the pods still lack.
		m.write(1, addPod)
		m.want("ADDED default/p")
		m.write(1, deletePod)
		m.want("synced", "MODIFIED n1", "DELETED default/p")
		m.write(0, changeNode)
		m.want("MODIFIED n1")
		m.close()
		m.want()
		if !m.over || m.err != nil {
			t.Fatalf("over %v, %v", m.over, m.err)
		}
	})
}

func TestMergeIsSyncedAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := merge(t, 2)
		m.write(0, addNode)
		time.Sleep(1500 * time.Millisecond)
		m.write(1, addPod)
		m.want("ADDED n1", "ADDED default/p")
		time.Sleep(600 * time.Millisecond) // The nodes are silent for 2.1 s, the pods for 0.6 s.
		m.write(1, addPod)
		m.want("ADDED default/p")
		time.Sleep(1999 * time.Millisecond)
		m.want()
		time.Sleep(time.Millisecond)
		m.want("synced")
		m.write(1, addPod) // Once.
		time.Sleep(time.Minute)
		m.want("ADDED default/p")
		m.close()
	})
}

// TestMergeHoldsALongInput: what an input has to say after its list waits for the
// others, and is not read on beyond a bound.
func TestMergeHoldsALongInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const changes = 10_100
		m := merge(t, 2)
		var written int
		go func() {
			_, _ = io.WriteString(m.writers[0], addNode)
			for range changes {
				if _, err := io.WriteString(m.writers[0], changeNode); err != nil {
					return
				}
				written++
			}
		}()
		m.want("ADDED n1")
		if written < 10_000 || written == changes {
			t.Errorf("%d of %d changes were read before the other list is whole", written, changes)
		}
		m.write(1, addPod)
		_ = m.writers[1].Close()
		m.want(slices.Concat([]string{"ADDED default/p", "synced"}, slices.Repeat([]string{"MODIFIED n1"}, changes))...)
		m.close()
	})
}

// TestMergeWaitsForTheFirstWord: while nobody has shown anything, silence means
// nothing; then an input without objects has 2 s to show one.
func TestMergeWaitsForTheFirstWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := merge(t, 2)
		time.Sleep(time.Hour)
		m.want()
		m.write(0, addNode+changeNode)
		m.want("ADDED n1")
		time.Sleep(1999 * time.Millisecond)
		m.want()
		time.Sleep(time.Millisecond)
		m.want("synced", "MODIFIED n1")
		m.close()
	})
}

// TestMergeSlowReaderIsNoSilence: entries that wait to be handed out are not silence.
func TestMergeSlowReaderIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := merge(t, 2)
		m.slow = 5 * time.Second
		for i, s := range []string{strings.Repeat(addNode, 3), strings.Repeat(addPod, 3)} {
			go func() { _, _ = io.WriteString(m.writers[i], s) }()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(m.got) != 7 || m.got[6] != "synced" {
			t.Fatalf("handed out %q, want six objects, then synced", m.got)
		}
		m.close()
	})
}

func TestMergeIsSyncedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := merge(t, 2)
		m.write(0, `{"kind":"List","items":[`+nodeJSON+`]}`)
		m.write(1, `{"kind":"PodList","items":[]}`)
		m.want("ADDED n1")
		_ = m.writers[0].Close()
		m.want()
		_ = m.writers[1].Close()
		m.want("synced")
		if !m.over || m.err != nil {
			t.Fatalf("over %v, %v", m.over, m.err)
		}
	})
}

func TestMergeCanBeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := merge(t, 2)
		m.write(0, addNode)
		m.cancel()
		m.want("ADDED n1")
		if !m.over || !errors.Is(m.err, context.Canceled) {
			t.Fatalf("over %v, %v", m.over, m.err)
		}
		m.close()
	})
}

func TestMergeErrors(t *testing.T) {
	in := func(s ...string) []timeline.Input {
		var out []timeline.Input
		for i, x := range s {
			out = append(out, timeline.Input{Name: string(rune('a' + i)), R: strings.NewReader(x)})
		}
		return out
	}
	full := errors.New("full")
	ok := func() error { return nil }
	take := func(timeline.Entry) error { return nil }
	for _, tc := range []struct {
		inputs []timeline.Input
		emit   func(timeline.Entry) error
		synced func() error
		want   string
	}{
		{nil, take, ok, "nothing to read"},
		{in(addNode, "<html>"), take, ok, "b:1: this is HTML or XML, not Kubernetes objects"},
		{in(addPod, strings.Replace(addPod, `"p"`, `"q"`, 1)), take, ok, "UID u-p is Pod default/"},
		{in(addNode), func(timeline.Entry) error { return full }, ok, "full"},
		{in(addNode), take, func() error { return full }, "end of the list: full"},
	} {
		err := timeline.Merge(t.Context(), tc.inputs, timeline.MergeOptions{}, tc.emit, tc.synced)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got %v, want %s", err, tc.want)
		}
	}
}

// TestMergeWarnsOneAtATime: a warning function need not be safe for concurrent use.
func TestMergeWarnsOneAtATime(t *testing.T) {
	var warnings []string
	o := timeline.MergeOptions{Options: timeline.Options{MissingUID: timeline.DeriveMissingUID, Warn: func(w timeline.Warning) { warnings = append(warnings, w.Text) }}}
	var inputs []timeline.Input
	for _, n := range []string{"a", "b", "c", "d"} {
		inputs = append(inputs, timeline.Input{Name: n, R: strings.NewReader(`{"kind":"Node","metadata":{"name":"` + n + `"}}`)})
	}
	if err := timeline.Merge(t.Context(), inputs, o, func(timeline.Entry) error { return nil }, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(warnings)
	if len(warnings) != 4 || warnings[0] != "Node a has no metadata.uid; using derived-node-a" {
		t.Fatalf("warnings %q", warnings)
	}
}
