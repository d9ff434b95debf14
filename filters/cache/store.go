package cache

import (
	"fmt"
	"math"

	"weir/elastic/query"
)

// A Store keeps entries within a limit of bytes. It may refuse and forget whatever it likes at any time, but an entry that
// it returns was set under that very key, and none is returned that Set, when it began, had already replaced and that was
// visible then. It does not look at time. All methods may be called from any goroutine, also after Close, which only then
// returns nothing.
type Store interface {
	// Get returns the entry under key, or nil.
	Get(key query.Key) *Entry
	// Set puts e in the place of what is under key.
	Set(key query.Key, e *Entry)
	// Delete forgets the entry under key.
	Delete(key query.Key)
	// Range calls f for entries until it returns false, in no order. Those that are set while it runs may be left out.
	Range(f func(key query.Key, e *Entry) bool)
	// Len returns about how many entries there are.
	Len() int
	// Bytes returns about how many bytes the entries take.
	Bytes() int64
	// Close gives everything back.
	Close()
}

// limits are the limits of a Store, by which it is known.
type limits struct {
	kind     string // a name of storeKinds
	pool     string // keeps apart stores that are alike
	maxBytes int64  // of all entries together
	maxItems int64
}

// storeKinds are the kinds of stores.
var storeKinds = [...]string{"otter", "ristretto"}

// open makes a store. evicted is called for each entry that gave way to another one.
func (l limits) open(evicted func()) (Store, error) {
	var s Store
	var err error
	switch l.kind {
	case "otter":
		s, err = newOtter(l, evicted)
	case "ristretto":
		s, err = newRistretto(l, evicted)
	default:
		return nil, fmt.Errorf("cache store %q: unknown", l.kind)
	}
	if err != nil {
		return nil, fmt.Errorf("open the cache store %s of %d bytes: %w", l.kind, l.maxBytes, err)
	}
	return s, nil
}

// cost returns what an entry counts. Both libraries bound either bytes or entries; a least cost per entry bounds both.
func (l limits) cost(e *Entry) int64 {
	return min(max(e.weight(), l.maxBytes/l.maxItems), math.MaxUint32)
}

// largest returns the largest answer that is worth keeping: one may not push out most others.
func (l limits) largest() int64 { return min(l.maxBytes/4, 1<<30) }
