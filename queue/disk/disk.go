// Package disk keeps named queues on disk. It is the only importer of nsqio/go-diskqueue.
//
// go-diskqueue frames messages, appends them to numbered files and rolls those. The rest is done here, because its reader
// acknowledges a message by handing it out, gives up a file for one wrong length, loses what its position file had not
// seen, and takes a file that it had read to the end for a damaged one when the writer rolls (nsqio/go-diskqueue#24, #28,
// #29, #31, #42). So a queue writes blocks of package queue through go-diskqueue and reads the files by itself:
//
//   - Each time a queue is opened it writes under a new run number, which is go-diskqueue's name for that run. Files of
//     earlier runs are only read. go-diskqueue's position file is never read and may be missing or stale.
//   - The files are the truth. Opening a queue reads the backlog once, counts the intact blocks and steps over what is
//     damaged; a damaged stretch costs the blocks in it, never the rest of its file, and is kept as a .bad file.
//   - The place of the reader is a 40-byte file, rewritten at each advance without a sync. If it is lost or old, blocks are
//     delivered again; none is skipped.
//   - A file is removed when all of its blocks were delivered, when it is too old, or to make room.
//   - A queue that is split among several consumers has a partition for each, which is a folder with files of its own; the
//     next block goes to the next partition.
//
// Several processes may share a data path: each locks an instance folder of its own, see AcquireInstance and Adopter.
//
// What it trades: one copy of each block is written and synced at a time, and at most a few wait in memory behind it, so a
// disk that cannot follow shows as ErrFull and not as growing memory. Locks are flock(2) locks, which need a file system
// that has them; network file systems may not.
package disk

import (
	"fmt"
	"math"
	"time"

	"weir/queue"
)

// Policy says what a full queue does with a record.
type Policy uint8

const (
	// Refuse returns queue.ErrFull, so that the caller decides: drop and count, wait (PutWait), or tell its own client.
	Refuse Policy = iota
	// DropOldest gives up the oldest file with all of its undelivered blocks.
	DropOldest
	// Wait lets Put wait for room, at most Options.FullWait, and then refuse: whoever puts, slows down.
	Wait
)

// Sync says when written blocks are synced, which decides what a machine that loses its power forgets. The end of a process
// loses nothing that was written. PutSync and Flush sync regardless.
type Sync uint8

const (
	// SyncBlock syncs each block when it is written.
	SyncBlock Sync = iota
	// SyncInterval syncs Options.SyncInterval after the first block that was not.
	SyncInterval
	// SyncNever leaves it to the operating system.
	SyncNever
)

// Options shape a queue. A zero field means its default.
type Options struct {
	// BlockSize closes a block when the next record would make it longer, in bytes. Default 1 MiB: long enough that a sync
	// a block costs nothing, short enough to be one bulk request.
	BlockSize int
	// BlockRecords closes a block at this number of records. Default 10000.
	BlockRecords int
	// BlockAge closes a block this long after its first record; it is what a kill of the process can lose. Default 100 ms.
	BlockAge time.Duration
	// MinRecord and MaxRecord bound the length of a record in bytes. Defaults 1 and 16 MiB, or MaxBytes/8 if that is less.
	MinRecord, MaxRecord int
	// MaxBytesPerFile rolls the file. Small files give their space back sooner. Default 64 MiB; never more than MaxBytes/4.
	MaxBytesPerFile int64
	// MaxBytes bounds the files of the queue. Damaged stretches that are kept for inspection take at most another eighth.
	// Default 1 GiB.
	MaxBytes int64
	// Full says what a full queue does. Default Refuse.
	Full Policy
	// FullWait bounds the policy Wait. Default 5 s.
	FullWait time.Duration
	// MaxAge gives up blocks of this age with the file that they are in, when the youngest in it has that age. Default: none.
	MaxAge time.Duration
	// Reserve is what the queue leaves free on its disk, in bytes; below it the queue counts as full. Default: none.
	Reserve int64
	// Sync says when written blocks are synced. Default SyncBlock.
	Sync Sync
	// SyncInterval is how long written blocks may wait for a sync if Sync is SyncInterval. Default 2 s.
	SyncInterval time.Duration
	// Codec is how blocks are written. Blocks of any codec are read. Default queue.CodecNone.
	Codec queue.Codec
}

const (
	// prefixSize is the length field that go-diskqueue writes before each message.
	prefixSize = 4
	// maxPending is the number of closed blocks that may wait in memory for the disk. A sync that takes a second now and
	// then must not refuse records; a disk that has stopped must not take the memory.
	maxPending = 8
)

// normalize fills in defaults and refuses what cannot work.
func (o Options) normalize() (Options, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.BlockSize == 0 {
		o.BlockSize = int(min(1<<20, o.MaxBytes/8))
	}
	if o.BlockRecords == 0 {
		o.BlockRecords = 10000
	}
	if o.BlockAge == 0 {
		o.BlockAge = 100 * time.Millisecond
	}
	if o.MinRecord == 0 {
		o.MinRecord = 1
	}
	if o.MaxRecord == 0 {
		o.MaxRecord = int(min(16<<20, o.MaxBytes/8))
	}
	if o.MaxBytesPerFile == 0 {
		o.MaxBytesPerFile = 64 << 20
	}
	o.MaxBytesPerFile = min(o.MaxBytesPerFile, o.MaxBytes/4)
	if o.SyncInterval == 0 {
		o.SyncInterval = 2 * time.Second
	}
	if o.FullWait == 0 {
		o.FullWait = 5 * time.Second
	}
	if o.BlockSize < 0 || o.BlockRecords < 0 || o.BlockAge < 0 || o.MinRecord < 0 || o.MaxRecord < 0 ||
		o.MaxBytesPerFile < 0 || o.MaxBytes < 0 || o.FullWait < 0 || o.MaxAge < 0 || o.Reserve < 0 || o.SyncInterval < 0 {
		return o, fmt.Errorf("queue options %+v: a negative value", o)
	}
	if o.MinRecord > o.MaxRecord {
		return o, fmt.Errorf("the smallest record, %d bytes, is larger than the largest, %d bytes", o.MinRecord, o.MaxRecord)
	}
	if o.Full > Wait || o.Sync > SyncNever || o.Codec > queue.CodecZstd {
		return o, fmt.Errorf("queue options: policy %d for a full queue, sync %d, codec %d: not all are known", o.Full, o.Sync, o.Codec)
	}
	// A quarter, so that the file being written, which stays until it rolls, can never fill the queue alone.
	if largest := o.largestMessage(); largest > o.MaxBytes/4 || largest > math.MaxInt32 {
		return o, fmt.Errorf("a block may take %d bytes, and a quarter of %d bytes is the most that it may", largest, o.MaxBytes)
	}
	return o, nil
}

// largestMessage is the space that the largest possible block takes in a file.
func (o Options) largestMessage() int64 {
	return prefixSize + max(int64(o.BlockSize), queue.HeaderSize+int64(o.MaxRecord)+1)
}

// ValidName returns an error if name cannot name a queue: a name becomes a folder and a metric label, so it is 1 to 128
// letters, digits, '.', '_' and '-' of ASCII, and begins with a letter, a digit or '_'.
func ValidName(name string) error {
	if len(name) == 0 || len(name) > 128 {
		return fmt.Errorf("queue name %q: %d bytes, want 1 to 128", name, len(name))
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
		if !alnum && (i == 0 || c != '.' && c != '-') {
			return fmt.Errorf("queue name %q: character %q at %d: use letters, digits, '_', and '.' or '-' after the first", name, c, i)
		}
	}
	return nil
}
