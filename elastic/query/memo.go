package query

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"
	"unsafe"
)

const (
	memoSlots = 1 << 13
	memoWays  = 4        // slots in which a request may stand
	memoEntry = 64 << 10 // requests longer than this are not remembered: a few of them would push out all others
)

// A memo remembers the keys of recent requests by all their bytes, since dashboards repeat themselves to the byte. It
// takes no lock: each slot is a shard of its own. It holds credentials in clear text, in memory only, as a connection's
// read buffer does.
type memo struct {
	seed  maphash.Seed
	limit int64
	bytes atomic.Int64  // size of all entries
	turn  atomic.Uint64 // which slot gives way next
	slots [memoSlots]atomic.Pointer[remembered]
}

// A remembered request. It never changes.
type remembered struct {
	sum     uint64
	raw     []byte
	key     Key
	verdict Verdict
}

func (r *remembered) size() int64 {
	if r == nil {
		return 0
	}
	return int64(len(r.raw)) + int64(unsafe.Sizeof(*r))
}

func newMemo(limit int64) *memo { return &memo{seed: maphash.MakeSeed(), limit: limit} }

func (m *memo) hash(raw []byte) uint64 { return maphash.Bytes(m.seed, raw) }

// get returns what is remembered of raw, or nil. The hash only says where to look.
func (m *memo) get(sum uint64, raw []byte) *remembered {
	first := sum % memoSlots &^ (memoWays - 1)
	for i := range uint64(memoWays) {
		if e := m.slots[first+i].Load(); e != nil && e.sum == sum && bytes.Equal(e.raw, raw) {
			return e
		}
	}
	return nil
}

// put remembers a copy of raw.
func (m *memo) put(sum uint64, raw []byte, key Key, v Verdict) {
	if len(raw) > memoEntry {
		return
	}
	e := &remembered{sum: sum, raw: bytes.Clone(raw), key: key, verdict: v}
	first := sum % memoSlots &^ (memoWays - 1)
	at := first + m.turn.Add(1)%memoWays
	for i := range uint64(memoWays) {
		if m.slots[first+i].Load() == nil {
			at = first + i
			break
		}
	}
	old := m.slots[at].Swap(e)
	m.bytes.Add(e.size() - old.size())
	for range memoSlots {
		if m.bytes.Load() <= m.limit {
			return
		}
		old := m.slots[m.turn.Add(1)%memoSlots].Swap(nil)
		m.bytes.Add(-old.size())
	}
}
