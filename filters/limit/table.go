package limit

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"time"
)

// maxShards is how many locks a table has at most. The shards of a list of charges are kept as bits of a word.
const maxShards = 64

// minShard is the number of keys below which a table is not split further: with few keys a shard, some would be full long
// before the table is.
const minShard = 128

// A Table holds the state of limits by key, and never more keys than it was made for. All methods may be called from any
// goroutine.
type Table struct {
	shards []shard
	seed   maphash.Seed
	now    func() int64 // nanoseconds, monotonic, not negative

	mu    sync.Mutex // guards the fields below
	names map[string]*held
	last  uint64
}

// held is the number of a limit's name and how many hold it.
type held struct {
	id   uint64
	refs int
}

// A shard is a part of a table. Its keys are in a heap, the one that is nearest to rest first. Charges leave the heap as it
// is: a key's rank is the TAT that the heap knows, the TAT only grows, and what has moved is put in order when a key must be
// found that can be forgotten. So a charge costs no search, and the key that goes is exactly the right one.
type shard struct {
	mu         sync.Mutex // guards the fields below
	cells      map[string]*cell
	heap       []*cell
	max        int
	evictedHot uint64
}

type cell struct {
	key  string
	tat  int64
	rank int64
}

// Monotonic returns a clock for NewTable that counts from now on.
func Monotonic() func() int64 {
	base := time.Now()
	return func() int64 { return int64(time.Since(base)) }
}

// NewTable returns a table of at most maxKeys keys, at least 1. now returns nanoseconds that never go back and never are
// negative.
func NewTable(maxKeys int, now func() int64) *Table {
	n := 1
	for n < maxShards && maxKeys/(2*n) >= minShard {
		n *= 2
	}
	t := &Table{shards: make([]shard, n), seed: maphash.MakeSeed(), now: now, names: map[string]*held{}}
	for i := range t.shards {
		t.shards[i].max = (maxKeys + i) / n
		t.shards[i].cells = map[string]*cell{}
	}
	return t
}

// A Charge is what one exchange costs one key of a limit.
type Charge struct {
	Limit    *Limit
	Key      []byte        // read, not kept
	Cost     int64         // 0 if it is known only afterwards; see Bill
	Advisory bool          // refuses nothing; if its limit is reached it is not charged, and the others are
	Patience time.Duration // how long an exchange may wait for it, in rooms
	Decision Decision

	shard int
	cell  *cell
	next  int64
}

// CheckAll decides all charges together: if each limit lets its charge pass, all are charged, otherwise none is. It fills in
// the decisions and returns the index of the refused charge with the longest wait, or -1 if all passed. No two charges may
// have the same key. Keys that the table knows cost no allocation.
func (t *Table) CheckAll(charges []Charge) int { return t.check(charges, true) }

// Peek decides as CheckAll does and charges nothing.
func (t *Table) Peek(charges []Charge) int { return t.check(charges, false) }

func (t *Table) check(charges []Charge, commit bool) int {
	var locks uint64
	for i := range charges {
		c := &charges[i]
		c.shard = t.shardOf(c.Key)
		locks |= 1 << c.shard
	}
	for rest := locks; rest != 0; rest &= rest - 1 { // in ascending order, so that two lists cannot lock each other out
		t.shards[bits.TrailingZeros64(rest)].mu.Lock()
	}
	now := t.now()
	refused := -1
	for i := range charges {
		c := &charges[i]
		var tat int64
		c.cell = t.shards[c.shard].cells[string(c.Key)]
		if c.cell != nil {
			tat = c.cell.tat
		}
		c.next, c.Decision = c.Limit.decide(tat, now, c.Cost)
		if !c.Decision.OK && !c.Advisory && (refused < 0 || c.Decision.Wait > charges[refused].Decision.Wait) {
			refused = i
		}
	}
	if refused < 0 && commit {
		t.charge(charges, now)
	}
	for rest := locks; rest != 0; rest &= rest - 1 {
		t.shards[bits.TrailingZeros64(rest)].mu.Unlock()
	}
	return refused
}

