package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/client/agent"
	"github.com/reprieve-dev/reprieve/engine"
	"github.com/reprieve-dev/reprieve/internal/clock"
)

// promised are the metrics that the design lists, which no rule or panel may have.
var promised = []string{
	"reprieve_eviction_lateness_seconds_bucket", "reprieve_oldest_overdue_seconds", "reprieve_open_evictions", "reprieve_evictions_closed_total",
	"reprieve_held_evictions", "reprieve_delivery_duration_seconds_bucket", "reprieve_commit_duration_seconds_bucket", "reprieve_commit_changes_bucket",
	"reprieve_feed_lag_seconds_bucket", "reprieve_feed_age_seconds", "reprieve_feed_events_total", "reprieve_stuck_evictions",
	"reprieve_unknown_tokens_total", "reprieve_clock_steps_total", "reprieve_ignored_input_total", "reprieve_permission_denied_total", "reprieve_reload_errors_total", "reprieve_limited_total", "reprieve_audit_errors_total",
	"reprieve_results_total", "reprieve_orders_total", "reprieve_serving", "reprieve_foreign_evictions_total", "reprieve_store_size_bytes",
	"reprieve_self_in_enforcing_cluster", "reprieve_blast_radius_tripped", "reprieve_looping_owners",
	"taint_eviction_controller_pod_deletions_total", "taint_eviction_controller_pod_deletion_duration_seconds_bucket",
}

// foreign are metrics that other programs have.
var foreign = map[string][]string{
	"kubelet_volume_stats_available_bytes": {"namespace", "persistentvolumeclaim"},
	"kubelet_volume_stats_capacity_bytes":  {"namespace", "persistentvolumeclaim"},
}

func TestMetricNames(t *testing.T) {
	service := start(t)
	service.busy()
	known := service.scrape(promised...)
	agentMetrics(t, known)
	for name, list := range foreign {
		known.add(name)
		for _, l := range list {
			known[name][l] = true
		}
	}
	for where, exprs := range expressions(t) {
		for _, expr := range exprs {
			for _, fault := range append(faults(expr, known), strange(expr)...) {
				t.Errorf("%s: %s in %s", where, fault, strings.TrimSpace(expr))
			}
		}
	}
	for _, doc := range docs(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			if known[name] == nil && known[name+"_bucket"] == nil && !strings.HasSuffix(name, "_") {
				t.Errorf("%s names %s, which is not on /metrics", doc, name)
			}
		}
	}
}

var metricName = regexp.MustCompile(`\b(?:reprieve|taint_eviction_controller)_[a-z0-9_]+\b`)

// agentMetrics adds what an agent registers, with its labels. It needs no cluster.
func agentMetrics(t *testing.T, known labels) {
	t.Helper()
	reg := prometheus.NewRegistry()
	_, err := agent.New(agent.Config{
		Cluster: "east", Kube: &rest.Config{Host: "https://127.0.0.1:1"}, Conn: dial(t, "127.0.0.1:1"), ID: "agent",
		Workers: 1, Clock: clock.NewReal(), Registry: reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan *prometheus.Desc, 100)
	reg.Describe(ch)
	close(ch)
	parts := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)
	for d := range ch {
		m := parts.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			name := m[1] + suffix
			known.add(name)
			known[name]["cluster"] = true // Given by the scrape: an agent serves one.
			for l := range strings.SplitSeq(m[2], ",") {
				known[name][l] = true
			}
			if suffix == "_bucket" {
				known[name]["le"] = true
			}
		}
	}
}

// expressions are all PromQL of the rules and of the dashboard, by where it is.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, r := range rules(t) {
		out["alert "+r.Alert] = append(out["alert "+r.Alert], r.Expr)
	}
	for _, p := range dashboard(t).Panels {
		for _, target := range p.Targets {
			out["panel "+p.Title] = append(out["panel "+p.Title], target.Expr)
		}
	}
	for _, v := range dashboard(t).Templating.List {
		if q, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			expr, label, _ := strings.Cut(strings.TrimSuffix(q, ")"), ", ")
			if i := strings.LastIndex(q, "}, "); i >= 0 {
				expr, label = q[:i+1], strings.TrimSuffix(q[i+3:], ")")
			}
			out["variable "+v.Name] = []string{"count by (" + label + ") (" + expr + ")"}
		}
	}
	return out
}

