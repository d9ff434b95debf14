package cache

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/elastic/query"
)

// stores runs a test with every kind of store.
func stores(t *testing.T, l limits, f func(t *testing.T, s Store, settle func(), evicted *atomic.Int64)) {
	for _, kind := range storeKinds {
		t.Run(kind, func(t *testing.T) {
			l := l
			l.kind = kind
			var evicted atomic.Int64
			s, err := l.open(func() { evicted.Add(1) })
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			settle := func() {}
			if r, ok := s.(*ristrettoStore); ok {
				settle = r.cache.Wait
			}
			f(t, s, settle, &evicted)
		})
	}
}

func keyOf(n uint64) (k query.Key) {
	binary.LittleEndian.PutUint64(k[:], n*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(k[8:], n)
	return k
}

// entryOf makes an entry of n bytes whose body ends in its checksum.
func entryOf(n int, seed byte) *Entry {
	body := bytes.Repeat([]byte{seed}, max(n, 5))
	sum := crc32.ChecksumIEEE(body[:len(body)-4])
	binary.LittleEndian.PutUint32(body[len(body)-4:], sum)
	return &Entry{status: 200, body: body, asked: time.Unix(int64(seed), 0)}
}

func intact(e *Entry) bool {
	n := len(e.body) - 4
	return crc32.ChecksumIEEE(e.body[:n]) == binary.LittleEndian.Uint32(e.body[n:])
}

var roomy = limits{maxBytes: 16 << 20, maxItems: 100_000}

func TestStoreGivesWhatWasSet(t *testing.T) {
	stores(t, roomy, func(t *testing.T, s Store, settle func(), _ *atomic.Int64) {
		for i := range uint64(1000) {
			s.Set(keyOf(i), entryOf(100, byte(i)))
			settle()
		}
		missing := 0
		for i := range uint64(1000) {
			switch e := s.Get(keyOf(i)); {
			case e == nil:
				missing++
			case e.body[0] != byte(i) || !intact(e):
				t.Fatalf("key %d has the entry of another", i)
			}
		}
		if missing > 10 {
			t.Errorf("%d of 1000 entries are missing though there is room", missing)
		}
		if n := s.Len(); n < 990 || n > 1000 {
			t.Errorf("Len %d", n)
		}
		if n := s.Bytes(); n < 990*420 || n > 1000*420 {
			t.Errorf("Bytes %d, want about %d", n, 1000*420)
		}
		if s.Get(keyOf(5000)) != nil {
			t.Error("an entry under a key that was never set")
		}
	})
}

func TestStoreComparesWholeKeys(t *testing.T) {
	stores(t, roomy, func(t *testing.T, s Store, settle func(), _ *atomic.Int64) {
		a, b := keyOf(1), keyOf(1)
		b[31] ^= 1 // the same in the first bytes, by which one store knows its entries
		s.Set(a, entryOf(100, 1))
		settle()
		if s.Get(b) != nil {
			t.Error("an entry under a key that begins alike")
		}
		s.Set(b, entryOf(100, 2))
		settle()
		if e := s.Get(a); e != nil && e.body[0] != 1 {
			t.Error("the entry of a key that begins alike")
		}
	})
}

func TestStoreNeverKeepsTheOlderOfTwo(t *testing.T) {
	stores(t, limits{maxBytes: 64 << 20, maxItems: 100_000}, func(t *testing.T, s Store, settle func(), _ *atomic.Int64) {
		missing := 0
		for i := range uint64(5_000) {
			s.Set(keyOf(i), entryOf(10, 1))
			s.Set(keyOf(i), entryOf(10, 2))
			if i%1000 == 0 {
				settle()
			}
		}
		settle()
		for i := range uint64(5_000) {
			switch e := s.Get(keyOf(i)); {
			case e == nil:
				missing++
			case e.body[0] != 2:
				t.Fatalf("key %d has the entry that was replaced", i)
			}
		}
		t.Logf("%d of 5000 are missing", missing)
	})
}

func TestStoreForgets(t *testing.T) {
	stores(t, roomy, func(t *testing.T, s Store, settle func(), evicted *atomic.Int64) {
		for i := range uint64(100) {
			s.Set(keyOf(i), entryOf(100, byte(i)))
		}
		settle()
		listed := map[query.Key]byte{}
		s.Range(func(key query.Key, e *Entry) bool {
			listed[key] = e.body[0]
			return true
		})
		for i := range uint64(100) {
			if got, ok := listed[keyOf(i)]; ok && got != byte(i) {
				t.Errorf("key %d is listed with the entry of another", i)
			}
			if e := s.Get(keyOf(i)); e != nil && listed[keyOf(i)] != byte(i) {
				t.Errorf("key %d is there and not listed", i)
			}
			if i%2 == 0 {
				s.Delete(keyOf(i))
			}
			if i%2 == 0 && s.Get(keyOf(i)) != nil {
				t.Errorf("key %d is there though it was deleted", i)
			}
		}
		settle()
		n := 0
		s.Range(func(query.Key, *Entry) bool { n++; return n < 10 })
		if n != 10 {
			t.Errorf("Range called %d times, want 10", n)
		}
		if s.Len() > 50 || s.Bytes() > 50*420 || evicted.Load() != 0 {
			t.Errorf("%d entries of %d bytes are left, %d evictions", s.Len(), s.Bytes(), evicted.Load())
		}
		s.Close()
		s.Range(func(query.Key, *Entry) bool { t.Error("a closed store lists entries"); return false })
		s.Delete(keyOf(1))
	})
}

func TestStoreCountsTheCompressedForm(t *testing.T) {
	stores(t, roomy, func(t *testing.T, s Store, settle func(), _ *atomic.Int64) {
		st := &store{Store: s}
		e := entryOf(100_000, 7)
		s.Set(keyOf(1), e)
		settle()
		before := s.Bytes()
		key := keyOf(1)
		coded := st.compress(&key, e)
		settle()
		if got := s.Get(key); got != nil && got != coded {
			t.Error("the entry with the compressed form is not in the store")
		}
		if s.Get(key) != nil && s.Bytes() != before+int64(len(coded.gzip)) {
			t.Errorf("%d bytes with the compressed form of %d, %d before", s.Bytes(), len(coded.gzip), before)
		}
		// What has taken its place meanwhile stays.
		newer := entryOf(100_000, 8)
		s.Set(key, newer)
		settle()
		st.replace(&key, e, coded)
		if got := s.Get(key); got != nil && got != newer {
			t.Error("an older answer took the place of a newer one")
		}
		// What was purged while somebody compressed it does not come back.
		s.Delete(key)
		st.compress(&key, entryOf(100_000, 9))
		settle()
		if s.Get(key) != nil {
			t.Error("compressing brought an answer back")
		}
	})
}

// Sixteen writers churn answers of a kilobyte to a megabyte through a store of 64 MiB, as a busy gateway does.
func TestMemoryUnderChurn(t *testing.T) {
	const budget = 64 << 20
	stores(t, limits{maxBytes: budget, maxItems: 1_000_000}, func(t *testing.T, s Store, settle func(), _ *atomic.Int64) {
		sizes := [...]int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}
		most := atomic.Int64{}
		var wg sync.WaitGroup
		for g := range uint64(16) {
			wg.Go(func() {
				for i := range uint64(100) {
					n := g*1000 + i
					s.Set(keyOf(n), entryOf(sizes[n%uint64(len(sizes))], byte(n)))
					if e := s.Get(keyOf(n / 2)); e != nil && !intact(e) {
						t.Errorf("entry %d changed while it was in the store", n/2)
					}
					for now := s.Bytes(); ; {
						old := most.Load()
						if now <= old || most.CompareAndSwap(old, now) {
							break
						}
					}
				}
			})
		}
		wg.Wait()
		settle()
		// Each writer may be between counting in and pushing out one entry of the largest size.
		if got := most.Load(); got > budget+16*(1<<20+entryOverhead) {
			t.Errorf("%d bytes were accounted for, over the budget of %d", got, budget)
		}
		if got := s.Bytes(); got > budget {
			t.Errorf("%d bytes at rest, over the budget of %d", got, budget)
		}
		held := int64(0)
		s.Range(func(_ query.Key, e *Entry) bool { held += e.weight(); return true })
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		const base = 48 << 20 // the test itself, its tables, the race detector
		if held > budget || m.HeapAlloc > 2*budget+base {
			t.Errorf("%d bytes are held and the heap has %d, want at most %d and %d", held, m.HeapAlloc, budget, 2*budget+base)
		}
	})
}

