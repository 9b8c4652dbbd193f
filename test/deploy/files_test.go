package deploy

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/reprieve-dev/reprieve/internal/cli"
	"github.com/reprieve-dev/reprieve/internal/clock"
	"github.com/reprieve-dev/reprieve/server"
)

// runbooks is where every alert's runbook has to be.
const runbooks = "https://github.com/reprieve-dev/reprieve/blob/main/docs/operations.md#"

func TestAlertsHaveRunbooks(t *testing.T) {
	anchors := anchors(t, filepath.Join(root, "docs/operations.md"))
	seen := map[string]bool{}
	for _, r := range rules(t) {
		if seen[r.Alert] {
			t.Errorf("%s is there twice", r.Alert)
		}
		seen[r.Alert] = true
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", r.Alert)
		}
		anchor, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbooks)
		if !ok || !anchors[anchor] {
			t.Errorf("%s: docs/operations.md has no section for the runbook %s", r.Alert, r.Annotations["runbook_url"])
		}
	}
	if len(seen) == 0 {
		t.Error("no alerts")
	}
}

// anchors are those that the headings of a page get.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	drop := regexp.MustCompile(`[^a-z0-9 _-]`)
	out := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			anchor := strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
			if out[anchor] && filepath.Base(page) == "operations.md" {
				t.Errorf("%s has the section %s twice", page, anchor)
			}
			out[anchor] = true
		}
	}
	return out
}

func TestLinksOfDocs(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#: ]*)(?:#([^) ]+))?\)`)
	for _, page := range docs(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if m[2] != "" && !anchors(t, target)[m[2]] {
				t.Errorf("%s links to %s#%s, a section that is not there", page, m[1], m[2])
			}
		}
	}
}

func TestDashboardLayout(t *testing.T) {
	b := dashboard(t)
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range b.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %q: id %d is there twice or it has no title", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && (p.Datasource.UID != "${datasource}" || len(p.Targets) == 0) {
			t.Errorf("panel %q does not ask the chosen data source", p.Title)
		}
		if g := p.GridPos; g.X < 0 || g.X+g.W > 24 || g.W == 0 || g.H == 0 {
			t.Errorf("panel %q is outside: %+v", p.Title, g)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
	var names []string
	for _, v := range b.Templating.List {
		names = append(names, v.Name)
	}
	if got := strings.Join(names, " "); got != "datasource job cluster" {
		t.Errorf("variables %q", got)
	}
}

// container is what is looked at of a workload.
type container struct {
	Image   string
	Command []string
	Args    []string
	Ports   []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
}

// workload reads the one container of a manifest.
func workload(t *testing.T, file string) container {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []container }
			}
		}
	}
	if err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&m); err != nil {
		t.Fatal(err)
	}
	if len(m.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%s has %d containers", file, len(m.Spec.Template.Spec.Containers))
	}
	return m.Spec.Template.Spec.Containers[0]
}

func TestServiceManifest(t *testing.T) {
	c := workload(t, "deploy/kustomize/base/service/statefulset.yaml")
	if c.Command[0] != "/reprieved" {
		t.Errorf("command %q", c.Command)
	}
	path, ok := strings.CutPrefix(c.Args[0], "--config=")
	if !ok || path != "/etc/reprieve/config/reprieved.yaml" {
		t.Fatalf("arguments %q", c.Args)
	}
	args := append([]string{"--config", filepath.Join(root, "deploy/kustomize/base/service/reprieved.yaml")}, c.Args[1:]...)
	inv, err := server.ParseArgs(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	// Its files are the cluster's Secrets; all else has to be valid.
	conf := inv.Config
	if conf.TLS.CertFile != "/etc/reprieve/tls/tls.crt" || conf.TLS.KeyFile != "/etc/reprieve/tls/tls.key" || conf.Auth.TokensFile != "/etc/reprieve/tokens/tokens.yaml" {
		t.Errorf("files %+v %+v", conf.TLS, conf.Auth)
	}
	conf.TLS, conf.Auth, conf.Listen = server.TLS{}, server.Auth{}, "127.0.0.1:7443"
	if err := conf.Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range c.Ports {
		if listen := map[string]string{"grpc": inv.Config.Listen, "admin": inv.Config.AdminListen}[p.Name]; !strings.HasPrefix(listen, ":") || listen[1:] != strconv.Itoa(p.ContainerPort) {
			t.Errorf("port %s is %d, and the configuration listens on %s", p.Name, p.ContainerPort, listen)
		}
	}
}

func TestAgentManifest(t *testing.T) {
	c := workload(t, "deploy/kustomize/base/agent/deployment.yaml")
	if got := strings.Join(c.Command, " "); got != "/reprieve agent" {
		t.Errorf("command %q", got)
	}
	values := strings.NewReplacer("$(CLUSTER)", "east", "$(SERVER)", "127.0.0.1:1", "$(POD_NAMESPACE)", "reprieve-system")
	args := []string{"agent"}
	for _, a := range c.Args {
		args = append(args, values.Replace(a))
	}
	// Outside a pod it gets as far as looking for the pod's service account, which means that every flag was taken.
	var out bytes.Buffer
	env := &cli.Env{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }, Clock: clock.NewReal(), Width: func() int { return 0 }}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if code := cli.Main(context.Background(), env, args); code == 0 || !strings.Contains(out.String(), "this is no pod with a service account") {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	if listen := c.Args[len(c.Args)-1]; listen != "--admin-listen=:"+strconv.Itoa(c.Ports[0].ContainerPort) {
		t.Errorf("port %d, and it listens on %s", c.Ports[0].ContainerPort, listen)
	}
}