// words of PromQL that are no metrics.
var words = strings.Fields(`abs absent and by clamp_min count histogram_quantile increase max max_over_time min offset on or
	predict_linear rate sum unless vector without`)

var (
	quoted    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	ranges    = regexp.MustCompile(`\[[^\]]*\]|offset \w+`)
	selection = regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}`)
	grouping  = regexp.MustCompile(`\b(by|on|without|ignoring)\s*\(([^)]*)\)`)
	word      = regexp.MustCompile(`[a-zA-Z_:][\w:]*`)
	matcher   = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
)

// faults are the metrics and labels of an expression that are not known.
func faults(expr string, known labels) (out []string) {
	expr = ranges.ReplaceAllString(quoted.ReplaceAllString(expr, `""`), "")
	grouped := map[string]bool{}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, l := range word.FindAllString(g[2], -1) {
			grouped[l] = true
		}
	}
	have := map[string]bool{}
	for _, s := range selection.FindAllStringSubmatch(expr, -1) {
		for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
			if known[s[1]] != nil && !known[s[1]][l[1]] {
				out = append(out, s[1]+" has no label "+l[1])
			}
		}
	}
	bare := selection.ReplaceAllString(grouping.ReplaceAllString(expr, " "), "$1 ")
	for _, w := range word.FindAllString(bare, -1) {
		if slices.Contains(words, w) {
			continue
		}
		if known[w] == nil {
			out = append(out, "no metric "+w)
		}
		for l := range known[w] {
			have[l] = true
		}
	}
	for l := range grouped {
		if !have[l] {
			out = append(out, "no metric there has the label "+l)
		}
	}
	return out
}

var values = regexp.MustCompile(`\b(state|hold|outcome)=~?"([^"$]*)"`)

// strange are values of labels that the service never gives.
func strange(expr string) (out []string) {
	known := map[string][]string{}
	for v := engine.StateWaiting; v <= engine.StateClosed; v++ {
		known["state"] = append(known["state"], v.String())
	}
	for v := engine.HoldClusterNotSynced; v <= engine.HoldRateLimited; v++ {
		known["hold"] = append(known["hold"], v.String())
	}
	for v := engine.OutcomeEvicted; v <= engine.OutcomeNoAnswer; v++ {
		known["outcome"] = append(known["outcome"], v.String())
	}
	for _, m := range values.FindAllStringSubmatch(expr, -1) {
		for v := range strings.SplitSeq(m[2], "|") {
			if !slices.Contains(known[m[1]], v) {
				out = append(out, "no "+m[1]+" "+v)
			}
		}
	}
	return out
}

func TestFaultsAreFound(t *testing.T) {
	known := labels{}
	known.add("reprieve_serving")
	known.add("reprieve_nodes")
	known["reprieve_nodes"]["cluster"] = true
	for expr, want := range map[string]int{
		`sum by (cluster) (rate(reprieve_nodes{cluster=~"$c"}[5m] offset 1h)) > 3`: 0,
		`reprieve_servin == 0`:                         1,
		`reprieve_serving{cluster="east"}`:             1,
		`sum by (cluster) (reprieve_serving)`:          1,
		`reprieve_nodes and on (pod) reprieve_serving`: 1,
		`ratte(reprieve_nodes[5m])`:                    1,
		`reprieve_nodes{hold=~"PAUSED|PAUSE"}`:         2,
	} {
		if got := append(faults(expr, known), strange(expr)...); len(got) != want {
			t.Errorf("%s: faults %q; want %d", expr, got, want)
		}
	}
}
