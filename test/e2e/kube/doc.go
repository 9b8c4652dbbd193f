// Package kube does to a cluster what tests need done: nodes, pods bound to them, taints, and records of what became
// of the pods. It uses client-go and must not know Reprieve.
package kube
