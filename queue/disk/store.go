package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/queue"
)

// retryDelay is the time between attempts to write a block that the disk refused.
const retryDelay = time.Second

// errReserve is what records are refused with while the disk has too little space.
var errReserve = fmt.Errorf("%w: its disk has less than the reserve free", queue.ErrFull)

// spaceCheck is the time between looks at the free space of a disk that has too little.
const spaceCheck = time.Second

// dataFile is one file of blocks. Its numbers are guarded by store.mu.
type dataFile struct {
	key     fileKey
	size    int64     // end of the last block written, or of the file as it was found
	blocks  int64     // not delivered
	records int64     // in those blocks
	oldest  time.Time // of the first of those blocks when the file was opened
	newest  time.Time // of the last block
}

// signal is what those wait for who wait for a change of a queue, in any of its partitions.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // closed at the next change; nil while nobody waits
}

// next returns a channel that the next change will close.
func (g *signal) next() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ch == nil {
		g.ch = make(chan struct{})
	}
	return g.ch
}

// broadcast wakes all who wait.
func (g *signal) broadcast() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ch != nil {
		close(g.ch)
		g.ch = nil
	}
}

// store is one partition of a queue, shared by the queue's handles.
//
// Two locks part the hot path from I/O: mu is held for copying a record and for counting, never over a system call;
// readMu is held over reading and removing files. Who needs both takes readMu first.
type store struct {
	name string
	dir  string
	log  *slog.Logger

	changed *signal                         // of the queue
	turn    *atomic.Uint64                  // of the queue: raised with each block that is closed
	free    func(dir string) (int64, error) // bytes that the disk of a folder has for us

	quit chan struct{} // closed by close
	done chan struct{} // closed when the committer has ended
	wake chan struct{} // holds one token: the committer has something to look at
	age  *time.Timer   // runs while the open block holds records

	mu           sync.Mutex
	opts         Options
	reopen       bool // options changed that the current writer was built with
	closed       bool
	stopped      bool // the committer has ended
	open         *queue.Builder
	pending      []*queue.Builder // closed blocks, oldest first
	spare        []*queue.Builder
	pendingBytes int64
	urgent       bool   // close the open block as soon as the committer is free
	sealed       uint64 // blocks closed; the open block is number sealed+1
	written      uint64 // blocks written
	synced       uint64 // blocks synced
	syncUpTo     uint64 // the number up to which somebody waits for a sync
	unsafeFrom   uint64 // blocks unsafeFrom+1 to unsafeTo were written, but their sync failed
	unsafeTo     uint64
	writeErr     error // of the last attempt to write, nil after a good one
	files        []*dataFile
	writing      fileKey // file that the committer may append to; the zero key if none
	short        bool    // the disk has less than the reserve
	stats        queue.Stats

	readMu   sync.Mutex
	off      int64 // offset in files[0] of the next block to deliver
	headFile *os.File
	file     *os.File // files[0], if it is open
	scan     scanner
	inHand   bool // a block is peeked
	shut     bool // close has closed the files
	hand     queue.Block
	handKey  fileKey
	handEnd  int64

	// Owned by the committer.
	w          *writer
	lastRun    int64
	unsynced   int
	compressor queue.Compressor
	syncTimer  *time.Timer
	spaceTimer *time.Timer // runs while the disk has less than the reserve
	ageTimer   *time.Timer // runs until the oldest file may be too old
}

// openStore opens the partition in dir of the queue name, counts its backlog and starts its committer. changed and turn are
// those of the queue.
func openStore(dir, name string, o Options, changed *signal, turn *atomic.Uint64, log *slog.Logger) (*store, error) {
	s, err := newStore(dir, name, o, changed, turn, log)
	if err != nil {
		return nil, fmt.Errorf("open queue %s in %s: %w", name, dir, err)
	}
	go s.commit()
	return s, nil
}

