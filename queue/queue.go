// Package queue holds the contract between those who put records aside (request logging, asynchronous writes) and those
// who deliver them later (pipelines), and the block that both sides share.
//
// A record is one line of NDJSON. Records travel in blocks: many records under one header with a checksum, written with
// one write and one sync. That trades a little delay, and the records of the block that was still open when a process is
// killed, for a put that costs about as much as copying the record. Who cannot give that up uses PutSync.
//
// Delivery is at least once: a block is peeked, delivered, and only then taken off the queue, so a crash between the two
// delivers it again. A queue is split into as many partitions as it has consumers; within a partition blocks keep their
// order, and the records of a block theirs.
//
// The package is not a message broker: no topics, no fan-out, no acknowledgement of single records, no network.
// Package queue/disk keeps queues on disk.
package queue

import (
	"context"
	"errors"
	"time"
)

// Errors that a Queue returns, to be told apart with errors.Is.
var (
	// ErrFull says that the queue has reached its bound, or that the disk is further behind than memory allows.
	ErrFull = errors.New("queue is full")
	// ErrTooLarge says that a record is longer than the queue takes. Trying again cannot help.
	ErrTooLarge = errors.New("record is too large")
	// ErrInvalid says that a record is not one non-empty line, or shorter than the queue takes. Trying again cannot help.
	ErrInvalid = errors.New("record is not a single line")
	// ErrClosed says that the queue, or this handle of it, was closed.
	ErrClosed = errors.New("queue is closed")
	// ErrLost says that the end of a queue came before the disk took records that had been put.
	ErrLost = errors.New("could not be written and are lost")
	// ErrNotPeeked says that Advance was called with no block in hand.
	ErrNotPeeked = errors.New("no block was peeked")
)

// Producer puts records on a queue. It is safe for use by several goroutines.
type Producer interface {
	// Put copies record into the open block and returns without I/O. The record reaches the disk when its block is
	// closed by size or age; until then it is lost if the process is killed. It returns ErrFull, ErrTooLarge, ErrInvalid
	// or ErrClosed, and then the record was not taken. A queue whose policy is to block waits for room before it is full.
	Put(record []byte) error

	// PutWait does the same, but waits for room instead of returning ErrFull. When ctx ends first, its cause is returned
	// and the record was not taken.
	PutWait(ctx context.Context, record []byte) error

	// PutSync takes record as PutWait does and returns after its block has been written and synced, for those who may
	// lose nothing, such as an audit; callers that wait at the same time share one sync. An error other than ErrTooLarge, ErrInvalid and ErrClosed means that it is not known
	// whether the record will be delivered.
	PutSync(ctx context.Context, record []byte) error

	// Flush returns after all records that were taken before the call have been written and synced.
	Flush(ctx context.Context) error
}

// Consumer takes blocks off its partition of a queue, oldest first. Its methods may be called from different goroutines,
// but there is only one block in hand.
type Consumer interface {
	// Peek waits for a block and returns the oldest one, the same one until Advance is called. The block's memory belongs
	// to the queue and is valid until then. It returns ErrClosed, the cause of ctx, or the error of a failed read.
	Peek(ctx context.Context) (Block, error)

	// Advance takes the peeked block off the queue. It returns ErrNotPeeked when there is none.
	Advance() error
}

// Queue is one named queue.
type Queue interface {
	Producer

	// Consumers splits the queue into n partitions, from 1 to MaxConsumers, and returns a consumer for each. What lies in
	// partitions of a wider split comes to them first. Consumers that were given out before must be used no more: two of
	// one partition would advance over each other's blocks.
	Consumers(n int) ([]Consumer, error)

	// Name is the name under which the queue was opened.
	Name() string

	// Stats returns the queue's numbers. It does no I/O.
	Stats() Stats

	// Close gives the handle back. When it is the last one of its queue, the open block is written and synced, and the
	// error says what could not be written. A second call does nothing.
	Close() error
}

// MaxConsumers is the most partitions of a queue. Each holds a few blocks in memory and two files open.
const MaxConsumers = 64

// Stats are the numbers of one queue. Those of the first group are current, the others count since the queue was opened.
type Stats struct {
	Depth       int64     // blocks on disk that were not delivered, damaged ones included until the reader meets them
	Records     int64     // records in those blocks
	Bytes       int64     // bytes of the queue's files, delivered blocks of files still in use included
	OpenRecords int64     // records that are still in memory, in the open block or in closed ones that wait for the disk
	Oldest      time.Time // when the oldest block that was not delivered was begun; zero for none. Exact while there is a consumer
	BadFiles    int64     // files that keep damaged stretches
	Full        bool      // the bound of the queue or the reserve of the disk has been reached

	Put         int64 // records taken
	Refused     int64 // records not taken because the queue was full
	Dropped     int64 // records given up, undelivered, to make room for newer ones
	Expired     int64 // records given up, undelivered, because of their age
	Bad         int64 // damaged stretches of files that were skipped and set aside
	Unreadable  int64 // files with blocks that were not delivered that are gone, or in whose place is no regular file
	Torn        int64 // incomplete last blocks of files, left by a crash in the middle of a write
	Recovered   int64 // blocks found on disk after a process that did not close the queue
	WriteErrors int64 // failed attempts to write or sync a block; the block is kept and tried again
}

// Add adds the numbers of another partition.
func (s *Stats) Add(o Stats) {
	s.Depth += o.Depth
	s.Records += o.Records
	s.Bytes += o.Bytes
	s.OpenRecords += o.OpenRecords
	if s.Oldest.IsZero() || !o.Oldest.IsZero() && o.Oldest.Before(s.Oldest) {
		s.Oldest = o.Oldest
	}
	s.BadFiles += o.BadFiles
	s.Full = s.Full || o.Full
	s.Put += o.Put
	s.Refused += o.Refused
	s.Dropped += o.Dropped
	s.Expired += o.Expired
	s.Bad += o.Bad
	s.Unreadable += o.Unreadable
	s.Torn += o.Torn
	s.Recovered += o.Recovered
	s.WriteErrors += o.WriteErrors
}
