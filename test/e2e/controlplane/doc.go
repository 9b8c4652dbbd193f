// Package controlplane boots a real Kubernetes control plane for a test: etcd and kube-apiserver, and if asked
// kube-controller-manager and kwok, which plays the kubelets. All run on loopback with RBAC on; each process can be
// killed and started again on the same port and data. It must not know Reprieve.
package controlplane
