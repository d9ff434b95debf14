// Package pipeline holds background work that drains queues: a pipeline is a queue's consumers with a name, which deliver
// what they find and only then take it off the queue.
//
// It is not a stream processor: no processor changes a record. It trades speed for certainty. A block of the queue is
// peeked, every record in it is settled (stored, found to be stored already, or put aside as refused for good), and then the
// queue advances; a process that is killed in between delivers the block again. Records have an id that is the same then, so
// that a second delivery stores nothing twice. When the cluster is away the block is kept and tried again, and what piles up
// is bounded by the queue.
//
// A processor is a drain (drain.go), which takes blocks off a queue, with an outlet, which settles them: bulkOutlet sends them
// to a cluster, in the forms of json_indexing, bulk_indexing and dead_letter; writerOutlet writes lines; dagOutlet gives a
// block to several outlets.
//
// Build makes plans of a configuration, without I/O; Plan.Start puts one to work; Running.Stop ends it. The index templates
// for the records are installed by Setup, which is to come before the first record.
package pipeline
