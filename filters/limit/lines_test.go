package limit

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/flows"
	"weir/internal/simtime"
)

// with makes the same exchange each time, with a body.
func with(method, target, body string, fields ...string) func(int) *flows.Exchange {
	return func(int) *flows.Exchange {
		x := exchange(method, target, fields...)
		x.Request.Body.ReplaceStream(strings.NewReader(body), int64(len(body)))
		return x
	}
}

// packed returns a text in a coding.
func packed(text, coding string) string {
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "bare deflate":
		w, _ = flate.NewWriter(&b, flate.BestSpeed)
	default:
		return text
	}
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// lines makes the body of a bulk with one document for each index.
func lines(indices ...string) string {
	var b strings.Builder
	for _, index := range indices {
		fmt.Fprintf(&b, "{\"index\":{\"_index\":%q}}\n{\"a\":1}\n", index)
	}
	return b.String()
}

// TestIndexOfLines holds that a limit on indices counts what the lines of a bulk say, and not its path. Each body is sent until
// one is refused.
func TestIndexOfLines(t *testing.T) {
	f := func(limit, target, body string, want int) {
		t.Helper()
		for _, coding := range []string{"", "gzip", "deflate", "bare deflate"} {
			simtime.Test(t, func(t *testing.T) {
				t.Helper()
				g := newGateway(t, "- rate_limit: {limits: [{"+limit+"}]}")
				x := with("POST", target, packed(body, coding), "Content-Encoding", strings.TrimPrefix(coding, "bare "))
				if n := g.passes(20, x); n != want {
					t.Errorf("%s: %s: %q %s: %d of 20 pass at once, want %d", limit, target, body, coding, n, want)
				}
			})
		}
	}
	const (
		docs = "rate: 1/h, burst: 6, unit: bulk_docs"
		reqs = "rate: 1/h, burst: 6, unit: requests"
		size = "rate: 1kb/h, burst: 300, unit: request_bytes"
	)
	f("key: [index], "+docs, "/_bulk", lines("a"), 6)
	f("key: [index], "+docs, "/_bulk", lines("a", "b"), 6)
	f("key: [index], "+docs, "/_bulk", lines("a", "b", "a", "a"), 2)
	f("key: [index], "+docs, "/other/_bulk", lines("a", "b", "a", "a"), 2)
	f("key: [index], "+docs, "/a/_bulk", lines("a")+"{\"index\":{}}\n{}\n{\"delete\":{\"_id\":1}}\n", 2)
	f("key: [index], "+docs, "/a/_bulk", "{\"index\":{\"_index\":null}}\n{}\n{\"index\":{\"_index\":\"\"}}\n{}\n", 3)
	f("key: [index], "+docs, "/_bulk", "{\"index\":{}}\n{}\n{\"index\":{\"_index\":\"a*\"}}\n{}\n"+lines("<a-{now/d}>"), 3) // what goes to a* may go to a-* too
	f("key: [index], "+docs, "/_bulk", "{\"index\":{\"_index\":\"\\u0061\"}}\n{}\n"+lines("a", "a::failures"), 2)
	f("key: [index], "+docs, "/_bulk/stream", lines("a", "a"), 3)
	f("key: [index], "+reqs, "/_bulk", lines("a", "b", "a", "a"), 6)
	f("key: [index], cost: {bulk: 3}, "+reqs, "/_bulk", lines("a", "b", "a"), 2)
	f("key: [global], index: a, "+docs, "/_bulk", lines("a", "b", "a", "b"), 3)
	f("key: [global], index: [a, b], "+docs, "/_bulk", lines("a", "b", "a", "b"), 1)
	f("key: [index], index: [a, b], "+docs, "/_bulk", lines("a", "b", "a", "b", "c", "c", "c"), 3)
	f("key: [global], index: pay-*, "+docs, "/logs/_bulk", lines("pay-1", "pay-2", "logs"), 3)
	f("key: [global], index: pay-*, "+reqs, "/_bulk", lines("pay-1", "pay-2", "logs"), 6)
	f("key: [global], index: pay-*, "+docs, "/pay-1/_bulk", lines("logs"), 20)
	f("key: [global], index: pay-*, "+docs, "/_bulk", lines("logs"), 20)
	f("key: [global], index: pay-*, "+docs, "/_bulk", lines("<pay-{now/d}>"), 6)
	f("key: [global], index: pay-*, "+docs, "/_bulk", "{\"index\":{}}\n{}\n", 6)          // a node would refuse it
	f("key: [global], index: pay-*, "+docs, "/_bulk", "", 6)                              // the same
	f("key: [global], index: pay-*, "+docs, "/_bulk", lines(strings.Repeat("x", 256)), 6) // the same
	f("key: [index], "+size, "/_bulk", strings.Repeat(lines("a"), 2)+lines("b"), 4)       // 33 bytes each
	f("key: [global], index: b, "+size, "/_bulk", strings.Repeat(lines("a"), 2)+lines("b"), 9)
	f("key: [global], index: i, "+docs, "/i/_doc", "{}", 6)
	f("key: [global], index: other, "+docs, "/i/_doc", "{}", 20)

	// The conditions of a limit hold for bulks as well.
	f("key: [index], when: {user: bob}, "+docs, "/_bulk", lines("a"), 20)
	f("key: [index], pattern: ^/x, "+docs, "/_bulk", lines("a"), 20)
}