func TestStoreStaysWithinItsBytes(t *testing.T) {
	l := limits{maxBytes: 4 << 20, maxItems: 100_000}
	stores(t, l, func(t *testing.T, s Store, settle func(), evicted *atomic.Int64) {
		for i := range uint64(3000) {
			s.Set(keyOf(i), entryOf(int(1+i%64)<<10, byte(i)))
			s.Get(keyOf(i / 2))
			if n := s.Bytes(); n > l.maxBytes {
				t.Fatalf("%d bytes after %d entries", n, i)
			}
		}
		settle()
		if evicted.Load() == 0 {
			t.Error("no eviction was told")
		}
		// Entries that grow are where one library lost count.
		for size := 1 << 10; size <= 100<<10; size *= 2 {
			for i := range uint64(200) {
				s.Set(keyOf(i), entryOf(size, byte(i)))
			}
			settle()
			held := int64(0)
			for i := range uint64(3000) {
				if e := s.Get(keyOf(i)); e != nil {
					held += e.weight()
				}
			}
			if held > l.maxBytes {
				t.Errorf("%d bytes are held with entries of %d", held, size)
			}
		}
	})
}

func TestStoreStaysWithinItsItems(t *testing.T) {
	stores(t, limits{maxBytes: 4 << 20, maxItems: 100}, func(t *testing.T, s Store, settle func(), _ *atomic.Int64) {
		for i := range uint64(1000) {
			s.Set(keyOf(i), entryOf(10, byte(i)))
			settle()
		}
		if n := s.Len(); n > 100 || n < 50 {
			t.Errorf("%d entries, want at most 100", n)
		}
	})
}

