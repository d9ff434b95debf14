package cache

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/flows"
	"weir/internal/simtime"
)

// Here are mistakes of other caches in front of Elasticsearch that have no better place.

// POST searches with different bodies shared one entry (sonyseng/json-caching-proxy#1, trickstercache/trickster#597).
func TestTheBodyIsPartOfTheQuestionWhereverItStands(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		inURL := func(body string) string {
			return "/i/_search?source_content_type=application/json&source=" + url.QueryEscape(body)
		}
		get := func(target, body string, fields ...string) string {
			x := flows.Explaining("GET", target, fields...)
			x.Request.Body.Replace([]byte(body))
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			return bodyOf(x)
		}
		one := bodyOf(r.ask("/i/_search", `{"size":1}`))
		two := bodyOf(r.ask("/i/_search", `{"size":2}`))
		none := get("/i/_search", "")
		r.wantCalls(3)
		// Each of these is one of the searches above.
		for _, c := range []struct{ got, want string }{
			{get("/i/_search", `{"size":1}`, "Content-Type", "application/json"), one},
			{get("/i/_search", ` { "size" : 2 } `, "Content-Type", "application/json"), two},
			{get(inURL(`{"size":1}`), ""), one},
			{get(inURL(`{"size": 2}`), ""), two},
			{bodyOf(r.ask("/i/_search", `{}`)), none},
		} {
			if c.got != c.want {
				t.Errorf("got %s, want %s", c.got, c.want)
			}
		}
		r.wantCalls(3)
	})
}

// Two who open a cursor at once shared one, and each call moved it for both (elastic/elasticsearch#25674, ICIJ/datashare#464).
func TestCursorsAreNeverShared(t *testing.T) {
	for _, c := range []struct{ target, body string }{
		{"/i/_search?scroll=1m", `{}`},
		{"/_search/scroll", `{"scroll_id":"x"}`},
		{"/i/_pit?keep_alive=1m", ``},
		{"/_search", `{"pit":{"id":"x"}}`},
		{"/i/_async_search?keep_on_completion=true", `{"size":0}`},
		{"/_sql", `{"cursor":"x"}`},
	} {
		bubbles(t, func(t *testing.T, r *rig) {
			running := make(chan struct{})
			whole := r.node
			r.node = func(x *flows.Exchange, call int64) error { <-running; return whole(x, call) }
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { r.ask(c.target, c.body) })
			}
			synctest.Wait()
			r.wantCalls(2) // both at once: nobody waits for the other
			close(running)
			wg.Wait()
			r.ask(c.target, c.body)
			r.wantCalls(3)
		})
	}
}

// Numbers came back as others because a layer in between decoded them (elastic/elasticsearch#48074, elastic/kibana#236226).
func TestAnswersAreGivenByteForByte(t *testing.T) {
	const one = `{"took":1,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},` +
		`"hits":{"hits":[{"_id":"1","_source":{"id":742241735434043391,"n":1.0,"e":1e2,"z":-0,"f":0.1000,"s":"\u00e9\/"},"sort":[9223372036854775807]}]}}`
	both(t, func(t *testing.T, r *rig) {
		r.node = func(x *flows.Exchange, _ int64) error { reply(x, 200, one); return nil }
		for range 2 {
			if got := bodyOf(r.ask("/i/_search", `{}`)); got != one {
				t.Errorf("got %s", got)
			}
		}
		r.wantCalls(1)
		x := flows.Explaining("POST", "/_msearch", "Content-Type", "application/x-ndjson")
		x.Request.Body.Replace([]byte("{\"index\":\"i\"}\n{}\n"))
		if err := r.serve("main", x); err != nil {
			t.Fatal(err)
		}
		if got := bodyOf(x); !strings.Contains(got, one[:len(one)-1]) {
			t.Errorf("in a _msearch: %s", got)
		}
		r.wantCalls(1)
	})
}

// The parameter that keeps a request out was not seen, or was seen where it was not (infinilabs/gateway 1.6.0, 1.9.0).
func TestOwnSwitchWhereverItStands(t *testing.T) {
	f := func(query string, passes bool) {
		t.Helper()
		r := newRig(t, classic)
		r.ask("/i/_search?"+query, `{}`)
		x := r.ask("/i/_search?"+query, `{}`)
		if got := field(x, "cache-status") == "weir; fwd=bypass; detail=no-cache-argument"; got != passes {
			t.Errorf("%s: %s", query, field(x, "cache-status"))
		}
	}
	f("no_cache=true", true)
	f("no_cache", true)
	f("no_cache=true&size=1&from=0", true)
	f("size=1&no_cache=true&from=0", true)
	f("size=1&from=0&no_cache=true", true)
	f("size=1&n%6f_cache=true", true)
	f("no_cache=false", false)
	f("x=no_cache", false)
	f("q=no_cache%3Dtrue", false)
	f("xno_cache=true", false)
}

// Callers who are told apart by their certificates shared answers (trickstercache/trickster#139 for Authorization).
func TestCertificatesTellCallersApart(t *testing.T) {
	subject := func(issuer, name string) *x509.Certificate {
		raw := func(name string) []byte {
			der, err := asn1.Marshal(pkix.Name{CommonName: name}.ToRDNSequence())
			if err != nil {
				t.Fatal(err)
			}
			return der
		}
		return &x509.Certificate{RawIssuer: raw(issuer), RawSubject: raw(name)}
	}
	both(t, func(t *testing.T, r *rig) {
		ask := func(cert *x509.Certificate) *flows.Exchange {
			x := plain()
			x.Request.Cert = cert
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			return x
		}
		callers := []*x509.Certificate{nil, subject("ca", "alice"), subject("ca", "bob"), subject("other", "alice"), subject("c", "aalice")}
		for round := range 2 {
			for i, cert := range callers {
				if n := answeredBy(t, ask(cert)); n != i+1 {
					t.Errorf("round %d: caller %d got the answer of call %d", round, i, n)
				}
			}
		}
		if x := ask(subject("ca", "alice")); x.Trace.Outcome != flows.Hit {
			t.Errorf("a renewed certificate: %s", field(x, "cache-status"))
		}
		r.wantCalls(int64(len(callers)))
	})
}

