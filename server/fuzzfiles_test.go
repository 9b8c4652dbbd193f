package server

import "testing"

// FuzzFiles reads the configuration and the tokens file.
func FuzzFiles(f *testing.F) {
	for _, s := range []string{
		"", "listen: 127.0.0.1:7443\nadopt: enforce\ndefaults: {rate: {per_second: 5, burst: 2}, default_not_ready_toleration: 5m}\nclusters: {east: {mode: shadow}}\n",
		"- {name: a, sha256: 0000000000000000000000000000000000000000000000000000000000000000, role: viewer, clusters: ['*']}\n",
		"a: &a [*a]\n", "--- 1\n--- 2\n", "feed_timeout: 9223372037s\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := DefaultConfig()
		_ = parseConfig(data, &c)
		tokens, err := parseTokens("tokens", data)
		if err != nil {
			return
		}
		for _, token := range tokens {
			if token.who == nil || len(token.who.grants) == 0 {
				t.Error("a token without a role was taken")
			}
		}
	})
}
