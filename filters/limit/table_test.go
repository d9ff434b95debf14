package limit

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"pgregory.net/rapid"
)

// hand is a clock that is set by hand.
type hand struct{ atomic.Int64 }

func (h *hand) add(d time.Duration) { h.Add(int64(d)) }

func one(t *Table, l *Limit, key string, cost int64) Decision {
	charges := []Charge{{Limit: l, Key: []byte(key), Cost: cost}}
	t.CheckAll(charges)
	return charges[0].Decision
}

// model is a table without bounds, sorted out the slow way.
type model map[string]int64

func (m model) checkAll(charges []Charge, now int64) (int, []Decision) {
	refused, out, next := -1, make([]Decision, len(charges)), make([]int64, len(charges))
	for i, c := range charges {
		next[i], out[i] = c.Limit.decide(m[string(c.Key)], now, c.Cost)
		if !out[i].OK && !c.Advisory && (refused < 0 || out[i].Wait > out[refused].Wait) {
			refused = i
		}
	}
	if refused < 0 {
		for i, c := range charges {
			m[string(c.Key)] = next[i]
		}
	}
	return refused, out
}

// TestTableAgainstModel holds a small table against one that forgets nothing: as long as only rested keys were forgotten,
// all decisions are the same, and no charge is taken of a list that was refused.
func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var clock hand
		size := rapid.IntRange(4, 12).Draw(t, "size")
		table, all := NewTable(size, clock.Load), model{}
		limits := []Limit{
			shape(t, 10*time.Millisecond, 3), shape(t, 25*time.Millisecond, 1), shape(t, time.Millisecond, 20),
		}
		for range rapid.IntRange(1, 150).Draw(t, "requests") {
			var charges []Charge
			for i := range rapid.IntRange(1, 3).Draw(t, "charges") {
				charges = append(charges, Charge{
					Limit: &limits[i], Key: fmt.Appendf(nil, "%d %d", i, rapid.IntRange(0, 9).Draw(t, "key")),
					Cost: rapid.Int64Range(0, 4).Draw(t, "cost"), Advisory: rapid.IntRange(0, 4).Draw(t, "advisory") == 0,
				})
			}
			peeked := table.Peek(charges)
			refused, want := all.checkAll(charges, clock.Load())
			got := table.CheckAll(charges)
			if table.Len() > size {
				t.Fatalf("%d keys in a table of %d", table.Len(), size)
			}
			if table.EvictedHot() > 0 {
				return
			}
			if got != refused || peeked != refused {
				t.Fatalf("charge %d of %d refused, %d before anything was charged, want %d", got, len(charges), peeked, refused)
			}
			for i := range charges {
				if charges[i].Decision != want[i] {
					t.Fatalf("charge %d: %+v, want %+v", i, charges[i].Decision, want[i])
				}
			}
			if c, cost := charges[0], rapid.Int64Range(0, 9).Draw(t, "bill"); got < 0 && cost > 0 {
				table.Bill(c.Limit, c.Key, cost)
				all[string(c.Key)] = c.Limit.bill(all[string(c.Key)], clock.Load(), cost)
			}
			clock.add(time.Duration(rapid.IntRange(0, 40).Draw(t, "pause")) * time.Millisecond)
		}
	})
}

// TestForgetsRestedFirst fills a table with keys that are not rested and one that is, in any order.
func TestForgetsRestedFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var clock hand
		const size = 20
		table := NewTable(size, clock.Load)
		l := shape(t, time.Second, 100)
		costs := rapid.Permutation([]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}).Draw(t, "costs")
		for i, cost := range costs { // some in two charges, so that the heap has stale ranks
			first := rapid.Int64Range(1, cost).Draw(t, "first")
			one(table, &l, strconv.Itoa(i), first)
			if first < cost {
				one(table, &l, strconv.Itoa(i), cost-first)
			}
		}
		clock.add(1500 * time.Millisecond) // only the key with the cost of 1 is rested
		one(table, &l, "new", 50)
		if n := table.EvictedHot(); n != 0 {
			t.Fatalf("%d keys forgotten that are not rested, while one was", n)
		}
		one(table, &l, "newer", 50)
		if n := table.EvictedHot(); n != 1 {
			t.Fatalf("%d keys counted as forgotten too early, want 1", n)
		}
		for i, cost := range costs {
			used := int64(0) // the two that are nearest to rest are forgotten
			if cost > 2 {
				used = (time.Duration(cost)*time.Second - 1500*time.Millisecond).Nanoseconds()
			}
			if c := table.shards[0].cells[strconv.Itoa(i)]; (c != nil) != (cost > 2) {
				t.Fatalf("key with a cost of %d: in the table %v", cost, c != nil)
			} else if c != nil && c.tat-clock.Load() != used {
				t.Fatalf("key with a cost of %d rests in %d, want %d", cost, c.tat-clock.Load(), used)
			}
		}
	})
}

// TestFloodLeavesAbuserLimited floods a table with new keys: a caller that is over its limit does not get a new burst.
func TestFloodLeavesAbuserLimited(t *testing.T) {
	var clock hand
	const size = 5000
	table := NewTable(size, clock.Load)
	l := shape(t, 100*time.Millisecond, 10)
	for range 10 {
		if !one(table, &l, "abuser", 1).OK {
			t.Fatal("refused within the burst")
		}
	}
	key := make([]byte, 8)
	for i := range uint64(100_000) {
		binary.BigEndian.PutUint64(key, i)
		table.CheckAll([]Charge{{Limit: &l, Key: key, Cost: 1}})
	}
	if n := table.Len(); n != size {
		t.Errorf("%d keys in the table, want %d", n, size)
	}
	if table.EvictedHot() == 0 {
		t.Error("keys were forgotten for want of room, and none was counted")
	}
	if one(table, &l, "abuser", 1).OK {
		t.Error("a flood of other keys gave the caller a new burst")
	}
}

