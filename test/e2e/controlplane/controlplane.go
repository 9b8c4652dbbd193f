package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/reprieve-dev/reprieve/test/e2e/await"
	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

// readyWithin bounds each program's start on a busy machine.
const readyWithin = 90 * time.Second

// admin is the user of Admin and of the control plane's own programs.
const admin = "admin"

// Start boots a control plane and returns when its API server is ready. All of it ends with the test.
func Start(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	c := &ControlPlane{t: t, dir: t.TempDir()}
	c.pki = newPKI(t, c.dir)
	c.startEtcd()
	c.startAPIServer(o.APIServerFlags)
	c.admin = c.Config(admin, "system:masters")
	var err error
	if c.Admin, err = kubernetes.NewForConfig(c.admin); err != nil {
		t.Fatalf("client of the control plane: %v", err)
	}
	c.WaitReady()
	c.waitUID()
	if o.ControllerManager != nil {
		c.startControllerManager(*o.ControllerManager)
	}
	if o.Kubelets != nil {
		c.startKubelets(*o.Kubelets)
	}
	return c
}

func (c *ControlPlane) startEtcd() {
	c.t.Helper()
	clients, peers := loopback("http", process.FreePort(c.t)), loopback("http", process.FreePort(c.t))
	c.etcdURL = clients
	c.Etcd = process.Start(c.t, process.Spec{
		Name: "etcd", Path: process.Bin(c.t, "controlplane/etcd"),
		Args: []string{
			"--data-dir", filepath.Join(c.dir, "etcd"),
			"--listen-client-urls", clients, "--advertise-client-urls", clients,
			"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers,
			// A killed process loses nothing that it wrote; only a machine that dies would.
			"--unsafe-no-fsync", "--log-level", "warn",
		},
	})
}

func (c *ControlPlane) startAPIServer(flags []string) {
	c.t.Helper()
	port := process.FreePort(c.t)
	c.URL = loopback("https", port)
	args := []string{
		"--etcd-servers", c.etcdURL, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
		"--secure-port", fmt.Sprint(port), "--cert-dir", c.dir,
		"--tls-cert-file", c.pki.path("apiserver.crt"), "--tls-private-key-file", c.pki.path("apiserver.key"),
		"--client-ca-file", c.pki.path("ca.crt"), "--authorization-mode", "RBAC",
		"--service-account-issuer", c.URL, "--service-account-key-file", c.pki.path("service-account.pub"),
		"--service-account-signing-key-file", c.pki.path("service-account.key"),
		"--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none",
		"--disable-admission-plugins", "ServiceAccount", "--profiling=false",
	}
	c.APIServer = process.Start(c.t, process.Spec{
		Name: "kube-apiserver", Path: process.Bin(c.t, "controlplane/kube-apiserver"), Args: append(args, flags...),
	})
}

// Control ends the controller manager, if one runs, and starts one that runs as o says.
func (c *ControlPlane) Control(o ControllerManager) {
	c.t.Helper()
	if c.ControllerManager != nil {
		c.ControllerManager.Kill()
	}
	c.startControllerManager(o)
}

func (c *ControlPlane) startControllerManager(o ControllerManager) {
	c.t.Helper()
	args := []string{
		"--kubeconfig", c.Kubeconfig(admin, "system:masters"), "--leader-elect=false", "--secure-port=0",
		"--controllers", strings.Join(o.Controllers, ","),
		// Taints at once: the pace of a large outage is not what is tested.
		"--node-monitor-period=1s", "--node-eviction-rate=100", "--secondary-node-eviction-rate=100",
	}
	if o.QPS > 0 {
		args = append(args, fmt.Sprintf("--kube-api-qps=%d", o.QPS), fmt.Sprintf("--kube-api-burst=%d", o.Burst))
	}
	if o.NodeMonitorGrace > 0 {
		args = append(args, fmt.Sprintf("--node-monitor-grace-period=%s", o.NodeMonitorGrace))
	}
	c.ControllerManager = process.Start(c.t, process.Spec{
		Name: "kube-controller-manager", Path: process.Bin(c.t, "controlplane/kube-controller-manager"), Args: append(args, o.Flags...),
	})
}

func (c *ControlPlane) startKubelets(k Kubelets) {
	c.t.Helper()
	config := filepath.Join(c.dir, "kwok.yaml")
	if err := os.WriteFile(config, []byte(kwokConfig(k)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.Kubelets = process.Start(c.t, process.Spec{
		Name: "kwok", Path: process.Bin(c.t, "controlplane/kwok"),
		Args: []string{"--kubeconfig", c.Kubeconfig(admin, "system:masters"), "--config", config, "-v", "WARN"},
	})
}

// WaitReady waits for the API server's /readyz, as after a start of it or of etcd.
func (c *ControlPlane) WaitReady() {
	c.t.Helper()
	await.Until(c.t, readyWithin, "kube-apiserver to be ready", func(ctx context.Context) error {
		for _, p := range []*process.Process{c.Etcd, c.APIServer} {
			if err, ended := p.Ended(); ended {
				c.t.Fatalf("the control plane did not start: a program ended: %v", err)
			}
		}
		code := 0
		err := c.Admin.RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code).Error()
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz says %d", code)
		}
		return err
	})
}

func (c *ControlPlane) waitUID() {
	c.t.Helper()
	await.Until(c.t, readyWithin, "namespace kube-system", func(ctx context.Context) error {
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			ns, err := c.Admin.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			c.UID = string(ns.UID)
		}
		if c.UID == "" {
			return errors.New("it has no uid")
		}
		return nil
	})
}

// Config returns the client configuration of a user, made when first asked for, who may do what RBAC grants the name
// and the groups. Its requests are not limited on the client's side.
func (c *ControlPlane) Config(user string, groups ...string) *rest.Config {
	c.t.Helper()
	file := userFile(user)
	if _, err := os.Stat(c.pki.path(file + ".crt")); err != nil {
		c.pki.user(user, groups)
	}
	return &rest.Config{
		Host: c.URL, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.pki.path("ca.crt"), CertFile: c.pki.path(file + ".crt"), KeyFile: c.pki.path(file + ".key")},
	}
}

// Client returns a client of a user, see Config.
func (c *ControlPlane) Client(user string, groups ...string) *kubernetes.Clientset {
	c.t.Helper()
	cs, err := kubernetes.NewForConfig(c.Config(user, groups...))
	if err != nil {
		c.t.Fatalf("client of %s: %v", user, err)
	}
	return cs
}

// AdminConfig is the configuration of Admin, for other kinds of clients.
func (c *ControlPlane) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Kubeconfig returns a kubeconfig file of a user, see Config.
func (c *ControlPlane) Kubeconfig(user string, groups ...string) string {
	c.t.Helper()
	conf := c.Config(user, groups...)
	kc := clientcmdapi.NewConfig()
	kc.Clusters["e2e"] = &clientcmdapi.Cluster{Server: conf.Host, CertificateAuthority: conf.CAFile}
	kc.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificate: conf.CertFile, ClientKey: conf.KeyFile}
	kc.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: user}
	kc.CurrentContext = "e2e"
	path := c.pki.path(userFile(user) + ".kubeconfig")
	if err := clientcmd.WriteToFile(*kc, path); err != nil {
		c.t.Fatalf("kubeconfig of %s: %v", user, err)
	}
	return path
}

// AdminKubeconfig returns the kubeconfig file of a member of system:masters.
func (c *ControlPlane) AdminKubeconfig() string {
	c.t.Helper()
	return c.Kubeconfig(admin, "system:masters")
}

func loopback(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }
