// Package agent joins one Kubernetes cluster to the service: it feeds the
// cluster's nodes and pods from watches of the API server, and who renewed the
// nodes' Leases where the service wants to know; carries out the service's orders
// for pods and nodes there; and writes the events that people look for on them.
// Several agents of one cluster elect a leader; the others wait.
//
// It is the one part of the client library that imports client-go. It must not
// know the engine, the store or the server.
package agent
