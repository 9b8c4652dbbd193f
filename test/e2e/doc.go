// Package e2e holds the end-to-end tests: the real programs, run as processes beside a real etcd, kube-apiserver
// and kube-controller-manager, with kwok as the kubelets.
//
// A test starts what it needs with controlplane.Start and service.Start and takes it down by itself, so that tests
// do not know of each other. The programs come from bin/; `make e2e` builds them. The package must not reach into
// the product: it talks to it as users do, by flags, files, gRPC and the API server.
package e2e
