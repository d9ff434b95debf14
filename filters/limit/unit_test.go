package limit

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/flows"
)

// with makes the same exchange each time, with a body.
func with(method, target, body string, fields ...string) func(int) *flows.Exchange {
	return func(int) *flows.Exchange {
		x := exchange(method, target, fields...)
		x.Request.Body.ReplaceStream(strings.NewReader(body), int64(len(body)))
		return x
	}
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

// TestUnits tells how many of many equal requests pass at once.
func TestUnits(t *testing.T) {
	f := func(limit string, want int, x func(int) *flows.Exchange) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {limits: [{"+limit+"}]}")
			if n := g.passes(20, x); n != want {
				t.Errorf("%s: %d of 20 pass at once, want %d", limit, n, want)
			}
		})
	}
	const docs = "{\"index\":{}}\n{\"a\":1}\n{\"delete\":{\"_id\":\"1\"}}\n{\"create\":{}}\n{}\n" // three
	f("unit: bulk_docs, rate: 10/h, burst: 10", 3, with("POST", "/i/_bulk", docs))
	f("unit: bulk_docs, rate: 10/h, burst: 10", 3, with("POST", "/i/_bulk", zipped(docs), "Content-Encoding", "gzip"))
	f("unit: bulk_docs, rate: 10/h, burst: 10", 10, with("POST", "/i/_doc", "{}"))
	f("unit: bulk_docs, rate: 10/h, burst: 10", 20, with("POST", "/i/_search", "{}"))
	f("unit: bulk_docs, rate: 1/h, burst: 2", 1, with("POST", "/i/_bulk", docs)) // above the burst: a debt

	const search = "{}\n{\"query\":{}}\n"
	f("unit: searches, rate: 10/h, burst: 10", 5, with("POST", "/_msearch", search+search))
	f("unit: searches, rate: 10/h, burst: 10", 5, with("POST", "/_msearch", "\n{\"query\":{}}\n"+search))
	f("unit: searches, rate: 10/h, burst: 10", 10, with("POST", "/i/_search", "{}"))
	f("unit: searches, rate: 10/h, burst: 10", 20, with("PUT", "/i/_doc/1", "{}"))

	f("unit: request_bytes, rate: 1kb/h, burst: 1kb", 10, with("PUT", "/i/_doc/1", strings.Repeat("x", 100)))
	f("unit: request_bytes, rate: 1kb/h, burst: 1kb", 20, get("/"))

	f("unit: took, rate: 1s/h, burst: 1s", 4, get("/i/_search", "x-work", "1ms", "x-answer", `{"took":260,"hits":{}}`))
	f("unit: took, rate: 1s/h, burst: 1s", 4, get("/i/_search", "x-work", "1ms", "x-answer", ` { "took" : 300 , "hits":{}}`))
	f("unit: took, rate: 1s/h, burst: 1s", 5, get("/i/_mapping", "x-work", "210ms", "x-answer", `{}`))
	f("unit: took, rate: 1s/h, burst: 1s", 20, get("/i/_search", "x-answer", `{"took":250}`)) // no cluster was asked

	f("rate: 10/h, burst: 10, cost: 3", 3, get("/"))
	f("rate: 10/h, burst: 10, cost: {search: 5, inspect: 0}", 2, get("/i/_search"))
}

// TestChargedAfterwards holds that what is known only in the end is charged when the answer has been written.
func TestChargedAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{key: [global], unit: took, rate: 1s/s, burst: 100ms}]}`)
		slow := get("/i/_search", "x-work", "1ms", "x-answer", `{"took":5000}`)
		if e := g.serve(slow(0)); e != nil {
			t.Fatalf("refused before anything was charged: %v", e)
		}
		e := g.serve(slow(0))
		if e == nil || e.RetryAfter != 5*time.Second {
			t.Fatalf("after a search of 5 s: %v, want a refusal for 5 s", e)
		}
		<-time.After(e.RetryAfter)
		if e := g.serve(slow(0)); e != nil {
			t.Errorf("refused after waiting as told: %v", e)
		}
	})
}

// TestRefusedBodyIsNotRead holds that a request that is over another limit is refused before its body comes.
func TestRefusedBodyIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{rate: 1/h}, {unit: bulk_docs, rate: 1000/s}]}`)
		bulk := with("POST", "/_bulk", "{\"index\":{}}\n{}\n")
		if e := g.serve(bulk(0)); e != nil {
			t.Fatal(e)
		}
		x := bulk(0)
		if g.serve(x) == nil || x.Request.Body.Buffered() {
			t.Errorf("refused %v, body read %v", x.Trace.Outcome, x.Request.Body.Buffered())
		}
	})
}

// FuzzLines holds the count of a bulk's actions against the scanner that pipelines read bulks with, however
// the body is cut into pieces.
func FuzzLines(f *testing.F) {
	f.Add("{\"index\":{}}\n{\"a\":1}\n{\"delete\":{\"_id\":\"1\"}}\n", 3)
	f.Add("\n \r\n{ \"delete\" : {}}\r\n{\"update\":{}}\n{\"delete\":1}\n", 1)
	f.Add("\xef\xbb\xbf{\"delete\":{}}\n{\"index\":{}}\n\n", 7)
	f.Add(strings.Repeat("{\"index\":{\"_id\":\"long\"}}\n"+strings.Repeat("x", 200)+"\n", 3), 64)
	f.Fuzz(func(t *testing.T, body string, piece int) {
		c := lineCounter{}
		for rest := []byte(body); len(rest) > 0; {
			n := min(max(piece, 1), len(rest))
			_, _ = c.Write(rest[:n])
			rest = rest[n:]
		}
		got := c.count()
		whole := lineCounter{}
		_, _ = whole.Write([]byte(body))
		if want := whole.count(); got != want {
			t.Fatalf("%d actions in pieces of %d, %d in one", got, piece, want)
		}
		var s bulk.Scanner
		s.Reset([]byte(body))
		want := int64(0)
		for s.Next() {
			want++
			if s.Action().Verb == bulk.Other {
				return // what such an action takes is for nodes to say
			}
		}
		if s.Err() == nil && got != max(1, want) && !lastCut(body) {
			t.Errorf("%d actions in %q, the scanner finds %d", got, body, want)
		}
	})
}

// lastCut tells whether the last action of a body may lack its second line: the scanner then does not count it.
func lastCut(body string) bool {
	lines := strings.Split(strings.TrimRight(body, "\n"), "\n")
	return deletes([]byte(lines[len(lines)-1])) || strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(lines[len(lines)-1], "\xef\xbb\xbf")), "{")
}

func TestCostsAreWritten(t *testing.T) {
	f := func(c Costs, want string) {
		t.Helper()
		if got := c.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(Costs{all: 1}, "1")
	f(Costs{all: 1, byAPI: map[string]int64{"search": 5, "inspect": 2}}, "{inspect: 2, search: 5}")
	if len(callNames()) <= api.Count {
		t.Error("names of calls are missing")
	}
}