// shardOf returns where a key belongs. The seed is secret, so that nobody can make keys that crowd the others of one shard
// out.
func (t *Table) shardOf(key []byte) int {
	return int(maphash.Bytes(t.seed, key) & uint64(len(t.shards)-1))
}

// Bill charges what an admitted exchange turned out to cost, even if that leaves the key in debt, and returns what is decided
// about the next one whose cost is not known.
func (t *Table) Bill(l *Limit, key []byte, cost int64) Decision {
	s := &t.shards[t.shardOf(key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := t.now()
	c := s.cells[string(key)]
	var tat int64
	if c != nil {
		tat = c.tat
	}
	if cost > 0 {
		tat = l.bill(tat, now, cost)
		if c != nil {
			c.tat = tat
		} else {
			s.insert(key, tat, now)
		}
	}
	_, d := l.decide(tat, now, 0)
	return d
}

// Walk calls visit with each key and the time until it has its whole burst again, one shard after the other, which is locked
// meanwhile. Rested keys are left out.
func (t *Table) Walk(visit func(key string, rest time.Duration)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		now := t.now()
		for _, c := range s.heap {
			if c.tat > now {
				visit(c.key, time.Duration(c.tat-now))
			}
		}
		s.mu.Unlock()
	}
}

// charge writes down what passed. The shards are locked.
func (t *Table) charge(charges []Charge, now int64) {
	for i := range charges {
		if c := charges[i].cell; c != nil {
			c.tat = charges[i].next
		}
	}
	for i := range charges { // after all known keys were charged: a new one may take a known one's place
		if c := &charges[i]; c.cell == nil && c.next > now {
			t.shards[c.shard].insert(c.Key, c.next, now)
		}
	}
}

// insert adds a key. If the shard is full the key nearest to rest goes.
func (s *shard) insert(key []byte, tat, now int64) {
	var c *cell
	if len(s.heap) < s.max {
		c = &cell{}
		s.heap = append(s.heap, c)
	} else {
		s.settle()
		c = s.heap[0]
		if c.tat > now {
			s.evictedHot++
		}
		delete(s.cells, c.key)
	}
	c.key, c.tat, c.rank = string(key), tat, tat
	s.cells[c.key] = c
	if s.heap[0] == c {
		s.down(0)
	} else {
		s.up(len(s.heap) - 1)
	}
}

// settle makes the first key of the heap the one with the smallest TAT. Each charge since the last time costs at most one
// step down.
func (s *shard) settle() {
	for c := s.heap[0]; c.rank != c.tat; c = s.heap[0] {
		c.rank = c.tat
		s.down(0)
	}
}

func (s *shard) down(i int) {
	h := s.heap
	for {
		least := 2*i + 1
		if least >= len(h) {
			return
		}
		if right := least + 1; right < len(h) && h[right].rank < h[least].rank {
			least = right
		}
		if h[i].rank <= h[least].rank {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func (s *shard) up(i int) {
	h := s.heap
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].rank <= h[i].rank {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

// Len returns the number of keys in the table.
func (t *Table) Len() int {
	n := 0
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += len(s.heap)
		s.mu.Unlock()
	}
	return n
}

// EvictedHot returns how many keys were forgotten that were not rested.
func (t *Table) EvictedHot() uint64 {
	var n uint64
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += s.evictedHot
		s.mu.Unlock()
	}
	return n
}

// Hold returns the number that stands for a name as long as somebody holds it, for keys to begin with. Numbers are not used
// again: the keys of a name that was given up rest and are forgotten.
func (t *Table) Hold(name string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.names[name]
	if h == nil {
		t.last++
		h = &held{id: t.last}
		t.names[name] = h
	}
	h.refs++
	return h.id
}

// Release gives up what Hold returned for name.
func (t *Table) Release(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.names[name]; h != nil {
		if h.refs--; h.refs == 0 {
			delete(t.names, name)
		}
	}
}