func newStore(dir, name string, o Options, changed *signal, turn *atomic.Uint64, log *slog.Logger) (*store, error) {
	o, err := o.normalize()
	if err != nil {
		return nil, err
	}
	if strings.Contains(dir, "%") {
		return nil, errors.New("a '%' in the path is not possible: go-diskqueue takes it for a format")
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	if err := removeMeta(dir); err != nil {
		return nil, err
	}
	s := &store{
		name:       name,
		dir:        dir,
		log:        log.With("queue", name),
		changed:    changed,
		turn:       turn,
		free:       freeSpace,
		quit:       make(chan struct{}),
		done:       make(chan struct{}),
		wake:       make(chan struct{}, 1),
		age:        stoppedTimer(),
		syncTimer:  stoppedTimer(),
		spaceTimer: stoppedTimer(),
		ageTimer:   stoppedTimer(),
		opts:       o,
		open:       new(queue.Builder),
		pending:    make([]*queue.Builder, 0, maxPending),
		spare:      make([]*queue.Builder, 0, maxPending),
	}
	h, err := readHead(dir)
	if err != nil {
		return nil, err
	}
	if err := s.count(h); err != nil {
		return nil, err
	}
	s.headFile, err = os.OpenFile(filepath.Join(dir, headName), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	h.clean = false
	if err = h.write(s.headFile); err == nil {
		err = s.removeDelivered()
	}
	if err != nil {
		return nil, errors.Join(err, s.headFile.Close())
	}
	return s, nil
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// count reads all files that are not delivered and fills s.files.
func (s *store) count(h head) error {
	keys, folders, err := listData(s.dir)
	if err != nil {
		return err
	}
	s.lastRun = h.key.run
	for _, k := range folders {
		s.lastRun = max(s.lastRun, k.run) // the name is taken
		s.stats.Bad++
		s.log.Error("a folder is in the place of a queue file: what was in the file is lost", "folder", k.name())
	}
	for _, k := range keys {
		s.lastRun = max(s.lastRun, k.run)
		if k.compare(h.key) < 0 {
			// Delivered; the process ended before it removed the file.
			if err := removeData(s.dir, k); err != nil {
				return err
			}
			continue
		}
		from := int64(0)
		if k == h.key {
			from = h.off
			s.off = h.off
		}
		f, err := s.countFile(k, from)
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
		s.stats.Depth += f.blocks
		s.stats.Records += f.records
		s.stats.Bytes += f.size
		if s.stats.Oldest.IsZero() {
			s.stats.Oldest = f.oldest
		}
	}
	if s.stats.BadFiles, err = countBad(s.dir); err != nil {
		return err
	}
	if s.stats.Depth > 0 && !h.clean {
		s.stats.Recovered = s.stats.Depth
		s.log.Warn("the queue was not closed; its blocks were found again", "blocks", s.stats.Depth, "records", s.stats.Records)
	}
	return nil
}

func (s *store) countFile(k fileKey, from int64) (*dataFile, error) {
	file, size, err := openData(s.dir, k)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f := &dataFile{key: k, size: size}
	sc := scanner{r: file, size: size}
	_, err = sc.each(from, func(b queue.Block) bool {
		if f.blocks == 0 {
			f.oldest = b.Time
		}
		f.blocks++
		f.records += int64(b.Count)
		f.newest = b.Time
		return true
	}, func() {})
	return f, err
}

// reconfigure gives an open queue other options.
func (s *store) reconfigure(o Options) error {
	o, err := o.normalize()
	if err != nil {
		return fmt.Errorf("reconfigure queue %s: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reopen = s.reopen || o.MaxBytesPerFile != s.opts.MaxBytesPerFile || o.largestMessage() != s.opts.largestMessage()
	s.opts = o
	s.short = s.short && o.Reserve > 0
	s.changed.broadcast()
	s.wakeCommitter() // it looks at the ages
	return nil
}

// put copies record into the open block and returns the number of that block.
func (s *store) put(record []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, queue.ErrClosed
	}
	if len(record) > s.opts.MaxRecord {
		return 0, fmt.Errorf("%w: %d bytes, the limit is %d", queue.ErrTooLarge, len(record), s.opts.MaxRecord)
	}
	if len(record) < s.opts.MinRecord {
		return 0, fmt.Errorf("%w: %d bytes, the least is %d", queue.ErrInvalid, len(record), s.opts.MinRecord)
	}
	n := len(record) + 1
	if s.short {
		return 0, errReserve
	}
	if s.opts.Full != DropOldest {
		// The record may be the first of a block that follows the open one, so two blocks' overhead is reckoned with.
		const overhead = 2 * (queue.HeaderSize + prefixSize)
		if s.stats.Bytes+s.pendingBytes+int64(s.open.Len()+n+overhead) > s.opts.MaxBytes {
			return 0, queue.ErrFull
		}
	}
	if s.open.Count() > 0 && (s.open.Len()+n > s.opts.BlockSize || s.open.Count() >= s.opts.BlockRecords) {
		if len(s.pending) == maxPending {
			return 0, queue.ErrFull
		}
		s.seal()
	}
	first := s.open.Count() == 0
	if err := s.open.Append(record); err != nil {
		return 0, err
	}
	if first {
		s.open.Time = time.Now()
		s.age.Reset(s.opts.BlockAge)
	}
	number := s.sealed + 1
	if s.open.Len() >= s.opts.BlockSize || s.open.Count() >= s.opts.BlockRecords {
		if len(s.pending) < maxPending {
			s.seal()
		} else {
			s.urgent = true // the committer closes it when it has caught up
		}
	}
	s.stats.Put++
	s.stats.OpenRecords++
	return number, nil
}

// seal closes the open block and hands it to the committer. The caller holds mu and knows that there is room.
func (s *store) seal() {
	s.age.Stop()
	s.pending = append(s.pending, s.open)
	s.pendingBytes += int64(s.open.Len()) + prefixSize
	s.sealed++
	s.turn.Add(1)
	s.urgent = false
	if last := len(s.spare) - 1; last >= 0 {
		s.open = s.spare[last]
		s.spare = s.spare[:last]
	} else {
		s.open = new(queue.Builder)
	}
	s.wakeCommitter()
}

func (s *store) wakeCommitter() {
	select {
	case s.wake <- struct{}{}:
	default: // there is a token already
	}
}

// taken returns the number of the newest block that has a record.
func (s *store) taken() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open.Count() > 0 {
		return s.sealed + 1
	}
	return s.sealed
}

// flush waits until block number is synced.
func (s *store) flush(ctx context.Context, stop <-chan struct{}, number uint64) error {
	s.mu.Lock()
	failures := s.stats.WriteErrors // only those after the call count
	if s.synced < number {
		s.syncUpTo = max(s.syncUpTo, number)
		s.urgent = s.urgent || number > s.sealed
		s.wakeCommitter()
	}
	s.mu.Unlock()
	for {
		next := s.changed.next() // before the look, so that no change in between is missed
		s.mu.Lock()
		synced, err, stopped := s.synced, s.writeErr, s.stopped
		failed := s.stats.WriteErrors > failures && err != nil
		unsafe := number > s.unsafeFrom && number <= s.unsafeTo
		s.mu.Unlock()
		switch {
		case unsafe:
			return fmt.Errorf("queue %s: the block was written, but could not be synced", s.name)
		case synced >= number:
			return nil
		case failed:
			return fmt.Errorf("write queue %s: %w", s.name, err)
		case stopped:
			return queue.ErrClosed
		}
		select {
		case <-next:
		case <-stop:
			return queue.ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// commit writes closed blocks until close is called and nothing is left. It sleeps while there is nothing to do.
func (s *store) commit() {
	defer close(s.done)
	for {
		s.expire()
		block := s.next()
		if block == nil {
			select {
			case <-s.wake:
			case <-s.age.C:
				s.mu.Lock()
				s.urgent = s.open.Count() > 0
				s.mu.Unlock()
			case <-s.syncTimer.C:
				s.report(s.sync())
			case <-s.spaceTimer.C:
				s.checkSpace(0)
			case <-s.ageTimer.C:
			case <-s.quit:
				if s.finish() {
					return
				}
			}
			continue
		}
		err := s.write(block)
		s.report(err)
		if err == nil {
			continue
		}
		select {
		case <-time.After(retryDelay):
		case <-s.quit:
			// The last chance was this attempt or, if close came after it, is one more.
			if s.report(s.write(block)) != nil {
				s.stop()
				return
			}
		}
	}
}

// next returns the oldest closed block, closing the open one if that is wanted, or nil. It syncs what somebody waits for.
func (s *store) next() *queue.Builder {
	s.mu.Lock()
	if len(s.pending) == 0 && s.open.Count() > 0 && (s.urgent || s.closed) {
		s.seal()
	}
	var block *queue.Builder
	if len(s.pending) > 0 {
		block = s.pending[0]
	}
	wanted := block == nil && s.syncUpTo > s.synced && s.written > s.synced
	s.mu.Unlock()
	if wanted {
		s.report(s.sync())
	}
	return block
}

// finish ends the committer if nothing is left to write.
func (s *store) finish() bool {
	s.mu.Lock()
	idle := len(s.pending) == 0 && s.open.Count() == 0
	s.mu.Unlock()
	if idle {
		s.report(s.sync())
		s.stop()
	}
	return idle
}

// stop closes what the committer owns and tells those who wait that it has ended.
func (s *store) stop() {
	if err := s.closeWriter(); err != nil {
		s.report(err)
	}
	s.mu.Lock()
	s.stopped = true
	s.changed.broadcast()
	s.mu.Unlock()
}

// report keeps the outcome of the last attempt to write for those who wait.
func (s *store) report(err error) error {
	s.mu.Lock()
	fresh := err != nil && s.writeErr == nil
	s.writeErr = err
	if err != nil {
		s.stats.WriteErrors++
	}
	s.changed.broadcast()
	s.mu.Unlock()
	if fresh {
		s.log.Error("the queue cannot be written; trying again each second", "error", err)
	}
	return err
}

// write brings the oldest closed block to disk. After an error the block is kept, and a part of it, or all, may be in a file
// that is not written again: it can be delivered twice.
func (s *store) write(block *queue.Builder) error {
	data := block.Seal()
	taken := int64(len(data)) + prefixSize
	s.mu.Lock()
	o, reopen := s.opts, s.reopen
	s.reopen = false
	s.mu.Unlock()
	if o.Codec == queue.CodecZstd {
		var err error
		if data, err = s.compressor.Compress(data); err != nil {
			return err
		}
	}
	size := int64(len(data)) + prefixSize
	s.checkSpace(size)
	if o.Full == DropOldest {
		if err := s.makeRoom(size, o.MaxBytes); err != nil {
			return err
		}
	}
	if reopen {
		if err := errors.Join(s.sync(), s.closeWriter()); err != nil {
			return err
		}
	}
	if s.w == nil {
		s.lastRun++
		s.w = newWriter(s.dir, s.lastRun, o, s.log)
	}
	if err := s.w.put(data); err != nil {
		return errors.Join(err, s.closeWriter())
	}
	s.unsynced++
	s.mu.Lock()
	wanted := o.Sync == SyncBlock || s.syncUpTo > s.synced && s.written+1 >= s.syncUpTo
	s.mu.Unlock()
	var err error
	if wanted {
		err = s.w.sync()
	} else if s.unsynced == 1 && o.Sync == SyncInterval {
		s.syncTimer.Reset(o.SyncInterval)
	}

	s.mu.Lock()
	s.writing = s.w.key
	f := s.lastFile()
	f.size = s.w.pos
	f.blocks++
	f.records += int64(block.Count())
	f.newest = block.Time
	if f.oldest.IsZero() {
		f.oldest = block.Time
	}
	if s.stats.Depth == 0 {
		s.stats.Oldest = block.Time
	}
	s.stats.Depth++
	s.stats.Records += int64(block.Count())
	s.stats.Bytes += size
	if err != nil {
		s.mu.Unlock()
		return errors.Join(err, s.closeWriter())
	}
	s.written++
	s.stats.OpenRecords -= int64(block.Count())
	s.pendingBytes -= taken
	s.pending = s.pending[:copy(s.pending, s.pending[1:])]
	keep := len(s.spare) < maxPending && block.Cap() <= 2*o.BlockSize
	if keep {
		block.Reset()
		s.spare = append(s.spare, block)
	}
	if wanted {
		s.markSynced()
	}
	s.mu.Unlock()
	return nil
}

// checkSpace looks whether the disk has the reserve free when size bytes more are written. A queue that drops the oldest
// gives up files for it.
func (s *store) checkSpace(size int64) {
	s.mu.Lock()
	o, was := s.opts, s.short
	s.mu.Unlock()
	short := false
	for o.Reserve > 0 {
		free, err := s.free(s.dir)
		if err != nil {
			s.log.Warn("the free space of the disk is not known", "error", err)
			break
		}
		if short = free-size < o.Reserve; !short || o.Full != DropOldest {
			break
		}
		dropped, err := s.giveUp("the disk has less than the reserve free; the oldest records of the queue are given up", &s.stats.Dropped,
			func(*dataFile) bool { return true })
		if err != nil || !dropped {
			break
		}
	}
	if short {
		s.spaceTimer.Reset(spaceCheck)
	}
	if short == was {
		return
	}
	if short {
		s.log.Error("the disk has less than the reserve free; the queue takes no records until it has more", "reserve", o.Reserve)
	} else {
		s.log.Info("the disk has the reserve free again")
	}
	s.mu.Lock()
	s.short = short
	s.changed.broadcast()
	s.mu.Unlock()
}

// expire gives up files in which even the youngest block is too old.
func (s *store) expire() {
	s.mu.Lock()
	most := s.opts.MaxAge
	due := most > 0 && len(s.files) > 0 && time.Since(s.files[0].newest) >= most
	writing := due && s.files[0].key == s.writing
	s.mu.Unlock()
	if writing {
		if err := errors.Join(s.sync(), s.closeWriter()); err != nil {
			s.report(err)
		}
	}
	for due {
		var err error
		due, err = s.giveUp("records of the queue are given up because of their age", &s.stats.Expired,
			func(f *dataFile) bool { return time.Since(f.newest) >= most })
		if err != nil {
			s.report(err)
			break
		}
	}
	if most == 0 {
		s.ageTimer.Stop()
		return
	}
	s.mu.Lock()
	next := most
	if len(s.files) > 0 {
		next = max(time.Second, most-time.Since(s.files[0].newest))
	}
	s.mu.Unlock()
	s.ageTimer.Reset(next)
}

// giveUp removes files[0] with what was not delivered of it, if it is not being written and which agrees, and adds the
// records to count. It returns false when nothing was removed.
func (s *store) giveUp(why string, count *int64, which func(f *dataFile) bool) (bool, error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	s.mu.Lock()
	if len(s.files) == 0 || s.files[0].key == s.writing || !which(s.files[0]) {
		s.mu.Unlock()
		return false, nil
	}
	f := s.files[0]
	dropped := f.records
	if s.inHand && s.handKey == f.key {
		dropped -= int64(s.hand.Count) // it is being delivered
	}
	*count += dropped
	s.mu.Unlock()
	if dropped > 0 {
		s.log.Warn(why, "records", dropped)
	}
	return true, s.remove(f)
}

// lastFile returns the entry of the file being written. The caller holds mu.
func (s *store) lastFile() *dataFile {
	if n := len(s.files); n > 0 && s.files[n-1].key == s.writing {
		return s.files[n-1]
	}
	f := &dataFile{key: s.writing}
	s.files = append(s.files, f)
	return f
}

// markSynced notes that all written blocks are durable. The caller holds mu.
func (s *store) markSynced() {
	s.synced = s.written
	s.unsynced = 0
	s.syncTimer.Stop()
}

// sync makes written blocks durable.
func (s *store) sync() error {
	if s.w == nil || s.unsynced == 0 {
		return nil
	}
	if err := s.w.sync(); err != nil {
		return errors.Join(err, s.closeWriter())
	}
	s.mu.Lock()
	s.markSynced()
	s.mu.Unlock()
	return nil
}

// closeWriter ends the run. Blocks that were written but could not be synced cannot be written again, because their memory
// has gone to other blocks; they are read as long as the machine runs, and who waits for them hears that they are not safe.
func (s *store) closeWriter() error {
	if s.w == nil {
		return nil
	}
	var syncErr error
	if s.unsynced > 0 {
		syncErr = s.w.sync()
	}
	err := s.w.close()
	s.w = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = fileKey{}
	if syncErr != nil {
		s.unsafeFrom, s.unsafeTo = s.synced, s.written
	}
	s.markSynced()
	return err
}

// makeRoom removes the oldest files until size bytes more are within limit.
func (s *store) makeRoom(size, limit int64) error {
	for {
		removed, err := s.giveUp("the queue is full; its oldest records are given up", &s.stats.Dropped,
			func(*dataFile) bool { return s.stats.Bytes+size > limit })
		if err != nil || !removed {
			return err
		}
	}
}

// close writes what is left, ends the committer and closes the files.
func (s *store) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return nil
	}
	s.closed = true
	s.changed.broadcast()
	s.mu.Unlock()
	close(s.quit)
	<-s.done

	s.readMu.Lock()
	defer s.readMu.Unlock()
	s.inHand, s.shut = false, true
	err := s.removeDelivered()
	s.mu.Lock()
	h := head{clean: true, off: s.off, key: fileKey{run: s.lastRun}}
	if len(s.files) > 0 {
		h.key = s.files[0].key
	}
	if lost := s.stats.OpenRecords; lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d records %w", lost, queue.ErrLost))
	}
	err = errors.Join(err, s.writeErr)
	s.mu.Unlock()
	err = errors.Join(err, s.closeFile(), h.write(s.headFile), s.headFile.Sync(), s.headFile.Close())
	if err != nil {
		return fmt.Errorf("close queue %s: %w", s.name, err)
	}
	return nil
}

func (s *store) snapshot() queue.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	if stats.Depth == 0 {
		stats.Oldest = time.Time{}
	}
	stats.Full = s.short || s.opts.Full != DropOldest &&
		stats.Bytes+s.pendingBytes+int64(s.open.Len()+s.opts.BlockSize) > s.opts.MaxBytes
	return stats
}

// hurry has the open block written as soon as the disk takes it. It tells whether records are still in memory.
func (s *store) hurry() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stats.OpenRecords == 0 || s.stopped {
		return false
	}
	s.urgent = s.open.Count() > 0
	s.wakeCommitter()
	return true
}

// empty tells whether nothing is left to deliver and nothing is on its way.
func (s *store) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats.Depth == 0 && s.stats.OpenRecords == 0
}

