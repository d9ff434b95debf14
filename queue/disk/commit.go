package disk

import (
	"errors"
	"time"

	"weir/queue"
)

// retryDelay is the time between attempts to write a block that the disk refused.
const retryDelay = time.Second

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
