package cli

import (
	"encoding/json"
	"testing"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

func TestAssignRawTakesAnEmptyList(t *testing.T) {
	p := &reprievev1.ClusterPolicy{IgnoredTaintKeys: []string{"x"}}
	fd := p.ProtoReflect().Descriptor().Fields().ByName("ignored_taint_keys")
	if err := assignRaw(p, fd, json.RawMessage(`[]`)); err != nil || len(p.GetIgnoredTaintKeys()) != 0 {
		t.Fatalf("empty list: %v, %v", p.GetIgnoredTaintKeys(), err)
	}
	if err := assignRaw(p, fd, json.RawMessage(`["y"]`)); err != nil || len(p.GetIgnoredTaintKeys()) != 1 {
		t.Fatalf("one key: %v, %v", p.GetIgnoredTaintKeys(), err)
	}
}
