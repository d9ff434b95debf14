// Package pipeline holds background work that drains queues: a pipeline is a queue's consumer with a name, which delivers
// what it finds and only then takes it off the queue.
//
// It is not a stream processor: a pipeline has one processor and changes no records. It trades speed for certainty. A block
// of the queue is peeked, every record in it is settled (stored, found to be stored already, or put aside as refused for
// good), and then the queue advances; a process that is killed in between delivers the block again. Records bring their own
// id, so that a second delivery stores nothing twice. When the cluster is away the block is kept and tried again, and what
// piles up is bounded by the queue.
//
// Build makes plans of a configuration, without I/O; Plan.Start puts one to work; Running.Stop ends it. The index templates
// for the records are installed by Setup, which is to come before the first record.
package pipeline
