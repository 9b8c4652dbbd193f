// Package bolt keeps the engine's records in one bbolt file, which survives the
// death of the process at any point. It must not know what a record means.
//
// # The tree
//
//	meta/
//	    schema_version                    uint32, big-endian, bare: readable before any codec
//	    revision                          framed number: that of the last commit
//	    clock_floor                       framed number: nanoseconds since 1970, the last commit's time
//	clusters/<cluster>/
//	    cluster                           ClusterRecord
//	    nodes/<node>                      NodeRecord
//	    evictions/<seq>                   EvictionRecord, open; the bucket's own sequence is
//	                                      the highest that the cluster has ever had
//	    health/<node>                     NodeHealthRecord; made with the first of them
//	    reprieves/<uid>                   ReprieveRecord
//	    history/<class, closed_at, seq>   EvictionRecord, closed
//	quarantine/<bucket path>/<key>        bytes that could not be read, as they were found
//
// The codec package says what keys and values are made of. Keys are written in
// order (a sequence grows, and so does the time of a close within its class),
// which keeps a transaction to few pages; nothing is indexed on disk.
//
// # What is on disk
//
// Every transaction is synced before it is reported (fsync is never off), and
// so is the folder's entry of a new file. One batch is one transaction: what
// must agree (an eviction leaving the open ones, entering history and dropping
// its reprieve; the sequence and the record that raised it) is in the same one.
// After a failed write the outcome is unknown, so the handle refuses everything
// until it is opened again.
//
// # Schema versions
//
// The first start of a program with a newer schema copies the file and brings it
// to that schema in one transaction; see steps. testdata has a file of each
// version, which a test opens.
//
// # Damage
//
// A record that cannot be read is moved to quarantine at the end of the load,
// under the path of its bucket and its key; if the same key is set aside again,
// the later bytes replace the earlier. A cluster's own record is copied there and left where it
// is, so that the cluster stays damaged, and held, until a good record is
// written over it. Pages are bbolt's: a file cut short is refused at open, and
// a page that makes no sense becomes an error that names the file.
//
// Some such pages end the process that reads them, which no error handling
// catches (pages that lead in circles fill the stack). So a file that was not
// closed cleanly is read by a child process first, bounded in time, stack and
// memory. A clean close leaves a marker beside the file, bound to the state of
// the file. A file that is beyond help is refused, or set aside if the options say so.
package bolt
