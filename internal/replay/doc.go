// Package replay runs the real engine on a virtual clock: over a timeline (a
// rehearsal of what would be sent and when, and of what happens to nodes' health),
// and over dumps (who would leave if a node had a taint, or fell silent). It drives
// the engine through the same calls as the service does and decides nothing itself.
// It must not know gRPC or bbolt.
package replay