// TestUnreadBulks holds that a bulk whose actions cannot be read is refused where their indices matter, costs nobody anything,
// and elsewhere counts as more than it may hold, not as less.
func TestUnreadBulks(t *testing.T) {
	f := func(body string, byNumber int, fields ...string) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			x := with("POST", "/_bulk", body, fields...)
			for _, limit := range []string{"key: [index]", `key: [global], index: "pay-*"`} {
				g := newGateway(t, "- rate_limit: {limits: [{"+limit+", unit: bulk_docs, rate: 1/h, burst: 80}]}")
				if e := g.serve(x(0)); e == nil || e.Status != 400 || !strings.Contains(e.Reason, "cannot be read") {
					t.Errorf("%.40q %s with %s: %v", body, fields, limit, e)
				}
				if n := g.passes(80, with("POST", "/_bulk", lines("<pay-{now/d}>"))); n != 80 {
					t.Errorf("%.40q %s with %s: %d of 80 others pass", body, fields, limit, n)
				}
			}
			g := newGateway(t, "- rate_limit: {limits: [{key: [global], unit: bulk_docs, rate: 1/h, burst: 80}]}")
			if n := g.passes(90, x); n != byNumber {
				t.Errorf("%.40q %s: %d of 90 pass by number, want %d", body, fields, n, byNumber)
			}
		})
	}
	f(lines("a"), 2, "Content-Encoding", "unheard-of") // of 33 bytes
	f(lines("a"), 2, "Content-Type", "application/Smile")
	f("{\"index\":broken}\n{}\n", 40)
	f("{\"delete\":/**/{\"_index\":\"a\"}}\n"+lines("pay-1"), 40) // Elasticsearch reads comments
	f("{\"delete\":{"+strings.Repeat(" ", longestAction)+"\"_index\":\"a\"}}\n"+lines("pay-1"), 40)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestMostInflated holds that what is too large to be inflated is not taken for read, and what ends early is.
func TestMostInflated(t *testing.T) {
	var f inflater
	if f.copy(endless{}, io.Discard) {
		t.Error("all of an endless body was read")
	}
	for _, coding := range []string{"gzip", "deflate"} {
		x := flows.Explaining("POST", "/_bulk", "Content-Encoding", coding)
		if known, readable := f.inflate(x, []byte("broken"), io.Discard); !known || !readable {
			t.Errorf("there is more to read in a body that is no %s", coding)
		}
	}
}

