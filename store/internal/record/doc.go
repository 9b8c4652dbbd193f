// Package record copies the engine's records into the form in which they are
// stored: deep, and without what the engine says is not kept. It must not know
// how they are encoded.
package record
