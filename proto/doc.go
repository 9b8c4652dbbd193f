// Package proto holds the contract: reprieve/v1 is the public API and
// reprieve/store/v1 what is written to disk, each with its generated Go beside
// it. It must not know anything but protobuf and gRPC.
package proto
