// Package server is the service: the gRPC services over the engine, who may
// call them, the configuration, health, metrics, and the order of start and
// stop. It decides nothing about evictions, and must not know how records are
// stored: it hands the engine a way to open the store.
package server
