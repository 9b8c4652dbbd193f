package history

import "testing"

// FuzzCursor reads cursors, which come from outside: only what was given out is taken.
func FuzzCursor(f *testing.F) {
	f.Add(Cursor(Position{ClosedAt: 1_800_000_000_000_000_005, Seq: 7}))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := parseCursor(s); err == nil && Cursor(p) != s {
			t.Errorf("%q is read as %+v, whose cursor is %q", s, p, Cursor(p))
		}
	})
}
