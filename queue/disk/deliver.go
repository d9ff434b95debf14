package disk

import (
	"errors"
	"fmt"
	"io/fs"

	"weir/queue"
)

// empty tells whether nothing is left to deliver and nothing is on its way.
func (s *store) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats.Depth == 0 && s.stats.OpenRecords == 0
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
		if gone(err) {
			s.lose(f, size, blocks, records)
			continue
		}
		if err == nil && s.off >= size { // damage in the middle has cost blocks that are still in the count
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
	kept, err := keepBad(s.dir, f.key, s.file, s.off, to, limit)
	if err != nil {
		s.log.Warn("the damaged stretch could not be kept", "file", f.key.name(), "error", err)
	}
	s.mu.Lock()
	s.stats.BadFiles = kept
	s.mu.Unlock()
	s.off = to
}

// gone tells whether an error says that a data file was taken away, or something else put in its place.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFile) }

// lose steps over files[0], which is gone and had the given blocks that were not delivered. The caller holds readMu.
func (s *store) lose(f *dataFile, size, blocks, records int64) {
	s.mu.Lock()
	f.blocks -= blocks
	f.records -= records
	s.stats.Depth -= blocks
	s.stats.Records -= records
	s.stats.Unreadable++
	s.mu.Unlock()
	s.log.Error("a queue file is gone, or something else is in its place: its blocks are not delivered",
		"file", f.key.name(), "blocks", blocks, "records", records)
	s.off = size
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
	if gone(err) {
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
	// The head goes first: a file that it names and that is not there was not removed by us.
	if err := (head{key: fileKey{f.key.run, f.key.num + 1}}).write(s.headFile); err != nil {
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
