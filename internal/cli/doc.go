// Package cli is the command line program reprieve: it parses, calls the
// service's public API or the rehearsal on files, and prints for people or for
// programs. It decides nothing about evictions and must not know the engine, the
// store or the service's inside; everything it shows came over the contract.
package cli
