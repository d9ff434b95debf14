package query

import (
	"fmt"
	"testing"
)

func TestMemoComparesAllBytes(t *testing.T) {
	m := newMemo(1 << 20)
	m.put(7, []byte("one"), Key{1}, Verdict{})
	m.put(7, []byte("two"), Key{2}, Verdict{})
	if e := m.get(7, []byte("one")); e == nil || e.key != (Key{1}) {
		t.Errorf("one: got %+v", e)
	}
	if e := m.get(7, []byte("two")); e == nil || e.key != (Key{2}) {
		t.Errorf("two: got %+v", e)
	}
	if e := m.get(7, []byte("six")); e != nil {
		t.Errorf("six: got %+v", e)
	}
}

func TestMemoCopies(t *testing.T) {
	m := newMemo(1 << 20)
	raw := []byte("one")
	m.put(7, raw, Key{1}, Verdict{})
	copy(raw, "two")
	if m.get(7, []byte("one")) == nil || m.get(7, []byte("two")) != nil {
		t.Error("the memo changed with the caller's memory")
	}
}

func TestMemoBounded(t *testing.T) {
	const limit = 64 << 10
	m := newMemo(limit)
	for i := range 10_000 {
		raw := fmt.Appendf(nil, "%0*d", 1+i%700, i)
		m.put(m.hash(raw), raw, Key{}, Verdict{})
		if got := m.bytes.Load(); got > limit {
			t.Fatalf("%d bytes after %d entries", got, i+1)
		}
	}
	sum := int64(0)
	for i := range m.slots {
		sum += m.slots[i].Load().size()
	}
	if got := m.bytes.Load(); got != sum || sum < limit/2 {
		t.Errorf("counted %d bytes, there are %d of at most %d", got, sum, limit)
	}
}

func TestMemoLeavesOutLongRequests(t *testing.T) {
	m := newMemo(1 << 20)
	raw := make([]byte, memoEntry+1)
	m.put(1, raw, Key{}, Verdict{})
	if m.get(1, raw) != nil || m.bytes.Load() != 0 {
		t.Error("a long request is remembered")
	}
}

// A memo smaller than any entry keeps nothing and still ends.
func TestMemoTiny(t *testing.T) {
	k := newTestKeyer(t, Options{MemoBytes: 1})
	mustKey(t, k, ask(`GET search logs`))
	mustKey(t, k, ask(`GET search logs`))
	if k.MemoBytes() != 0 {
		t.Errorf("%d bytes", k.MemoBytes())
	}
}
