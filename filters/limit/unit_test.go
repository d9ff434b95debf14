package limit

import (
	"strings"
	"testing"
	"time"

	"weir/flows"
	"weir/internal/simtime"
)

// TestUnits tells how many of many equal requests pass at once.
func TestUnits(t *testing.T) {
	f := func(limit string, want int, x func(int) *flows.Exchange) {
		t.Helper()
		simtime.Test(t, func(t *testing.T) {
			t.Helper()
			g := newGateway(t, "- rate_limit: {limits: [{"+limit+"}]}")
			if n := g.passes(20, x); n != want {
				t.Errorf("%s: %d of 20 pass at once, want %d", limit, n, want)
			}
		})
	}
	const docs = "{\"index\":{}}\n{\"a\":1}\n{\"delete\":{\"_id\":\"1\"}}\n{\"create\":{}}\n{}\n" // three
	f("unit: bulk_docs, rate: 10/h, burst: 10", 3, with("POST", "/i/_bulk", docs))
	f("unit: bulk_docs, rate: 10/h, burst: 10", 3, with("POST", "/i/_bulk", packed(docs, "gzip"), "Content-Encoding", "gzip"))
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

	f("unit: took, rate: 1s/h, burst: 1s", 4, get("/i/_search", "x-work", "1s", "x-answer", `{"took":260,"hits":{}}`))
	f("unit: took, rate: 1s/h, burst: 1s", 4, get("/i/_search", "x-work", "1s", "x-answer", ` { "took" : 300 , "hits":{}}`))
	f("unit: took, rate: 1s/h, burst: 1s", 4, with("POST", "/_bulk", docs, "x-work", "1s", "x-answer", `{"took":260,"errors":false}`))
	// No answer is believed that says more than it took to come, and no document.
	f("unit: took, rate: 1s/h, burst: 1s", 4, get("/i/_search", "x-work", "260ms", "x-answer", `{"took":99999999999999999999}`))
	f("unit: took, rate: 1s/h, burst: 1s", 4, get("/i/_source/1", "x-work", "260ms", "x-answer", `{"took":0}`))
	f("unit: took, rate: 1s/h, burst: 1s", 4, with("POST", "/_sql?format=csv", "{}", "x-work", "260ms", "x-answer", `{"took":0}`))
	f("unit: took, rate: 1s/h, burst: 1s", 5, get("/i/_mapping", "x-work", "210ms", "x-answer", `{}`))
	f("unit: took, rate: 1s/h, burst: 1s", 20, get("/i/_search", "x-answer", `{"took":250}`)) // no cluster was asked

	f("rate: 10/h, burst: 10, cost: 3", 3, get("/"))
	f("rate: 10/h, burst: 10, cost: {search: 5, inspect: 0}", 2, get("/i/_search"))
}

// TestChargedAfterwards holds that what is known only in the end is charged when the answer has been written.
func TestChargedAfterwards(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		g := newGateway(t, `- rate_limit: {limits: [{key: [global], unit: took, rate: 1s/s, burst: 100ms}]}`)
		slow := get("/i/_search", "x-work", "5s", "x-answer", `{"took":5000}`)
		x := slow(0)
		if e := g.serve(x); e != nil {
			t.Fatalf("refused before anything was charged: %v", e)
		}
		if got := string(x.Response.Header.Get("ratelimit")); got != `"limit_1";r=0;t=5` {
			t.Errorf("a search of 5 s is told %s, want that the next one passes in 5 s", got)
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
	simtime.Test(t, func(t *testing.T) {
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

func TestCostsAreWritten(t *testing.T) {
	f := func(c Costs, want string) {
		t.Helper()
		if got := c.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(Costs{all: 1}, "1")
	f(Costs{all: 1, byAPI: map[string]int64{"search": 5, "inspect": 2}}, "{inspect: 2, search: 5}")
}
