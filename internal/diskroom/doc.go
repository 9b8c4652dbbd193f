// Package diskroom tells how much room the disk of a folder has. It knows nothing
// of what is written there.
package diskroom