// TestBulkIsRefusedWhole holds that a bulk which is over the limit of one index costs the others nothing.
func TestBulkIsRefusedWhole(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, "- rate_limit: {limits: [{name: writes, key: [index], unit: bulk_docs, rate: 1/h, burst: 2}]}")
		if n := g.passes(9, with("POST", "/_bulk", lines("a"))); n != 2 {
			t.Fatalf("%d pass, want 2", n)
		}
		if e := g.serve(with("POST", "/_bulk", lines("b", "a"))(0)); e == nil || !strings.Contains(e.Reason, "[writes]") {
			t.Fatalf("a bulk with an index over its limit: %v", e)
		}
		if n := g.passes(9, with("POST", "/_bulk", lines("b"))); n != 2 {
			t.Errorf("%d pass of an index that only refused bulks named, want 2", n)
		}
	})
}

// TestOnlyBulksAreRead holds that other bodies are not waited for, and that what a bulk wrote is not charged to others.
func TestOnlyBulksAreRead(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, "- rate_limit: {limits: [{key: [index], rate: 1/h}]}")
		for i := range 3 {
			if e := g.serve(with("POST", "/_bulk", lines(fmt.Sprint("a", i)))(0)); e != nil {
				t.Fatal(e)
			}
			x := with("POST", fmt.Sprint("/b", i, "/_search"), "{}")(0)
			err := g.flow.Serve(x)
			if err != nil || x.Request.Body.Buffered() {
				t.Errorf("search %d: error %v, body read %v", i, err, x.Request.Body.Buffered())
			}
			x.Conclude()
		}
	})
}

// TestBodiesThatNameIndices holds that another path does not evade a limit on an index that the body may name.
func TestBodiesThatNameIndices(t *testing.T) {
	f := func(target string, want int) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, `- rate_limit: {limits: [{key: [global], index: "pay-*", rate: 1/h}]}`)
			if n := g.passes(3, get(target)); n != want {
				t.Errorf("%s: %d of 3 passed, want %d", target, n, want)
			}
			g.load(`- rate_limit: {limits: [{key: [index], rate: 1/h}]}`)
			passed := 0
			for i := range 3 { // from other paths
				passed += g.passes(1, get(fmt.Sprint("/x", i, strings.TrimPrefix(target, "/logs"))))
			}
			if passed != want {
				t.Errorf("%s: %d of 3 passed by index, want %d", target, passed, want)
			}
		})
	}
	f("/logs/_msearch", 1)
	f("/logs/_msearch/template", 1)
	f("/logs/_mget", 1)
	f("/logs/_mtermvectors", 1)
	f("/logs/_search", 3)
}