// ending tells whether close was called.
func (s *store) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// readNext takes the oldest block in hand, if there is one.
func (s *store) readNext() (queue.Block, bool, error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	if s.shut {
		return queue.Block{}, false, queue.ErrClosed
	}
	for !s.inHand {
		if err := s.removeDelivered(); err != nil {
			return queue.Block{}, false, err
		}
		s.mu.Lock()
		if len(s.files) == 0 || s.files[0].blocks == 0 {
			s.mu.Unlock()
			return queue.Block{}, false, nil
		}
		f := s.files[0]
		size, blocks, records := f.size, f.blocks, f.records
		s.mu.Unlock()

		err := s.openFirst(f)
		if errors.Is(err, fs.ErrNotExist) || s.off >= size {
			// The file was taken away, or damage in the middle has cost blocks that are still in the count.
			s.skip(f, size, blocks, records)
			continue
		}
		if err != nil {
			return queue.Block{}, false, err
		}
		s.scan.size = size
		b, end, err := s.scan.at(s.off)
		if errors.Is(err, queue.ErrDamaged) {
			to, err := s.scan.find(s.off + 1)
			if err != nil {
				return queue.Block{}, false, err
			}
			if to == size {
				s.skip(f, size, blocks, records)
			} else {
				s.skip(f, to, 0, 0)
			}
			continue
		}
		if err != nil {
			return queue.Block{}, false, err
		}
		s.inHand, s.hand, s.handKey, s.handEnd = true, b, f.key, end
		s.mu.Lock()
		s.stats.Oldest = b.Time
		s.mu.Unlock()
	}
	return s.hand, true, nil
}

