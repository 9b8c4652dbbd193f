// Package client is the Go library for programs that talk to Reprieve: it dials
// the service, feeds a cluster's events ([Feeder]), executes its eviction orders
// ([Executor]), follows evictions as they change ([Watch]) and gives the
// service's errors back as values that can be told apart ([Error]).
//
// It knows the contract (proto/reprieve/v1) and gRPC. It must not know the
// engine, the store, the server or k8s.io, so that a federation backend can
// import it without any of them.
package client
