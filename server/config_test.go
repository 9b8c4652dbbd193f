package server

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/engine"
)

// settings returns the keys of a configuration with their values as text.
func settings(prefix string, v reflect.Value) map[string]string {
	out := map[string]string{}
	for i := range v.NumField() {
		key := prefix + v.Type().Field(i).Tag.Get("yaml")
		field := v.Field(i)
		switch value := field.Interface().(type) {
		case ClusterPolicy, map[string]ClusterPolicy, *bool:
			out[key] = ""
		case Duration:
			out[key] = time.Duration(value).String()
		default:
			if field.Kind() != reflect.Struct {
				out[key] = fmt.Sprint(value)
				continue
			}
			for k, d := range settings(key+".", field) {
				out[k] = d
			}
		}
	}
	return out
}

// TestDocumentedSettings keeps flags, keys, defaults and docs/configuration.md equal.
func TestDocumentedSettings(t *testing.T) {
	data, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, keyTable, _ := strings.Cut(string(data), "## Keys")
	keyTable, _, _ = strings.Cut(keyTable, "## Policy")
	want := settings("", reflect.ValueOf(DefaultConfig()))
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (?:`([^`]*)`)? *\\|").FindAllStringSubmatch(keyTable, -1) {
		def, ok := want[row[1]]
		if !ok || def != row[2] {
			t.Errorf("documented: %s with default %q; the code has %q (exists: %v)", row[1], row[2], def, ok)
		}
		delete(want, row[1])
	}
	for key := range want {
		t.Errorf("%s is not documented", key)
	}
	documentedFlags(t, string(data))
	for _, role := range allRoles {
		if !strings.Contains(string(data), "| `"+string(role)+"` |") {
			t.Errorf("role %s is not documented", role)
		}
	}
	policy := reflect.TypeFor[ClusterPolicy]()
	for i := range policy.NumField() {
		if name := policy.Field(i).Tag.Get("yaml"); !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("policy field %s is not documented", name)
		}
	}
}

func documentedFlags(t *testing.T, doc string) {
	keys := settings("", reflect.ValueOf(DefaultConfig()))
	var path string
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([^`]+)` \\| (?:`([^`]+)`)?").FindAllStringSubmatch(doc, -1) {
		documented[row[1]] = row[2]
	}
	flags(&Invocation{Config: DefaultConfig()}, &path, io.Discard).VisitAll(func(fl *flag.Flag) {
		key, ok := documented[fl.Name]
		if !ok {
			t.Errorf("flag --%s is not documented", fl.Name)
		}
		if key != "" && (key != strings.ReplaceAll(fl.Name, "-", "_") || keys[key] != fl.DefValue) {
			t.Errorf("flag --%s is documented as key %q; defaults are %q and %q", fl.Name, key, fl.DefValue, keys[key])
		}
		delete(documented, fl.Name)
	})
	for name := range documented {
		t.Errorf("there is no flag --%s", name)
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsGoBeforeTheFile(t *testing.T) {
	path := writeFile(t, "c.yaml", "data_dir: /from/file\nlisten: 127.0.0.1:1\nhistory: {sent_age: 48h}\n")
	inv, err := ParseArgs([]string{"--listen", "127.0.0.1:2", "--config", path}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := inv.Config
	if c.DataDir != "/from/file" || c.Listen != "127.0.0.1:2" || time.Duration(c.History.SentAge) != 48*time.Hour || c.Shards != DefaultConfig().Shards {
		t.Errorf("configuration %+v", c)
	}
	if _, err := ParseArgs([]string{"stray"}, io.Discard); err == nil || !strings.Contains(err.Error(), "stray") {
		t.Errorf("stray argument: %v", err)
	}
}

// TestSelfPodUID: the flag goes before the file, and the file before the environment.
func TestSelfPodUID(t *testing.T) {
	t.Setenv("REPRIEVE_SELF_POD_UID", "of-env")
	file := writeFile(t, "c.yaml", "self_pod_uid: of-file\n")
	for want, args := range map[string][]string{
		"of-env": nil, "of-file": {"--config", file}, "of-flag": {"--config", file, "--self-pod-uid", "of-flag"},
	} {
		inv, err := ParseArgs(args, io.Discard)
		if err != nil || inv.Config.SelfPodUID != want {
			t.Errorf("%q: %q, %v; want %q", args, inv.Config.SelfPodUID, err, want)
		}
	}
	if inv, err := ParseArgs([]string{"--config", writeFile(t, "d.yaml", "shards: 2\n")}, io.Discard); err != nil || inv.Config.SelfPodUID != "of-env" {
		t.Errorf("a file without the key: %q, %v", inv.Config.SelfPodUID, err)
	}
	c := DefaultConfig()
	c.SelfPodUID = "not a uid"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "self_pod_uid") {
		t.Errorf("a bad UID: %v", err)
	}
}

func TestBadFiles(t *testing.T) {
	for text, want := range map[string]string{
		"data_dir: x\nlisten_on: y\n":          "line 2: unknown key listen_on; docs/configuration.md lists the keys",
		"clusters:\n  east:\n    mod: x\n":     "line 3: unknown key mod;",
		"feed_timeout: 30\n":                   "duration",
		"\tlisten: x\n":                        "cannot start any token",
		"data_dir: x\n---\ndata_dir: y\n":      "more than one YAML document",
		"shards: many\n":                       "line 1",
		"tls:\n  certificate: x\n":             "unknown key certificate;",
		"auth:\n  anonymous: true\n  tok: 1\n": "unknown key tok;",
	} {
		_, err := ParseArgs([]string{"--config", writeFile(t, "c.yaml", text)}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	if _, err := ParseArgs([]string{"--config", "/does/not/exist"}, io.Discard); err == nil {
		t.Error("a file that does not exist was read")
	}
}

// TestValidateTellsEveryFault has one configuration with all the faults.
func TestValidateTellsEveryFault(t *testing.T) {
	yes, king, neg := true, "king", Duration(-time.Second)
	c := DefaultConfig()
	c.DataDir, c.Listen, c.AdminListen = "", "0.0.0.0:7443", "nonsense"
	c.LogFormat, c.LogLevel, c.Adopt = "xml", "loud", "maybe"
	c.FeedTimeout, c.MaxGap, c.Shards = Duration(time.Millisecond), 0, 0
	c.History, c.Limits = History{}, Limits{}
	c.Auth = Auth{Anonymous: &yes, TokensFile: writeFile(t, "t.yaml", "- {name: a, sha256: xyz, role: king, clusters: []}\n")}
	c.Defaults.Mode = &king
	c.Clusters = map[string]ClusterPolicy{"Bad_Name": {}, "east": {BudgetWait: &neg, Rate: &Rate{PerSecond: 1, Burst: 1}, UnlimitedRate: &yes}}
	err := c.Validate()
	if err == nil {
		t.Fatal("no fault found")
	}
	for _, want := range []string{
		"data_dir is empty", "0.0.0.0:7443 is not on loopback", "admin_listen: ", "log_format", "log_level", "adopt",
		"feed_timeout: 1ms is not between 5s and 1h0m0s", "max_gap", "shards: 0 is not between 1 and 256", "history.sent_age",
		"history.sent_count", "history.early_age", "history.early_count", "limits.max_message_bytes", "limits.max_streams",
		"limits.streams_per_identity", "limits.calls_burst", "limits.max_page_size", "limits.stop_timeout", "auth.anonymous", "entry 1 (a): sha256", `defaults: mode: "king" is none of ENFORCE, SHADOW`,
		`"Bad_Name" is no cluster name`, "clusters.east: budget_wait", "rate and unlimited_rate",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no fault says %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestWhoIsAnonymous(t *testing.T) {
	no := false
	for _, tc := range []struct {
		edit  func(*Config)
		want  bool
		valid bool
	}{
		{func(*Config) {}, true, true},
		{func(c *Config) { c.Listen = "[::1]:7443" }, true, true},
		{func(c *Config) { c.Listen = "localhost:7443" }, true, true},
		{func(c *Config) { c.Auth.Anonymous = &no }, false, false},
		{tenants(t), false, true},
		{func(c *Config) { c.Listen = ":7443"; c.AllowPlaintext = true }, false, false},
		{func(c *Config) { c.Listen = ":7443"; c.AllowPlaintext = true; tenants(t)(c) }, false, true},
		{func(c *Config) { c.TLS.CertFile = "x" }, false, false},
	} {
		c := DefaultConfig()
		tc.edit(&c)
		if err := c.Validate(); c.anonymous() != tc.want || (err == nil) != tc.valid {
			t.Errorf("%+v: anonymous %v, %v", c, c.anonymous(), err)
		}
	}
}

func TestConfiguredPolicies(t *testing.T) {
	c := DefaultConfig()
	text := "adopt: enforce\ndefaults:\n  budget_wait: 1m\n  ignored_taint_keys: [a]\nclusters:\n  east: {mode: shadow, method: evict, ignored_taint_keys: []}\n  west: {rate: {per_second: 2, burst: 3}}\n"
	if err := parseConfig([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	policies, err := c.clusterPolicies()
	if err != nil {
		t.Fatal(err)
	}
	east := engine.DefaultPolicy().With(policies("east"))
	if east.Mode != engine.ModeShadow || east.Method != engine.MethodEvict || east.BudgetWait != time.Minute || len(east.IgnoredTaintKeys) != 0 {
		t.Errorf("east: %+v", east)
	}
	west := engine.DefaultPolicy().With(policies("west"))
	if west.Mode != engine.ModeEnforce || west.RatePerSecond != 2 || west.Burst != 3 || !slices.Equal(west.IgnoredTaintKeys, []string{"a"}) {
		t.Errorf("west: %+v", west)
	}
	if other := policies("other"); other.Mode != engine.ModeEnforce || other.Fields&engine.PolicyRate != 0 {
		t.Errorf("other: %+v", other)
	}
}

// TestIdleSettingsWarn has settings that are sound and have no effect.
func TestIdleSettingsWarn(t *testing.T) {
	for text, want := range map[string][]string{
		"defaults: {budget_wait: 1m}\nclusters:\n  east: {method: evict_then_delete}\n": nil,
		"defaults: {budget_wait: 1m, method: evict}\n":                                  {"defaults: budget_wait has no effect: the method is EVICT, and only EVICT_THEN_DELETE waits"},
		"clusters:\n  east: {budget_wait: 1m}\n":                                        {"clusters.east: budget_wait has no effect: the method is DELETE, and only EVICT_THEN_DELETE waits"},
		"defaults: {disable_default_tolerations: true}\nclusters:\n  east: {default_unreachable_toleration: 1m}\n": {
			"clusters.east: default_unreachable_toleration has no effect: disable_default_tolerations is set"},
		"defaults: {default_not_ready_toleration: 1m, ignored_taint_keys: [node.kubernetes.io/not-ready]}\n": {
			"defaults: default_not_ready_toleration has no effect: ignored_taint_keys has node.kubernetes.io/not-ready"},
	} {
		path := writeFile(t, "c.yaml", text)
		out := newLog()
		if code := Main(Process{Args: []string{"--validate-config", "--config", path}, Stdout: out, Stderr: out, Exit: func(int) {}}, Parts{OpenStore: boltFile}); code != exitOK {
			t.Fatalf("%q: exit code %d: %s", text, code, out)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		var got []string
		for _, l := range lines[:len(lines)-1] {
			got = append(got, strings.TrimPrefix(l, "warning: "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q warns %q, want %q", text, got, want)
		}
	}
}

// TestNamesThatMatchNothing are refused in the file, as they are by SetPolicy.
func TestNamesThatMatchNothing(t *testing.T) {
	for text, want := range map[string]string{
		`defaults: {excluded_namespaces: ["*"]}`:             "defaults: excluded_namespaces[0]: is no namespace's name",
		"defaults: {excluded_namespaces: [ok, Kube_System]}": "excluded_namespaces[1]",
		`clusters: {east: {ignored_taint_keys: ["a/*"]}}`:    "clusters.east: ignored_taint_keys[0]: is no taint key",
	} {
		c := DefaultConfig()
		if err := parseConfig([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	c := DefaultConfig()
	text := "defaults: {excluded_namespaces: [kube-system, a, 0x], ignored_taint_keys: [node.kubernetes.io/not-ready, Spot, a.b/C_d.e-f]}"
	if err := parseConfig([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("sound names are refused: %v", err)
	}
}
