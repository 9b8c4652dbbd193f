// Package engine decides which pods must leave a node because of its NoExecute
// taints, keeps their waits, and hands what falls due to executors.
//
// It is pure Go with its own structs. It declares the [Store] it needs, reads no
// clock but the one it is given, and must not know gRPC, protobuf messages, bbolt
// or client-go. From Kubernetes it takes the Taint and Toleration types and their
// matching, so that a taint means here what it means to the scheduler.
//
// The way of an event is one way: [FeedSession] -> router -> the shard that
// owns the node -> the pure decision -> a changed record -> the committer ->
// after the commit, the feed's acknowledgement and the armed timer. A timer
// that fires goes to the cluster's dispatcher, which grants a permit; the shard
// decides again, commits the delivery, looks once more, and hands out the order.
package engine
