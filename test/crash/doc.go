// Package crash holds the crash tests: the real service, built with named points at which it kills itself, fed and
// executed for by this process under random load, killed and restarted hundreds of times, and judged by what it did
// where others could see it. `make crash` runs them; their files have the build tag crash.
// Besides kills, faults of time, disk and transport are staged on the same service (`make faults`, `make soak`), each
// measured by how long a pod that falls due right after it takes to leave.
//
// The judge knows the contract and Kubernetes' rules in a few lines of its own. It must not import the engine or the
// store that it judges.
package crash
