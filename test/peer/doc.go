// Command peer measures Reprieve beside Kubernetes' own taint-eviction-controller
// and beside what the disk, gRPC and timers of the machine allow.
//
// Every figure is taken in a process of its own, which the command starts, and
// the sides of a row take turns, so that a slow minute of the machine falls on
// all of them. Each side checks that it did its work. It must not be imported
// by the product, and knows nothing of it but what programs can use: engine,
// store and server.
package main
