// Package cli is the command line program reprieve: it parses, calls the
// service's public API or the rehearsal on files (internal/replay), and prints for
// people or for programs. It decides nothing about evictions and must not know the
// service's inside: what it shows came over the contract, or from the rehearsal in
// the contract's messages. Only the commands under `store` open the service's data file,
// through package bolt, while the service is stopped; only `agent`, `audit` and `backfill`
// talk to an API server, through packages of their own.
package cli
