package disk

import (
	"errors"
	"fmt"
	"time"

	"weir/queue"
)

// errReserve is what records are refused with while the disk has too little space.
var errReserve = fmt.Errorf("%w: its disk has less than the reserve free", queue.ErrFull)

// spaceCheck is the time between looks at the free space of a disk that has too little.
const spaceCheck = time.Second

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