func TestStoreUnderTraffic(t *testing.T) {
	stores(t, limits{maxBytes: 1 << 20, maxItems: 10_000}, func(t *testing.T, s Store, _ func(), _ *atomic.Int64) {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range uint64(3000) {
					k := (i*7 + uint64(g)) % 200
					if e := s.Get(keyOf(k)); e != nil && (e.body[0] != byte(k) || !intact(e)) {
						t.Errorf("key %d has a wrong or changed entry", k)
						return
					}
					s.Set(keyOf(k), entryOf(int(i%50)<<8, byte(k)))
					if g == 0 && i == 2500 {
						s.Close() // what runs goes on without
					}
				}
			})
		}
		wg.Wait()
		if s.Bytes() != 0 || s.Get(keyOf(1)) != nil {
			t.Error("a closed store still holds entries")
		}
		s.Close()
	})
}

func TestBurstIntoRistrettoIsBounded(t *testing.T) {
	s, err := newRistretto(limits{kind: "ristretto", maxBytes: 16 << 20, maxItems: 100_000}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := entryOf(256<<10, 0)
	for i := range uint64(2000) {
		s.Set(keyOf(i), e)
		if n := s.waiting.Load(); n > s.queueMax+512<<10 {
			t.Fatalf("%d bytes wait to be written", n)
		}
	}
	s.cache.Wait()
	if n := s.waiting.Load(); n != 0 {
		t.Errorf("%d bytes wait when all is written", n)
	}
}

func TestUnknownStore(t *testing.T) {
	if _, err := (limits{kind: "disk"}).open(nil); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkStore(b *testing.B) {
	for _, kind := range storeKinds {
		b.Run(kind, func(b *testing.B) {
			s, err := limits{kind: kind, maxBytes: 64 << 20, maxItems: 100_000}.open(func() {})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			for i := range uint64(1000) {
				s.Set(keyOf(i), entryOf(4096, byte(i)))
			}
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				i++
				s.Get(keyOf(i % 1000))
			}
		})
	}
}
