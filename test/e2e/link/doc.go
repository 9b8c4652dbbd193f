// Package link is a TCP connection between two programs of a test that the test can cut or stall, as a network does.
// It must not know what the programs say to each other.
package link
