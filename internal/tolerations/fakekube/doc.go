// Package fakekube is an API server for tests: pods in memory that can be listed by
// pages, read and patched under preconditions as a real one does it. It must not know
// what its callers want with them.
package fakekube
