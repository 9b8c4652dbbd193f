package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/controlplane"
	"github.com/reprieve-dev/reprieve/test/e2e/kube"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
	"github.com/reprieve-dev/reprieve/test/e2e/service"
)

// The commands that the README and the quickstart give for a real cluster, word for word: kubectl's streams feed the
// service, a taint set by kubectl makes an eviction, and a command deletes the pod.
func TestQuickstartWithKubectl(t *testing.T) {
	for _, doc := range []string{"README.md", "docs/quickstart.md"} {
		t.Run(filepath.Base(doc), func(t *testing.T) {
			c := controlplane.Start(t, controlplane.Options{Kubelets: &controlplane.Kubelets{}})
			s := service.Start(t, service.Options{Anonymous: true})
			user := kubectl(t, c)
			user.env = append(user.env, s.Env()...)
			kube.CreateNodes(t, c.Admin, "n1", "n2")
			pods := kube.CreatePods(t, c.Admin,
				kube.Pod{Name: "web", Node: "n1"}, kube.Pod{Name: "away", Node: "n2"}, kube.Pod{Name: "agent", Node: "n1", Tolerations: tolerateForEver("maintenance")})
			kube.WaitRunning(t, c.Admin, pods)
			deletions := kube.Record(t, c.Admin)

			feed := user.start("feed", block(t, doc, "bin/reprieve feed --cluster lab"))
			await.Until(t, time.Minute, "the feed to be synced", func(context.Context) error {
				if want := "Cluster lab is synced: 2 nodes, 3 pods; mode SHADOW"; !strings.Contains(string(feed.Log()), want) {
					return fmt.Errorf("it has not said %q", want)
				}
				return nil
			})
			user.run("kubectl taint node n1 maintenance:NoExecute")
			await.Until(t, time.Minute, "what would leave", func(context.Context) error {
				if out := user.run("bin/reprieve history --cluster lab"); !strings.Contains(out, "default/web") || !strings.Contains(out, "WOULD_EVICT") {
					return fmt.Errorf("history is %s", out)
				}
				return nil
			})
			user.run("kubectl taint node n1 maintenance:NoExecute-")
			user.run("bin/reprieve enforce lab --yes")
			user.run("kubectl taint node n1 maintenance:NoExecute")
			await.Until(t, time.Minute, "an eviction", func(context.Context) error {
				if out := user.run("bin/reprieve get evictions"); !strings.Contains(out, "default/web") || !strings.Contains(out, "maintenance") {
					return fmt.Errorf("the evictions are %s", out)
				}
				return nil
			})
			deletions.NoneOf(t, kube.UIDs(pods)...)

			user.start("execute", block(t, "docs/quickstart.md", "--exec"))
			deletions.Wait(t, time.Minute, pods[0].UID)
			await.Until(t, time.Minute, "history", func(context.Context) error {
				if out := user.run("bin/reprieve history --cluster lab"); !strings.Contains(out, " EVICTED") {
					return fmt.Errorf("it is %s", out)
				}
				return nil
			})
			deletions.NoneOf(t, pods[1].UID, pods[2].UID)
		})
	}
}

// shell runs commands as a person does in the top folder of the repository.
type shell struct {
	t   *testing.T
	env []string
}

// kubectl is a shell whose kubectl reaches a control plane as its administrator.
func kubectl(t *testing.T, c *controlplane.ControlPlane) shell {
	t.Helper()
	bin := filepath.Join(process.Root(t), "bin", "controlplane")
	return shell{t: t, env: []string{"KUBECONFIG=" + c.AdminKubeconfig(), "PATH=" + bin + ":" + os.Getenv("PATH")}}
}

func (s shell) run(command string) string {
	s.t.Helper()
	cmd := exec.Command("bash", "-euc", command)
	cmd.Dir, cmd.Env = process.Root(s.t), append(os.Environ(), s.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func (s shell) start(name, command string) *process.Process {
	s.t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		s.t.Fatal(err)
	}
	return process.Start(s.t, process.Spec{Name: name, Path: bash, Args: []string{"-euc", command}, Env: s.env, Dir: process.Root(s.t)})
}

// block returns the commands of the first ```sh block of a document that has a text.
func block(t *testing.T, doc, text string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(process.Root(t), doc))
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(b), "\n```") {
		if commands, sh := strings.CutPrefix(part, "sh\n"); sh && i%2 == 1 && strings.Contains(commands, text) {
			return commands
		}
	}
	t.Fatalf("%s has no sh block with %q", doc, text)
	return ""
}
