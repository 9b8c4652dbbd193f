package record

import (
	"reflect"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/store/storetest"
)

// TestCopiesShareNothing compares each copy with its original and looks for memory of both.
func TestCopiesShareNothing(t *testing.T) {
	e, n, r, c := storetest.Eviction("a", 1), storetest.Node("a", "n"), storetest.Reprieve("a", "u"), storetest.Cluster("a")
	for name, pair := range map[string][2]any{
		"eviction": {e, Eviction(e)}, "node": {n, Node(n)}, "reprieve": {r, Reprieve(r)}, "cluster": {c, Cluster(c)},
	} {
		if diff := storetest.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-original +copy):\n%s", name, diff)
		}
		wantApart(t, name, reflect.ValueOf(pair[0]), reflect.ValueOf(pair[1]))
	}
}

func wantApart(t *testing.T, path string, a, b reflect.Value) {
	t.Helper()
	if a.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Slice:
		if a.IsNil() {
			return
		}
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", path)
		}
		if a.Kind() == reflect.Pointer {
			wantApart(t, path, a.Elem(), b.Elem())
			return
		}
		for i := range a.Len() {
			wantApart(t, path+"[]", a.Index(i), b.Index(i))
		}
	case reflect.Struct:
		for i := range a.NumField() {
			wantApart(t, path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	}
}

// TestEmptyListsAreNone: an empty list and none are stored alike.
func TestEmptyListsAreNone(t *testing.T) {
	if r := Eviction(&engine.EvictionRecord{Requests: []engine.Request{}}); r.Requests != nil {
		t.Error("an empty list of requests stays one")
	}
	if r := Node(&engine.NodeRecord{Taints: []engine.Taint{}}); r.Taints != nil {
		t.Error("an empty list of taints stays one")
	}
	c := Cluster(&engine.ClusterRecord{Policy: engine.PolicyPatch{
		Fields: engine.PolicyIgnoredTaintKeys, Policy: engine.Policy{IgnoredTaintKeys: []string{}},
	}})
	if c.Policy.IgnoredTaintKeys != nil || c.Policy.Fields != engine.PolicyIgnoredTaintKeys {
		t.Errorf("ignored keys set to nothing became %+v", c.Policy)
	}
}
