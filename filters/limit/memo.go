package limit

import (
	"hash/maphash"
	"sync"
)

// memoBytes is what a filter may remember of paths: some forty thousand of usual length.
const memoBytes = 8 << 20

// memoPath is the longest path that is remembered. Longer ones are rare, and few would push many short ones out.
const memoPath = 1 << 10

// memoEntry is what an entry takes beside its path and its hits: the match, and its part of a map.
const memoEntry = 192

const memoShards = 16

// A memo remembers what paths mean, in a bounded number of bytes. It has two generations: when the young one is full the
// old one is dropped and the young one becomes old; what is asked for in the old one becomes young again. So paths in use
// stay, whatever number of others is tried, and nobody keeps a list of uses.
type memo struct {
	shards [memoShards]memoShard
	seed   maphash.Seed
}

type memoShard struct {
	mu         sync.Mutex // guards the fields below
	young, old map[string]*match
	bytes      int // of the young ones
	max        int // of the young ones
}

func newMemo(limit int) *memo {
	m := &memo{seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i] = memoShard{young: map[string]*match{}, old: map[string]*match{}, max: limit / memoShards / 2}
	}
	return m
}

func (m *memo) get(path []byte) *match {
	if len(path) > memoPath {
		return nil
	}
	s := &m.shards[maphash.Bytes(m.seed, path)%memoShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.young[string(path)]; found != nil {
		return found
	}
	found := s.old[string(path)]
	if found != nil {
		delete(s.old, found.path)
		s.add(found)
	}
	return found
}

func (m *memo) put(found *match) {
	if len(found.path) > memoPath {
		return
	}
	s := &m.shards[maphash.String(m.seed, found.path)%memoShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.young[found.path] == nil {
		s.add(found)
	}
}

func (s *memoShard) add(found *match) {
	size := memoEntry + len(found.path) + 16*len(found.hit.groups)
	for i := range found.own {
		size += 32 + 16*len(found.own[i].groups)
	}
	if s.bytes += size; s.bytes > s.max {
		clear(s.old)
		s.young, s.old, s.bytes = s.old, s.young, size
	}
	s.young[found.path] = found
}

// len returns the number of paths remembered.
func (m *memo) len() int {
	n := 0
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		n += len(s.young) + len(s.old)
		s.mu.Unlock()
	}
	return n
}