// What is neither a search nor a count is kept on demand only, for its time only, and never when it leaves state on the node.
func TestOtherAPIs(t *testing.T) {
	stale := func(t *testing.T, also string, f func(r *rig)) {
		simtime.Test(t, func(t *testing.T) {
			f(newRig(t, `[{name: main, filter: [{cache: {ttl: 1h, now_ttl: 5s, also: [`+also+`]}}, {node: {}}]}]`))
		})
	}
	const all = "field_caps, indices.get_mapping, search_template, sql.query, esql.query, ppl.query"
	const searched = `{"timed_out":false,"_shards":{"total":1,"successful":1,"failed":0}}`
	cases := []struct{ method, target, body, other, answer string }{
		{"GET", "/i/_field_caps?fields=*", ``, "/i/_field_caps?fields=a", `{"indices":["i"],"fields":{}}`},
		{"GET", "/i/_mapping", ``, "/j/_mapping", `{"i":{"mappings":{}}}`},
		{"POST", "/i/_search/template", `{"id":"t","params":{"a":1}}`, "/j/_search/template", searched},
		{"POST", "/_sql", `{"query":"SELECT 1"}`, "/_sql?x=1", `{"columns":[],"rows":[]}`},
		{"POST", "/_query", `{"query":"FROM i"}`, "/_query?drop_null_columns=true", `{"columns":[],"values":[],"is_partial":false}`},
		{"POST", "/_plugins/_ppl", `{"query":"source=i"}`, "/_plugins/_ppl?x=1", `{"schema":[],"datarows":[]}`},
	}
	for _, c := range cases {
		ask := func(r *rig, target, body string) *flows.Exchange {
			t.Helper()
			x := flows.Explaining(c.method, target)
			if body != "" {
				x.Request.Header.AddString("Content-Type", "application/json")
				x.Request.Body.Replace([]byte(body))
			}
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			return x
		}
		stale(t, all, func(r *rig) {
			r.node = func(x *flows.Exchange, _ int64) error { reply(x, 200, c.answer); return nil }
			ask(r, c.target, c.body)
			if x := ask(r, c.target, c.body); x.Trace.Outcome != flows.Hit || bodyOf(x) != c.answer {
				t.Errorf("%s: %s", c.target, field(x, "cache-status"))
			}
			r.wantCalls(1)
			ask(r, c.other, c.body)
			if c.body != "" {
				ask(r, c.target, strings.Replace(c.body, "{", `{"a":1,`, 1))
				r.wantCalls(3)
			} else {
				r.wantCalls(2)
			}
			<-time.After(6 * time.Second)
			if x := ask(r, c.target, c.body); field(x, "cache-status") != "weir; fwd=stale; stored" {
				t.Errorf("%s: past its time: %s", c.target, field(x, "cache-status"))
			}
			if x := ask(r, c.target+map[bool]string{true: "&", false: "?"}[strings.Contains(c.target, "?")]+"filter_path=a", c.body); field(x, "cache-status") != "weir; fwd=bypass; detail=filter-path" {
				t.Errorf("%s: with filter_path: %s", c.target, field(x, "cache-status"))
			}
		})
		stale(t, "", func(r *rig) {
			if x := ask(r, c.target, c.body); field(x, "cache-status") != "weir; fwd=bypass; detail=api" {
				t.Errorf("%s: kept unasked: %s", c.target, field(x, "cache-status"))
			}
		})
	}
	refuses := func(target, body, answer, want string) {
		t.Helper()
		stale(t, all, func(r *rig) {
			r.node = func(x *flows.Exchange, _ int64) error { reply(x, 200, answer); return nil }
			if x := r.ask(target, body); field(x, "cache-status") != want {
				t.Errorf("%s %s %s: %s", target, body, answer, field(x, "cache-status"))
			}
		})
	}
	refuses("/_sql", `{"cursor":"x"}`, `{}`, "weir; fwd=bypass; detail=scroll")
	refuses("/_plugins/_sql", `{"query":"DELETE FROM a"}`, `{}`, "weir; fwd=bypass; detail=statement")
	refuses("/_sql", `{"query":"SELECT 1","wait_for_completion_timeout":"1s"}`, `{}`, "weir; fwd=bypass; detail=scroll")
	refuses("/_query", `{"query":"x","profile":true}`, `{}`, "weir; fwd=bypass; detail=profile")
	refuses("/_sql?format=csv", `{"query":"SELECT 1"}`, `{}`, "weir; fwd=bypass; detail=format")
	refuses("/i/_search/template?scroll=1m", `{"id":"t"}`, searched, "weir; fwd=bypass; detail=scroll")
	refuses("/_sql", `{"query":"SELECT 1"}`, `{"rows":[],"cursor":"x"}`, "weir; fwd=miss; detail=cursor")
	refuses("/_query", `{"query":"x"}`, `{"values":[],"is_partial":true}`, "weir; fwd=miss; detail=timed-out")
	refuses("/i/_field_caps", `{"fields":"*"}`, `{"fields":{},"failures":[{}]}`, "weir; fwd=miss; detail=shards")
	refuses("/i/_search/template", `{"id":"t"}`, `{"timed_out":false}`, "weir; fwd=miss; detail=shards")
	refuses("/_query/async", `{"query":"x"}`, `{}`, "weir; fwd=bypass; detail=api")
}
