package cli

import (
	"testing"

	reprievev1 "github.com/reprieve-dev/reprieve/proto/reprieve/v1"
)

// FuzzPolicy reads policies as `policy set -f` does: each field that is taken is one of the policy's.
func FuzzPolicy(f *testing.F) {
	for _, s := range []string{
		"mode: enforce\nrate: {per_second: 5, burst: 2}\nbudget_wait: 10m\n", `{"mode": "MODE_SHADOW", "excluded_namespaces": ["a", "b"]}`,
		"ignored_taint_keys: []\n", "default_not_ready_toleration: -1s\n", "mode: {a: 1}\n", "- 1\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		paths, err := parsePolicy(data, &reprievev1.ClusterPolicy{})
		if err != nil {
			return
		}
		for _, p := range paths {
			if _, err := policyField(p); err != nil {
				t.Errorf("%q was taken: %v", p, err)
			}
		}
	})
}
