// Package health decides what follows from the heartbeats and conditions of a
// cluster's nodes: which nodes are silent, which taints and conditions they should
// have, and when. It is a pure state machine: all that it knows is told to it with
// the instant of its arrival, and all that it wants is asked of it.
//
// It must not know of clocks, goroutines, stores, streams or Kubernetes clients,
// nor of pods and evictions.
package health
