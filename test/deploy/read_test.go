package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// root is the repository, seen from this folder.
const root = "../.."

// docs are the pages for people.
func docs(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages in docs: %v", len(pages), err)
	}
	return append(pages, filepath.Join(root, "README.md"))
}

// rule is an alert of deploy/prometheus/alerts.yaml.
type rule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// board is what is looked at of deploy/grafana/reprieve.json.
type board struct {
	Panels []struct {
		ID         int
		Type       string
		Title      string
		Datasource struct{ UID string }
		GridPos    struct{ X, Y, W, H int }
		Targets    []struct {
			Expr       string
			RefID      string
			Datasource struct{ UID string }
		}
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func dashboard(t *testing.T) (b board) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "deploy/grafana/reprieve.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	return b
}