// skip steps over the damaged stretch of files[0] from s.off to to, which had the given undelivered blocks if they are
// known, and keeps a copy of it. The caller holds readMu.
func (s *store) skip(f *dataFile, to, blocks, records int64) {
	s.mu.Lock()
	f.blocks -= blocks
	f.records -= records
	s.stats.Depth -= blocks
	s.stats.Records -= records
	limit := s.opts.MaxBytes / 8
	if to > s.off {
		s.stats.Bad++
	}
	s.mu.Unlock()
	if to <= s.off {
		return
	}
	s.log.Error("damage in a queue file; the stretch is stepped over and kept as a .bad file",
		"file", f.key.name(), "from", s.off, "to", to)
	if s.file != nil {
		kept, err := keepBad(s.dir, f.key, s.file, s.off, to, limit)
		if err != nil {
			s.log.Warn("the damaged stretch could not be kept", "file", f.key.name(), "error", err)
		}
		s.mu.Lock()
		s.stats.BadFiles = kept
		s.mu.Unlock()
	}
	s.off = to
}

// advance takes the block in hand off the queue.
func (s *store) advance() error {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	if s.shut {
		return queue.ErrClosed
	}
	if !s.inHand {
		return queue.ErrNotPeeked
	}
	s.inHand = false
	s.mu.Lock()
	blockSize := s.opts.BlockSize
	if len(s.files) == 0 || s.files[0].key != s.handKey {
		s.mu.Unlock() // the file was given up meanwhile, and was counted then
		return nil
	}
	f := s.files[0]
	f.blocks--
	f.records -= int64(s.hand.Count)
	s.stats.Depth--
	s.stats.Records -= int64(s.hand.Count)
	s.mu.Unlock()
	s.off = s.handEnd
	if cap(s.scan.buf) > 2*blockSize {
		s.scan.buf = nil // one large record must not cost memory for ever
	}
	s.scan.decoder.Shrink(2 * blockSize)
	if err := (head{key: f.key, off: s.off}).write(s.headFile); err != nil {
		return fmt.Errorf("advance queue %s: %w", s.name, err)
	}
	return s.removeDelivered()
}

