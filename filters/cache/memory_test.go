package cache

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/flows"
	"weir/internal/simtime"
)

// bomb returns a complete answer to a search that begins with so many bytes of white space, compressed a thousandfold.
func bomb(t *testing.T, space int) []byte {
	t.Helper()
	const piece = 16 << 20
	member := func(plain []byte) []byte {
		var out bytes.Buffer
		w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	const answer = `{"took":1,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},"hits":{"hits":[]}}`
	return append(bytes.Repeat(member(bytes.Repeat([]byte{' '}, piece)), space/piece), member([]byte(answer))...)
}

// A node, or a proxy before it, that compresses unasked is believed: its answer is passed on as it came, and nobody unpacks ten
// megabytes that are ten gigabytes.
func TestDecompressionBomb(t *testing.T) {
	packed := bomb(t, 10<<30)
	if len(packed) < 9<<20 || len(packed) > 11<<20 {
		t.Fatalf("the bomb has %d bytes", len(packed))
	}
	const room = `max_bytes: 256mb, max_entry: 32mb`
	f := func(settings, target, body, want string, streamed bool, length, calls int64) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			r := newRig(t, `[{name: main, filter: [{cache: {`+settings+`}}, {node: {}}]}]`)
			r.node = func(x *flows.Exchange, _ int64) error {
				<-time.After(time.Second)
				x.Reply(200, "application/json; charset=UTF-8", packed)
				if streamed {
					x.Response.Body.ReplaceStream(bytes.NewReader(packed), length)
				}
				x.Response.Header.AddString("Content-Encoding", "gzip")
				return nil
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var wg sync.WaitGroup
			var answers [2]*flows.Exchange
			for i := range answers {
				wg.Go(func() { answers[i] = r.ask(target, body, "Accept-Encoding", "gzip") })
			}
			wg.Wait()
			for i, x := range answers {
				whole, err := x.Response.Body.Bytes(int64(len(packed)))
				if err != nil || !bytes.Equal(whole, packed) || field(x, "content-encoding") != "gzip" {
					t.Errorf("%s: answer %d has %d bytes in the coding %q: %v", target, i, len(whole), field(x, "content-encoding"), err)
				}
				if got := field(x, "cache-status"); !strings.HasSuffix(got, want) {
					t.Errorf("%s: answer %d: %s, want %s", target, i, got, want)
				}
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 20*uint64(len(packed)) { // a stream grows by doubling
				t.Errorf("%s: two answers of %d bytes took %d bytes of memory", target, len(packed), took)
			}
			r.wantCalls(calls)
			if n := r.count("weir_cache_entries"); n != 0 {
				t.Errorf("%s: %v answers are kept", target, n)
			}
		})
	}
	for _, streamed := range []bool{false, true} {
		f(room, "/i/_search", `{}`, "content-encoding", streamed, int64(len(packed)), 2)
		f(`max_entry: 1mb`, "/i/_search", `{}`, "too-large", streamed, int64(len(packed)), 2)
	}
	f(room, "/i/_search", `{}`, "content-encoding", true, -1, 2)
}

// Ten thousand searches a second, each another one, leave no more behind than the memory that there is for answers and keys.
func TestMemoryUnderManyKeys(t *testing.T) {
	const (
		second  = 10_000
		budget  = 4 << 20
		memoMax = 8 << 20 // the default of query.Options
	)
	for _, kind := range storeKinds {
		t.Run(kind, func(t *testing.T) {
			simtime.Test(t, func(t *testing.T) {
				r := newRig(t, `[{name: main, filter: [{cache: {store: `+kind+`, ttl: 1h, max_bytes: 4mb, max_entries: 1000}}, {node: {}}]}]`)
				r.long(500)
				long := strings.Repeat("x", 1500)
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				x := request("/i/_search", "")
				asked := 0
				for range 2 {
					for range second {
						asked++
						x.Request.Body.Replace(fmt.Appendf(nil, `{"query":{"term":{"%s":%d}}}`, long, asked))
						if err := r.flows["main"].Serve(x); err != nil {
							t.Fatal(err)
						}
						<-time.After(time.Second / second)
					}
					if n := r.count("weir_cache_bytes"); n > budget || n < budget/10 {
						t.Errorf("%v bytes of answers after %d searches, want at most %d", n, asked, budget)
					}
					if n := r.count("weir_cache_entries"); n > 1000 || n < 500 {
						t.Errorf("%v answers after %d searches, want at most 1000", n, asked)
					}
					if n := r.count("weir_cache_memo_bytes"); n > memoMax || n < memoMax/2 {
						t.Errorf("%v bytes of keys after %d searches, want at most %d", n, asked, memoMax)
					}
				}
				r.wantCalls(int64(asked))
				if n := r.count("weir_cache_flights") + r.count("weir_cache_waiting_requests"); n != 0 {
					t.Errorf("%v flights and those who wait for them are left", n)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 2*(budget+memoMax) {
					t.Errorf("the heap has grown by %d bytes, want at most %d", grown, 2*(budget+memoMax))
				}
				runtime.KeepAlive(x)
			})
		})
	}
}
