package engine

import (
	"testing"
	"time"
)

// FuzzPageToken reads page tokens and eviction ids, which come from outside: what
// is taken is what the service would give out.
func FuzzPageToken(f *testing.F) {
	f.Add(listCursor{time.Unix(1_800_000_000, 5).UTC(), "east", 7}.String())
	f.Add("")
	f.Add("east/7")
	f.Add("east/18446744073709551615")
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := parseListCursor(s); err == nil {
			again, err := parseListCursor(c.String())
			if err != nil || again.compare(c) != 0 {
				t.Errorf("%+v is read back as %+v, %v", c, again, err)
			}
		}
		if cluster, seq, err := ParseEvictionID(s); err == nil {
			c, n, err := ParseEvictionID(EvictionID(cluster, seq))
			if err != nil || c != cluster || n != seq {
				t.Errorf("%q is read back as %q, %d, %v", s, c, n, err)
			}
		}
	})
}
