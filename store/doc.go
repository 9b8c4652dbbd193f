// Package store holds what the backends of [engine.Store] share: their errors.
// The backends are in the folders below it: bolt writes a bbolt file, mem keeps
// everything in memory, fault injects failures into another one, and storetest
// is the suite that all of them pass.
//
// The store keeps records and gives them back. It must not know what a record
// means: no decision, no timer and no clock is in here, and every time that it
// needs is an argument. It alone knows the stored messages of
// reprieve.store.v1; it must not know gRPC or the public API.
package store
