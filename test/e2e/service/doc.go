// Package service runs Reprieve for a test as its users do: reprieved with a configuration and tokens, agents beside
// it, the command line, and a connection of an operator. It must not know Kubernetes beyond the path of a kubeconfig.
package service
