package cache

import (
	"sync"

	"github.com/maypok86/otter/v2"

	"weir/elastic/query"
)

// otterStore is a Store over otter. Entries are not given to otter's expiry: it would need a goroutine, and an entry that
// is too old is still good as an answer when the cluster fails.
type otterStore struct {
	cache *otter.Cache[query.Key, *Entry]

	// mu keeps a Set that has begun from outliving Close. Reads do without it.
	mu     sync.RWMutex
	closed bool
}

func newOtter(l limits, evicted func()) (*otterStore, error) {
	c, err := otter.New(&otter.Options[query.Key, *Entry]{
		MaximumWeight: uint64(l.maxBytes),
		Weigher:       func(_ query.Key, e *Entry) uint32 { return uint32(l.cost(e)) },
		// Run by the caller, eviction keeps the size below its limit; in the background it lags behind bursts.
		Executor: func(f func()) { f() },
		OnDeletion: func(d otter.DeletionEvent[query.Key, *Entry]) {
			if d.WasEvicted() {
				evicted()
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return &otterStore{cache: c}, nil
}

func (s *otterStore) Get(key query.Key) *Entry {
	e, _ := s.cache.GetIfPresent(key)
	return e
}

func (s *otterStore) Set(key query.Key, e *Entry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		s.cache.Set(key, e)
	}
}

func (s *otterStore) Delete(key query.Key) { s.cache.Invalidate(key) }

func (s *otterStore) Range(f func(key query.Key, e *Entry) bool) {
	for key, e := range s.cache.All() {
		if !f(key, e) {
			return
		}
	}
}

func (s *otterStore) Len() int { return s.cache.EstimatedSize() }

func (s *otterStore) Bytes() int64 { return int64(s.cache.WeightedSize()) }

func (s *otterStore) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.cache.InvalidateAll()
}