// TestIndicesOfBodies holds that the limit of an index counts what bodies ask of it, and nothing else.
func TestIndicesOfBodies(t *testing.T) {
	f := func(limit, target, body string, want int) {
		t.Helper()
		for _, coding := range []string{"", "gzip"} {
			simtime.Test(t, func(t *testing.T) {
				t.Helper()
				g := newGateway(t, "- rate_limit: {limits: [{"+limit+"}]}")
				n := g.passes(20, func(int) *flows.Exchange {
					x := exchange("POST", target, "Content-Encoding", coding)
					x.Request.Body.Replace([]byte(packed(body, coding)))
					return x
				})
				if n != want {
					t.Errorf("%s: %s %q %s: %d of 20 pass, want %d", limit, target, body, coding, n, want)
				}
			})
		}
	}
	const pay, each, searches = `key: [global], index: "pay-*", rate: 1/h, burst: 6`, `key: [index], rate: 1/h, burst: 6`, ", unit: searches"
	header := func(indices ...string) (body string) {
		for _, index := range indices {
			body += index + "\n{}\n"
		}
		return body
	}
	f(pay, "/_msearch", header(`{"index":"logs"}`), 20)
	f(pay, "/_msearch", header(`{"index":"logs"}`, `{"index":["a","pay-1"]}`), 6)
	f(pay, "/_msearch", header(`{"index":"p*"}`), 6)
	f(pay, "/_msearch", header(`{"index":"-logs"}`), 6)
	f(pay, "/_msearch", header(`{"\u0069ndex":"logs"}`), 6) // it could be any
	f(pay, "/_msearch", header(`{"index":"logs"}/**/`), 6)
	f(pay, "/_msearch", header(`{"index":"logs","routing":"`+strings.Repeat("x", longestAction)+`"}`), 6)
	f(pay, "/_msearch", header(`{}`), 6)
	f(pay, "/_msearch", header(``), 6)
	f(pay, "/logs/_msearch", header(`{}`), 20)
	f(pay, "/logs/_msearch", header(``, `{"index":"pay-1"}`), 6)
	f(pay, "/logs/_msearch", "\n"+header(`{"index":"pay-1"}`), 6)     // Elasticsearch 7 and OpenSearch skip the first line
	f(pay, "/logs/_msearch", "\n{}\n"+header(`{"index":"pay-1"}`), 6) // and later versions do not
	f(pay, "/logs/_msearch", "\n{}\n"+header(`{}`), 20)
	f(pay, "/logs/_msearch", "", 6) // it may stand in the URL
	f(pay, "/_msearch/template", header(`{"index":"logs"}`), 20)
	f(pay+searches, "/_msearch", header(`{"index":"logs"}`, `{"index":"pay-1"}`), 3)
	f(each, "/_msearch", header(`{"index":"a"}`, `{"index":"a"}`, `{"index":"b"}`), 6)
	f(each+searches, "/_msearch", header(`{"index":"a"}`, `{"index":"a"}`, `{"index":"b"}`), 3)
	f(each+searches, "/a/_msearch", header(`{}`, `{"index":"b"}`), 6)
	f(each+searches, "/a/_msearch", header(`{}`, `{"index":"a,b"}`), 3)
	f(pay, "/_mget", `{"docs":[{"_index":"logs","_id":"1"}]}`, 20)
	f(pay, "/_mget", `{"docs":[{"_index":"logs","_id":"1"},{"_index":"pay-1","_id":"1"}]}`, 6)
	f(pay, "/logs/_mget", `{"ids":["1"]}`, 20)
	f(pay, "/logs/_mget", `{"docs":[{"_id":"1"},{"_index":"pay-1","_id":"1"}]}`, 6)
	f(pay, "/logs/_mget", `{"docs":[`, 6)
	f(pay, "/_mtermvectors", `{"docs":[{"_index":"logs","_id":"1"}]}`, 20)
	f(pay, "/_search", `{}`, 6)
	f(pay, "/_search", `{"pit":{"id":"x"}}`, 6) // of pay-1, perhaps
	f(each, "/_search", `{"pit":{"id":"x"}}`, 6)
}

// TestPatternsCountForWhatTheyMean holds that no spelling of an index has a budget of its own, and that a pattern costs nothing of
// what it does not reach.
func TestPatternsCountForWhatTheyMean(t *testing.T) {
	type spelling struct {
		target string
		wide   bool // it means met-1 as well
	}
	spellings := []spelling{
		{"/logs-1/_search", false},
		{"/logs-1,x/_search", false},
		{"/log*/_search", false},
		{"/l*-*/_search", false},
		{"/logs-1::data/_search", false},
		{"/%3Clogs-%7Bnow%2Fd%7D%3E/_search", false},
		{"/*-1/_search", true},
		{"/_all/_search", true},
		{"/_search", true},
		{"/*/_count", true},
		{"/*,-met*/_search", true},
	}
	f := func(first, then string, wide bool) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			others := 4
			if wide {
				others = 0
			}
			g := newGateway(t, "- rate_limit: {limits: [{name: each, key: [index], rate: 1/h, burst: 5}]}")
			g.passes(1, get("/logs-1/_search"))
			g.passes(1, get("/met-1/_search"))
			if n := g.passes(10, get(first)); n != 4 {
				t.Errorf("%s passes %d times, want 4", first, n)
			}
			if n := g.passes(10, get(then)); n != 0 {
				t.Errorf("after %s: %s passes %d times, want 0", first, then, n)
			}
			if n := g.passes(10, get("/met-1/_search")); n != others {
				t.Errorf("after %s and %s: another index passes %d times, want %d", first, then, n, others)
			}
		})
	}
	for _, a := range spellings {
		for _, b := range spellings {
			f(a.target, b.target, a.wide)
		}
	}
	// Nobody has named the index yet.
	g := func(first, then string, want int) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {limits: [{name: each, key: [index], rate: 1/h, burst: 5}]}")
			if n := g.passes(10, get(first)); n != 5 {
				t.Errorf("%s passes %d times, want 5", first, n)
			}
			if n := g.passes(10, get(then)); n != want {
				t.Errorf("after %s: %s passes %d times, want %d", first, then, n, want)
			}
		})
	}
	g("/log*/_search", "/logs-1/_search", 0)
	g("/log*/_search", "/logs-*/_search", 0)
	g("/logs-*/_search", "/log*/_search", 0)
	g("/log*/_search", "/met*/_search", 5)
	g("/log*/_search", "/met-1/_search", 5)
	g("/logs-1/_search", "/logs-2/_search", 5)
	g("/_search", "/logs-1/_search", 0)
	g("/_search/scroll", "/logs-1/_search", 5)
}

