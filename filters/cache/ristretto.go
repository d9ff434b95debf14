package cache

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"

	"weir/elastic/query"
)

// ristrettoStore is a Store over ristretto, whose admission policy is good and whose writes are not safe by themselves
// (seen with 2.4.2):
//
//   - It knows an entry by a hash of its key only (dgraph-io/ristretto#30, #137). Here the whole key is kept beside the
//     entry and compared.
//   - Of two writes to a new key in a row the first one wins. Here a key is deleted before it is written, which the write
//     queue keeps in order: at worst the key is missing. Updates, which would evict nothing, do not come about that way.
//   - Its write queue bounds entries, not bytes. Here the bytes waiting in it are counted, and writes dropped beyond.
//   - Close is not safe under traffic. Here it waits for calls and keeps further ones out.
type ristrettoStore struct {
	cache    *ristretto.Cache[uint64, *ristrettoItem]
	limits   limits
	entries  atomic.Int64
	index    sync.Map     // hash of the key to *ristrettoItem, for Range: the library cannot list what it holds
	waiting  atomic.Int64 // bytes in the write queue
	queueMax int64

	mu     sync.RWMutex // held shared by calls, and alone by Close
	closed bool
}

type ristrettoItem struct {
	key   query.Key
	entry *Entry
}

func newRistretto(l limits, evicted func()) (*ristrettoStore, error) {
	s := &ristrettoStore{limits: l, queueMax: max(l.maxBytes/8, 1<<20)}
	// Ten counters for each entry, as its documentation advises, with answers of a kilobyte.
	counters := min(max(10*min(l.maxItems, l.maxBytes>>10), 1000), 50_000_000)
	var err error
	s.cache, err = ristretto.NewCache(&ristretto.Config[uint64, *ristrettoItem]{
		NumCounters: counters, MaxCost: l.maxBytes, BufferItems: 64, IgnoreInternalCost: true,
		// The key is a cryptographic hash already.
		KeyToHash: func(key uint64) (uint64, uint64) { return key, 0 },
		Cost: func(i *ristrettoItem) int64 { // called when the item leaves the write queue
			cost := l.cost(i.entry)
			s.waiting.Add(-cost)
			s.entries.Add(1)
			return cost
		},
		OnEvict: func(*ristretto.Item[*ristrettoItem]) { evicted() },
		OnExit: func(i *ristrettoItem) {
			if i != nil {
				s.entries.Add(-1)
				s.index.CompareAndDelete(hashOf(&i.key), i)
			}
		},
	})
	return s, err
}

func hashOf(key *query.Key) uint64 { return binary.LittleEndian.Uint64(key[:8]) }

func (s *ristrettoStore) Get(key query.Key) *Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil
	}
	i, ok := s.cache.Get(hashOf(&key))
	if !ok || i == nil || i.key != key {
		return nil
	}
	return i.entry
}

func (s *ristrettoStore) Set(key query.Key, e *Entry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return
	}
	h := hashOf(&key)
	s.cache.Del(h)
	cost := s.limits.cost(e)
	i := &ristrettoItem{key, e}
	if s.waiting.Add(cost) > s.queueMax {
		s.waiting.Add(-cost)
		return
	}
	s.index.Store(h, i) // before the library can let go of it
	if !s.cache.Set(h, i, 0) {
		s.index.CompareAndDelete(h, i)
		s.waiting.Add(-cost)
	}
}

func (s *ristrettoStore) Delete(key query.Key) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		s.cache.Del(hashOf(&key))
	}
}

func (s *ristrettoStore) Range(f func(key query.Key, e *Entry) bool) {
	s.index.Range(func(_, value any) bool {
		i, _ := value.(*ristrettoItem)
		// What is still in the write queue cannot be had yet, but it will be.
		return f(i.key, i.entry)
	})
}

func (s *ristrettoStore) Len() int { return int(max(0, s.entries.Load())) }

func (s *ristrettoStore) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return 0
	}
	return s.cache.MaxCost() - s.cache.RemainingCost()
}

func (s *ristrettoStore) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.cache.Close()
		s.index.Clear()
	}
}
