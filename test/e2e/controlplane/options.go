package controlplane

import (
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/reprieve-dev/reprieve/test/e2e/process"
)

// Options say what a control plane has besides etcd and kube-apiserver.
type Options struct {
	// ControllerManager runs kube-controller-manager; nil runs none.
	ControllerManager *ControllerManager
	// Kubelets runs kwok for all nodes with label KubeletLabel; nil runs none, and deleted pods stay terminating.
	Kubelets *Kubelets
	// APIServerFlags are added to kube-apiserver's.
	APIServerFlags []string
}

// ControllerManager says how kube-controller-manager runs.
type ControllerManager struct {
	// Controllers are those it runs. Required.
	Controllers []string
	// QPS and Burst are its client's limits; 0 is the program's default (20 and 30).
	QPS, Burst int
	// NodeMonitorGrace is the silence after which a node is unreachable; 0 is the program's default. Kubelets.Heartbeat
	// has to be well below it.
	NodeMonitorGrace time.Duration
	// Flags are added.
	Flags []string
}

// Kubelets say how kwok plays the kubelets.
type Kubelets struct {
	// Heartbeat is how often a node's status is renewed; 0 is never, for tests without node-lifecycle-controller.
	Heartbeat time.Duration
}

// KubeletLabel is the label, with value KubeletValue, of the nodes that kwok plays. A node that loses it falls silent.
const (
	KubeletLabel = "reprieve.dev/kubelet"
	KubeletValue = "kwok"
)

// ControlPlane is a control plane that runs.
type ControlPlane struct {
	// Etcd and APIServer always run; ControllerManager and Kubelets are nil if not asked for.
	Etcd, APIServer, ControllerManager, Kubelets *process.Process
	// URL is kube-apiserver's.
	URL string
	// UID is the cluster's, that of namespace kube-system.
	UID string
	// Admin is a client of a member of system:masters, with no limits of its own.
	Admin *kubernetes.Clientset

	t       testing.TB
	admin   *rest.Config
	pki     *pki
	dir     string
	etcdURL string
}