// TestRollIsBounded holds that expressions which nobody uses make room for others, and those in use stay.
func TestRollIsBounded(t *testing.T) {
	var r roll
	for i := range 5 * rollNames {
		r.related(fmt.Append(nil, "name-", i))
		r.related(fmt.Append(nil, "pattern-", i, "*"))
		charged, _ := r.related([]byte("kept*"))
		if _, checked := r.related([]byte("kept-1")); len(checked) != 1 || checked[0].expr != "kept*" {
			t.Fatalf("after %d others: a pattern in use is forgotten", i)
		}
		if i > 0 && len(charged) != 1 {
			t.Fatalf("after %d others: a name in use is forgotten", i)
		}
	}
	if n := r.len(); n > 2*(rollNames+rollPatterns) {
		t.Errorf("%d expressions are remembered", n)
	}
}

// TestManyIndicesInABulk holds that a bulk of many indices charges each of them and no other, that one of too many is refused
// and costs nothing, and that memory for them is bounded.
func TestManyIndicesInABulk(t *testing.T) {
	var n indices
	var call api.Call
	api.Classify(&call, []byte("POST"), []byte("/_bulk"), nil)
	n.read(&call)
	for i := range 10_000 {
		n.write(fmt.Append(nil, "index-", i), 1)
	}
	docs := int64(0)
	for _, w := range n.named {
		docs += w.docs
	}
	if len(n.named) != maxIndices+1 || docs != 10_000 || len(n.text) > maxIndices*longestIndex || !n.beyond {
		t.Errorf("%d indices with %d documents in %d bytes", len(n.named), docs, len(n.text))
	}
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{name: each, key: [index], unit: bulk_docs, rate: 1/40s, burst: 5}]}`)
		many := func(filler int, others ...string) func(int) *flows.Exchange {
			return func(i int) *flows.Exchange {
				var names []string
				for j := range filler {
					names = append(names, fmt.Sprint("x", i, "-", j))
				}
				return with("POST", "/_bulk", lines(append(names, others...)...))(i)
			}
		}
		if n := g.passes(9, many(0, "aa")); n != 5 {
			t.Fatalf("%d pass, want 5", n)
		}
		for _, filler := range []int{1, 16, 64, 65, maxIndices - 1} {
			if n := g.passes(2, many(filler, slices.Repeat([]string{"aa"}, 20)...)); n != 0 {
				t.Errorf("%d passed with %d indices beside one that is used up, want 0", n, filler)
			}
		}
		if n := g.passes(9, many(maxIndices-1, "b", "b")); n != 2 {
			t.Errorf("%d of many indices passed, want 2", n)
		}
		if e := g.serve(many(maxIndices + 1)(0)); e == nil || e.Status != 400 || !strings.Contains(e.Reason, "[each] takes at most 1000 indices") {
			t.Errorf("a bulk of too many indices: %v", e)
		}
		if n := g.passes(9, many(0, "<c-{now/d}>")); n != 5 {
			t.Errorf("%d with date math passed, want 5", n)
		}
	})
}

func TestLinesAllocate(t *testing.T) {
	if raced {
		t.Skip("sync.Pool forgets under the race detector")
	}
	f := func(coding string) {
		t.Helper()
		g := newGateway(t, `
