// Package tolerations looks at the tolerations of a cluster's pods, as its API
// server has them, and adds those that are missing for a node that is not ready or
// unreachable. What matches what is the engine's decision. It must not know the
// service: all it talks to is the API server.
package tolerations
