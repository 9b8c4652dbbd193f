// Package buildinfo tells what was built. It must not know which program asks.
package buildinfo
