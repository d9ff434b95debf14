package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/queue"
)

// dataFile is one file of blocks. Its numbers are guarded by store.mu.
type dataFile struct {
	key     fileKey
	size    int64     // end of the last block written, or of the file as it was found
	blocks  int64     // not delivered
	records int64     // in those blocks
	oldest  time.Time // of the first of those blocks when the file was opened
	newest  time.Time // of the last block
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
	inHand   bool      // a block is peeked
	shut     bool      // close has closed the files
	others   []fileKey // data files in whose place something else was at the start
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
	taken, err := removeMeta(dir)
	if err != nil {
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
		lastRun:    taken,
		opts:       o,
		open:       new(queue.Builder),
		pending:    make([]*queue.Builder, 0, maxPending),
		spare:      make([]*queue.Builder, 0, maxPending),
	}
	if err := s.clearHead(); err != nil {
		return nil, err
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

// clearHead makes room for the head where a folder or the like is in its place.
func (s *store) clearHead() error {
	path := filepath.Join(s.dir, headName)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() {
		return nil
	}
	aside := path + time.Now().UTC().Format(".20060102T150405.000000000")
	if err == nil {
		err = os.Rename(path, aside)
	}
	if err != nil {
		return err
	}
	s.stats.Unreadable++
	s.log.Error("the file that says what was delivered is no file: it is put aside, and all blocks that are there are delivered", "aside", aside)
	return nil
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// count reads all files that are not delivered and fills s.files.
func (s *store) count(h head) error {
	keys, others, err := listData(s.dir)
	if err != nil {
		return err
	}
	s.lastRun = max(s.lastRun, h.key.run)
	for _, k := range others {
		s.lastRun = max(s.lastRun, k.run) // the name is taken
		if k.compare(h.key) >= 0 {
			s.others = append(s.others, k)
			s.stats.Unreadable++
			s.log.Error("what is in the place of a queue file is no file: the blocks of that file are not delivered", "file", k.name())
		}
	}
	var full []fileKey
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
		if f.size > 0 {
			full = append(full, k)
		}
		s.files = append(s.files, f)
		s.stats.Depth += f.blocks
		s.stats.Records += f.records
		s.stats.Bytes += f.size
		if s.stats.Oldest.IsZero() {
			s.stats.Oldest = f.oldest
		}
	}
	if missing := missingFiles(h, slices.Concat(full, others)); missing > 0 {
		s.stats.Unreadable += int64(missing)
		s.log.Error("queue files are gone or empty that were not delivered: somebody removed or cut them, or the machine lost its power",
			"files", missing)
	}
	bad, err := badFiles(s.dir)
	if err != nil {
		return err
	}
	s.stats.BadFiles = int64(len(bad))
	if s.stats.Depth > 0 && !h.clean {
		s.stats.Recovered = s.stats.Depth
		s.log.Warn("the queue was not closed; its blocks were found again", "blocks", s.stats.Depth, "records", s.stats.Records)
	}
	return nil
}

// missingFiles returns how many data files are gone, or were emptied, although the head, or the numbers of the others, say that they
// were there: files are removed one after the other from the oldest on. keys are all that were found and hold anything.
func missingFiles(h head, keys []fileKey) int {
	keys = slices.DeleteFunc(keys, func(k fileKey) bool { return k.compare(h.key) < 0 })
	slices.SortFunc(keys, fileKey.compare)
	if h.clean {
		return max(0, h.left-len(keys))
	}
	missing := 0
	if h.off > 0 && !slices.Contains(keys, h.key) {
		missing = 1
		keys = slices.Insert(keys, 0, h.key)
	}
	for i := 1; i < len(keys); i++ {
		if keys[i].run == keys[i-1].run {
			missing += int(keys[i].num - keys[i-1].num - 1)
		}
	}
	return missing
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
	h := head{clean: true, left: len(s.files), off: s.off, key: fileKey{run: s.lastRun}}
	if len(s.files) > 0 {
		h.key = s.files[0].key
	}
	for _, k := range s.others {
		if k.compare(h.key) >= 0 {
			h.left++
		}
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

// ending tells whether close was called.
func (s *store) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