func TestKeysAreCompared(t *testing.T) {
	var clock hand
	table := NewTable(10_000, clock.Load)
	l := shape(t, time.Second, 1)
	for i := range 5000 {
		if !one(table, &l, "caller "+strconv.Itoa(i), 1).OK {
			t.Fatalf("caller %d is refused for what another one did", i)
		}
	}
}

// TestTogether lets many goroutines spend one budget, in lists that cross: nobody waits for ever, the sum is exact, and
// the budgets that go with the refused ones are whole.
func TestTogether(t *testing.T) {
	var clock hand
	table := NewTable(50_000, clock.Load)
	l := shape(t, time.Second, 1000)
	narrow := shape(t, time.Second, 700)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 400 {
				charges := []Charge{
					{Limit: &l, Key: []byte("a"), Cost: 1}, {Limit: &l, Key: []byte("b"), Cost: 1}, {Limit: &narrow, Key: []byte("c"), Cost: 1},
				}
				if g%2 == 0 {
					slices.Reverse(charges)
				}
				if table.CheckAll(charges) < 0 {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 700 {
		t.Errorf("%d lists passed, want 700", n)
	}
	for _, key := range []string{"a", "b"} {
		if d := one(table, &l, key, 1); d.Remaining != 299 {
			t.Errorf("%d units remain of %s, want 299", d.Remaining, key)
		}
	}
}

func TestHold(t *testing.T) {
	var clock hand
	table := NewTable(10, clock.Load)
	first, other := table.Hold("x"), table.Hold("y")
	if first == other {
		t.Error("two names have one number")
	}
	if table.Hold("x") != first {
		t.Error("a name that is held has another number")
	}
	table.Release("x")
	if table.Hold("x") != first {
		t.Error("a name was given up that somebody holds")
	}
	table.Release("x")
	table.Release("x")
	if n := table.Hold("x"); n == first || n == other {
		t.Error("a number is used again")
	}
}

func TestChargeAllocates(t *testing.T) {
	table := NewTable(100_000, Monotonic())
	l := shape(t, time.Nanosecond, 1)
	a, b := []byte("some key of usual length"), []byte("another key")
	if n := testing.AllocsPerRun(1000, func() {
		charges := [2]Charge{{Limit: &l, Key: a, Cost: 1}, {Limit: &l, Key: b, Cost: 1}}
		table.CheckAll(charges[:])
	}); n != 0 {
		t.Errorf("%v allocations for a decision", n)
	}
}

// TestMillionsOfKeysAllocateNoMore holds that a table takes no more memory for millions of keys than for those that it was made
// for.
func TestMillionsOfKeysAllocateNoMore(t *testing.T) {
	keys := 500_000
	if os.Getenv("WEIR_SOAK") != "" {
		keys = 5_000_000
	}
	if raced {
		t.Skip("takes long under the race detector, which does not change the memory")
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	table := NewTable(100_000, Monotonic())
	l := shape(t, time.Second, 10)
	charges := [1]Charge{{Limit: &l, Cost: 1}}
	for i := range keys {
		charges[0].Key = fmt.Appendf(charges[0].Key[:0], "api key number %d", i)
		table.CheckAll(charges[:])
	}
	if n := table.Len(); n > 100_000 || n < 90_000 {
		t.Errorf("%d keys in the table", n)
	}
	const most = 32 << 20
	after := heap()
	if after > before+most {
		t.Errorf("%d bytes for 100000 keys, want at most %d", after-before, most)
	}
	t.Logf("%d bytes", after-before)
	runtime.KeepAlive(table)
}

// BenchmarkDecision compares a decision with one of golang.org/x/time/rate, a limiter a key in a map under a lock, which never
// forgets a key.
func BenchmarkDecision(b *testing.B) {
	keys := make([][]byte, 10_000)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "api key number %d", i)
	}
	b.Run("weir", func(b *testing.B) {
		table := NewTable(100_000, Monotonic())
		l := shape(b, time.Millisecond, 10)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				charges := [1]Charge{{Limit: &l, Key: keys[i%len(keys)], Cost: 1}}
				table.CheckAll(charges[:])
			}
		})
	})
	b.Run("x-time-rate-in-a-map", func(b *testing.B) {
		var mu sync.Mutex // guards limiters
		limiters := map[string]*rate.Limiter{}
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				key := keys[i%len(keys)]
				mu.Lock()
				l := limiters[string(key)]
				if l == nil {
					l = rate.NewLimiter(1000, 10)
					limiters[string(key)] = l
				}
				mu.Unlock()
				l.Allow()
			}
		})
	})
}

func BenchmarkCheckAll(b *testing.B) {
	l := shape(b, time.Microsecond, 10)
	keys := make([][]byte, 1000)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key number %d", i)
	}
	b.Run("known", func(b *testing.B) {
		table := NewTable(100_000, Monotonic())
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			charges := [1]Charge{{Limit: &l, Key: keys[i%len(keys)], Cost: 1}}
			table.CheckAll(charges[:])
			i++
		}
	})
	b.Run("new", func(b *testing.B) {
		table := NewTable(100_000, Monotonic())
		key := make([]byte, 24)
		b.ReportAllocs()
		i := uint64(0)
		for b.Loop() {
			binary.BigEndian.PutUint64(key, i)
			charges := [1]Charge{{Limit: &l, Key: key, Cost: 1}}
			table.CheckAll(charges[:])
			i++
		}
	})
}
