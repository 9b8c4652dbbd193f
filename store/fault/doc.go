// Package fault puts failures between the engine and a store, so that tests can
// show what a full disk, a failed sync or a slow one does. It fails in the ways
// that the Store interface allows and in no other: a write that fails may have
// been done, in part or not at all, and its handle is of no use afterwards. It must not know
// what is in a record.
package fault
