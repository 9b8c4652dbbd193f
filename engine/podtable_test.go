package engine

import (
	"fmt"
	"testing"
	"unique"

	"pgregory.net/rapid"
)

// TestPodTable holds the table against two maps. Its hashes are so short that
// most pods share theirs with another.
func TestPodTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newPodTable()
		x.uids.hash = func(uid string) uint32 { return uint32(uid[0] % 4) }
		x.names.hash = func(n podName) uint32 { return uint32((n.namespace[0] + n.name[0]) % 4) }
		uids, names := map[string]*pod{}, map[podName]*pod{}
		uid, text := rapid.IntRange(0, 9), rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			u := fmt.Sprint(uid.Draw(t, "uid"))
			if p := uids[u]; p != nil {
				x.remove(p)
				x.remove(&pod{uid: u, namespace: p.namespace, name: p.name})
				delete(uids, u)
				if names[p.fullName()] == p {
					delete(names, p.fullName())
				}
			} else {
				p := &pod{uid: u, namespace: unique.Make(text.Draw(t, "namespace")), name: text.Draw(t, "name")}
				x.add(p)
				uids[u], names[p.fullName()] = p, p
			}
			checkPodTable(t, x, uids, names)
		}
	})
}

func checkPodTable(t *rapid.T, x *podTable, uids map[string]*pod, names map[podName]*pod) {
	if x.len() != len(uids) {
		t.Fatalf("%d pods, want %d", x.len(), len(uids))
	}
	for i := range 10 {
		if u := fmt.Sprint(i); x.byUID(u) != uids[u] {
			t.Fatalf("UID %s is of %v, want %v", u, x.byUID(u), uids[u])
		}
	}
	for _, ns := range []string{"a", "b", "c", "d"} {
		for _, name := range []string{"a", "b", "c", "d"} {
			if n := (podName{ns, name}); x.byName(ns, name) != names[n] {
				t.Fatalf("%v is %v, want %v", n, x.byName(ns, name), names[n])
			}
		}
	}
}
