package cache

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"weir/flows"
)

// long makes the node's answers n bytes longer.
func (r *rig) long(n int) {
	whole := r.node
	r.node = func(x *flows.Exchange, call int64) error {
		if err := whole(x, call); err != nil {
			return err
		}
		body := bodyOf(x)
		x.Response.Body.Replace([]byte(body[:len(body)-1] + `,"x":"` + strings.Repeat("x", n) + `"}`))
		return nil
	}
}

func unzip(t *testing.T, data string) string {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

// The coding of an answer is worked out from the header of who asks, never from that of who asked first.
func TestCodingIsThatOfTheAsker(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		r.long(10_000)
		plain := bodyOf(r.ask("/i/_search", `{}`, "Accept-Encoding", "gzip"))
		f := func(accept string, compressed bool) {
			t.Helper()
			var fields []string
			if accept != "none" {
				fields = []string{"Accept-Encoding", accept}
			}
			x := r.ask("/i/_search", `{}`, fields...)
			body, coding := bodyOf(x), field(x, "content-encoding")
			if (coding == "gzip") != compressed || coding != "" && coding != "gzip" {
				t.Errorf("%s: Content-Encoding %q", accept, coding)
			}
			if compressed {
				body = unzip(t, body)
			}
			if body != plain || field(x, "vary") != "Accept-Encoding" {
				t.Errorf("%s: %d bytes differ from the plain answer, Vary %q", accept, len(body), field(x, "vary"))
			}
		}
		f("gzip", false) // the first hit shows that the answer is wanted again
		f("gzip", true)
		f("none", false)
		f("gzip;q=0", false)
		f("GZIP", true)
		f("snappy", false)
		f("gzip;q=0.1, identity;q=0.5", false)
		f("*", true)
		f("br, gzip;q=0.5", true)
		r.wantCalls(1)
	})
}

func TestGzipHitDoesNotCompress(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops pooled memory at random")
	}
	r := newRig(t, short)
	r.long(100_000)
	for range 3 {
		r.ask("/i/_search", `{}`, "Accept-Encoding", "gzip")
	}
	x := request("/i/_search", `{}`, "Accept-Encoding", "gzip")
	if err := r.flows["main"].Serve(x); err != nil {
		t.Fatal(err)
	}
	_, e := r.shared().find(&ticketOf.Get(x).key)
	if got, _ := x.Response.Body.Bytes(1 << 20); e == nil || len(got) == 0 || &got[0] != &e.gzip[0] {
		t.Fatal("the answer is not the memory of the entry")
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := r.flows["main"].Serve(x); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a gzip hit makes %v allocations", n)
	}
}

func TestWhatIsNotWorthCompressing(t *testing.T) {
	f := func(e *Entry) {
		t.Helper()
		st := &store{Store: nil}
		key := keyOf(1)
		for range 2 {
			if got := st.compress(&key, e); got != e {
				t.Errorf("%d bytes became %d", len(e.body), len(got.gzip))
			}
		}
	}
	f(&Entry{body: bytes.Repeat([]byte("x"), leastCoded-1)})
	noise := make([]byte, 10_000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	f(&Entry{body: noise})
}

func BenchmarkCompress(b *testing.B) {
	for _, size := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			st, err := limits{kind: "otter", maxBytes: 64 << 20, maxItems: 1000}.open(func() {})
			if err != nil {
				b.Fatal(err)
			}
			defer st.Close()
			body := []byte(strings.Repeat(`{"_index":"logs","_id":"abc","_score":1.0,"_source":{"message":"hello"}},`, size/73))
			key := keyOf(1)
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				(&store{Store: st}).compress(&key, &Entry{body: body})
			}
		})
	}
}
