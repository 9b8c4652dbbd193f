// Package wire translates between the messages of the contract and the
// engine's structs, in both directions. It decides nothing and must not know
// streams, stores or files.
package wire
