// Package storetest is the suite that every backend of the engine's Store
// passes. It sees a backend through the interface alone and must not know how
// one lays out its data.
package storetest