- rate_limit:
    limits:
      - {name: a, key: [index], unit: bulk_docs, rate: 1000000000/s}
      - {name: b, key: [global], index: "logs-*", unit: request_bytes, rate: 1000000000/s}
`)
		x := exchange("POST", "/_bulk", "Content-Encoding", strings.TrimPrefix(coding, "bare "))
		x.Request.Body.Replace([]byte(packed(strings.Repeat(lines("logs-1", "logs-2", "b"), 100), coding)))
		if n := testing.AllocsPerRun(100, func() {
			if err := g.flow.Serve(x); err != nil {
				t.Fatal(err)
			}
			x.Conclude()
			x.Response.Header.Reset()
		}); n != 0 {
			t.Errorf("%q: %v allocations", coding, n)
		}
	}
	f("")
	f("gzip")
	f("deflate")
	f("bare deflate")
}

// FuzzLines holds the count of a bulk's actions, by index too, against the scanner that pipelines read bulks with, however
// the body is cut into pieces.
func FuzzLines(f *testing.F) {
	f.Add("{\"index\":{}}\n{\"a\":1}\n{\"delete\":{\"_id\":\"1\"}}\n", 3)
	f.Add("\n \r\n{ \"delete\" : {}}\r\n{\"update\":{}}\n{\"delete\":1}\n", 1)
	f.Add("\xef\xbb\xbf{\"delete\":{}}\n{\"index\":{}}\n\n", 7)
	f.Add(strings.Repeat("{\"index\":{\"_id\":\"long\"}}\n"+strings.Repeat("x", 200)+"\n", 3), 64)
	f.Add(lines("a", "b", "a")+"{\"\\u0064elete\":{\"_index\":\"\\u0061\"}}\n", 5)
	f.Add("\xef\xbb\xbf\n{\"index\":{}}\n{}\n", 2)
	f.Fuzz(func(t *testing.T, body string, piece int) {
		var call api.Call
		api.Classify(&call, []byte("POST"), []byte("/of-the-path/_bulk"), nil)
		count := func(piece int) (int64, []named) {
			var n indices
			n.read(&call)
			var c lineCounter
			c.reset(false, &n)
			for rest := []byte(body); len(rest) > 0; {
				n := min(max(piece, 1), len(rest))
				_, _ = c.Write(rest[:n])
				rest = rest[n:]
			}
			return c.count(), n.named
		}
		got, byIndex := count(piece)
		want, wantByIndex := count(len(body))
		if d := cmp.Diff(wantByIndex, byIndex, cmp.AllowUnexported(named{}, use{})); got != want || d != "" {
			t.Fatalf("%d actions in pieces of %d, %d in one:\n%s", got, piece, want, d)
		}
		var s bulk.Scanner
		s.Reset([]byte(body))
		var n indices
		n.read(&call)
		want = 0
		for s.Next() {
			a := s.Action()
			want++
			n.write(a.Index, int64(a.End-a.Start))
			if a.Verb == bulk.Other || a.End-a.Start > longestAction {
				return // what such an action takes is for nodes to say
			}
		}
		if s.Err() != nil || lastCut(body) {
			return
		}
		if d := cmp.Diff(n.named, byIndex, cmp.AllowUnexported(named{}, use{})); got != max(1, want) || d != "" {
			t.Errorf("%d actions in %q, the scanner finds %d:\n%s", got, body, want, d)
		}
	})
}

// lastCut tells whether the last action of a body may lack its second line: the scanner then does not count it.
func lastCut(body string) bool {
	lines := strings.Split(strings.TrimRight(body, "\n"), "\n")
	return strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(lines[len(lines)-1], "\xef\xbb\xbf")), "{")
}

func BenchmarkLines(b *testing.B) {
	body := []byte(strings.Repeat(lines("logs-1", "logs-2", "b"), 1000))
	var call api.Call
	api.Classify(&call, []byte("POST"), []byte("/_bulk"), nil)
	var n indices
	var c lineCounter
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		n.read(&call)
		c.reset(false, &n)
		_, _ = c.Write(body)
	}
}
