// Package codec turns the engine's records into the bytes of keys and values
// and back. It alone maps reprieve.store.v1. It must not know where the bytes
// are put; the trees are drawn in the backends.
//
// # Values
//
// A protobuf parser takes much garbage for a message, so every value has a
// frame before its message:
//
//	byte 0      version of the frame and of the message's meaning, now 1
//	byte 1      kind of the record: a node read as an eviction is damage
//	bytes 2-5   CRC-32C (Castagnoli), big-endian, of bytes 0, 1 and the message
//	bytes 6-    the message of reprieve.store.v1
//
// The name of a record (cluster, sequence, node, UID) is in its key alone.
//
// # Keys
//
// Names and UIDs are keys as they are. Numbers are big-endian, and the sign bit
// of a time is flipped, so that bytes sort as the numbers do.
package codec