// removeDelivered removes the oldest files as long as they have nothing left to deliver. The caller holds readMu or is the
// only one who has the store.
func (s *store) removeDelivered() error {
	for {
		s.mu.Lock()
		if len(s.files) == 0 || s.files[0].blocks > 0 || s.files[0].key == s.writing {
			s.mu.Unlock()
			return nil
		}
		f := s.files[0]
		s.mu.Unlock()
		if s.off < f.size {
			if err := s.judgeTail(f); err != nil {
				return err
			}
		}
		if err := s.remove(f); err != nil {
			return err
		}
	}
}

// judgeTail looks at the bytes behind the last block of files[0]: the beginning of a block that a crash cut off is dropped,
// anything else is damage.
func (s *store) judgeTail(f *dataFile) error {
	err := s.openFirst(f)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.scan.size = f.size
	if !s.scan.torn(s.off) {
		s.skip(f, f.size, 0, 0)
		return nil
	}
	s.mu.Lock()
	s.stats.Torn++
	s.mu.Unlock()
	s.log.Warn("the last block of a queue file is incomplete and is dropped", "file", f.key.name(), "bytes", f.size-s.off)
	return nil
}

// remove removes files[0] and goes to the next one. The caller holds readMu.
func (s *store) remove(f *dataFile) error {
	if err := s.closeFile(); err != nil {
		return err
	}
	if err := removeData(s.dir, f.key); err != nil {
		return err
	}
	s.mu.Lock()
	s.files = s.files[1:]
	if len(s.files) > 0 {
		s.stats.Oldest = s.files[0].oldest
	}
	s.stats.Depth -= f.blocks
	s.stats.Records -= f.records
	s.stats.Bytes -= f.size
	s.changed.broadcast()
	s.mu.Unlock()
	s.off = 0
	return nil
}

// openFirst opens files[0], f, if it is not open. The caller holds readMu.
func (s *store) openFirst(f *dataFile) error {
	if s.file != nil {
		return nil
	}
	file, _, err := openData(s.dir, f.key)
	if err != nil {
		return err
	}
	s.file, s.scan.r = file, file
	return nil
}

func (s *store) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
