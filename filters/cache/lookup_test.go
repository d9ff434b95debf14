package cache

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/simtime"
)

var errLimited = elastic.Errorf(429, "rate_limit_exception", "limited")

// both runs a test with get_cache and set_cache, and with cache.
func both(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Run("get_cache and set_cache", func(t *testing.T) { f(t, newRig(t, classic)) })
	t.Run("cache", func(t *testing.T) { f(t, newRig(t, short)) })
}

// bubbles is both in a bubble of its own time.
func bubbles(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Run("get_cache and set_cache", func(t *testing.T) {
		simtime.Test(t, func(t *testing.T) { f(t, newRig(t, classic)) })
	})
	t.Run("cache", func(t *testing.T) {
		simtime.Test(t, func(t *testing.T) { f(t, newRig(t, short)) })
	})
}

func TestMissThenHit(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		first := r.ask("/i/_search", `{"query":{"term":{"a":1}},"size":3}`)
		wantStatus(t, first, "weir; fwd=miss; stored")
		second := r.ask("/i/_search", ` {"size":3,"query":{"term":{"\u0061":1}}}`)
		r.wantCalls(1)
		if got := field(second, "cache-status"); got != "weir; hit; ttl=10" && got != "weir; hit; ttl=9" && got != "weir; hit; ttl=8" {
			t.Errorf("Cache-Status %q", got)
		}
		if bodyOf(first) != bodyOf(second) {
			t.Errorf("the hit differs: %s and %s", bodyOf(first), bodyOf(second))
		}
		var names []string
		for _, f := range second.Response.Header.Fields() {
			names = append(names, string(f.Name))
		}
		if diff := cmp.Diff([]string{"Content-Type", "X-elastic-product", "Vary", "Age", "Cache-Status"}, names); diff != "" {
			t.Errorf("fields of a hit: -want +got\n%s", diff)
		}
		if second.Response.Status != 200 || second.Trace.Outcome != flows.Hit || first.Trace.Outcome != flows.Upstream {
			t.Errorf("status %d, outcomes %v and %v", second.Response.Status, first.Trace.Outcome, second.Trace.Outcome)
		}
		if r.count("weir_cache_requests_total", "main", "hit") != 1 || r.count("weir_cache_requests_total", "main", "miss") != 1 ||
			r.count("weir_cache_stored_total") != 1 || r.count("weir_cache_entries", "otter") != 1 {
			t.Error("the metrics do not say one miss, one hit, one entry")
		}
	})
}

func TestWhatIsDifferentIsAskedAgain(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		ask := []struct{ target, body string }{
			{"/i/_search", `{}`},
			{"/j/_search", `{}`},
			{"/_search", `{}`},
			{"/i,-j/_search", `{}`},
			{"/-j,i/_search", `{}`},
			{"/i/_count", `{}`},
			{"/i/_search", `{"sort":{"a":"asc","b":"desc"}}`},
			{"/i/_search", `{"sort":{"b":"desc","a":"asc"}}`},
			{"/i/_search", `{"query":{"term":{"k":1}}}`},
			{"/i/_search", `{"query":{"term":{"k":1.0}}}`},
			{"/i/_search", `{"query":{"term":{"k":1e0}}}`},
			{"/i/_search", `{"query":{"term":{"k":"1"}}}`},
			{"/i/_search", `{"query":{"term":{"k":9007199254740992}}}`},
			{"/i/_search", `{"query":{"term":{"k":9007199254740993}}}`},
			{"/i/_search?size=0", `{"size":3}`},
			{"/i/_search", `{"size":3}`},
			{"/i/_search?q=a", `{"size":3}`},
			{"/i/_search?unknown=1", `{"size":3}`},
			{"/i/_search?pretty", `{"size":3}`},
			{"/i/_search?routing=a", `{"size":3}`},
		}
		for round := range 2 {
			for i, a := range ask {
				x := r.ask(a.target, a.body)
				if want := fmt.Sprint(i + 1); !strings.Contains(bodyOf(x), ":"+want+",") {
					t.Errorf("round %d: %s %s got the answer %s, want that of call %s", round, a.target, a.body, bodyOf(x), want)
				}
			}
		}
		r.wantCalls(int64(len(ask)))
	})
}

func TestNobodyGetsTheAnswerOfAnother(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		callers := [][]string{
			{},
			{"Authorization", "Basic YWxpY2U6YQ=="},
			{"Authorization", "Basic YWxpY2U6Yg=="},
			{"Authorization", "ApiKey YWxpY2U6YQ=="},
			{"Authorization", "Basic YWxpY2U6YQ==", "es-security-runas-user", "bob"},
			{"Authorization", "Basic YWxpY2U6YQ==", "es-security-runas-user", "eve"},
			{"Authorization", "Basic YWxpY2U6YQ==", "securitytenant", "bob"},
			{"Authorization", "ab", "securitytenant", "c"},
			{"Authorization", "a", "securitytenant", "bc"},
			{"Cookie", "sid=1"},
			{"x-proxy-user", "alice", "x-proxy-roles", "a"},
			{"x-proxy-user", "alice", "x-proxy-roles", "b"},
			{"x-remote-user", "alice"},
			{"x-remote-user", "bob"},
			{"x-ssl-client-s-dn", "cn=alice"},
			{"x-forwarded-user", "alice"},
			{"x-forwarded-groups", "alice"},
			{"x-api-key", "a"},
			{"x-jwt-assertion", "a"},
			{"x-jwt-assertion", "b"},
		}
		for round := range 2 {
			for i, fields := range callers {
				x := r.ask("/i/_search", `{}`, fields...)
				if want := fmt.Sprintf(`{"took":%d,`, i+1); !strings.HasPrefix(bodyOf(x), want) {
					t.Errorf("round %d: caller %q got %s, want %s…", round, fields, bodyOf(x), want)
				}
			}
		}
		r.wantCalls(int64(len(callers)))
	})
}

func TestSharedIdentity(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{cache: {identity: shared}}, {node: {}}]}]`)
	r.ask("/i/_search", `{}`, "Authorization", "Basic YTpi")
	r.ask("/i/_search", `{}`)
	r.wantCalls(1)
}

func TestConcurrentCallersDoNotCross(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		r.node = func(x *flows.Exchange, _ int64) error {
			user := string(x.Request.Header.Get("authorization"))
			reply(x, 200, `{"timed_out":false,"_shards":{"total":1,"successful":1,"failed":0},"user":"`+user+`"}`)
			return nil
		}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				user, id := fmt.Sprint("user", i%2), fmt.Sprint("id", i)
				x := request("/i/_search", `{}`, "Authorization", user, "X-Opaque-Id", id)
				if err := r.serve("main", x); err != nil {
					t.Error(err)
				}
				if !strings.Contains(bodyOf(x), `"`+user+`"`) || field(x, "x-opaque-id") != id || x.Response.Header.Count("x-opaque-id") != 1 {
					t.Errorf("%s %s got %s %v", user, id, bodyOf(x), x.Response.Header.Fields())
				}
			})
		}
		wg.Wait()
	})
}

func TestFieldsOfTheFirstCallerStayWithIt(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		r.node = func(x *flows.Exchange, call int64) error {
			reply(x, 200, complete(x, call))
			x.Response.Header.AddString("traceparent", "00-1")
			x.Response.Header.AddString("Warning", `299 Elasticsearch-7.17.0 "deprecated"`)
			x.Response.Header.AddString("X-OpenSearch-Version", "OpenSearch/2.19.6")
			x.Response.Header.AddString("Date", "x")
			x.Response.Header.AddString("Access-Control-Allow-Origin", "x")
			x.Response.Header.AddString("Cache-Status", "inner; hit")
			return nil
		}
		r.ask("/i/_search", `{}`, "X-Opaque-Id", "a")
		x := r.ask("/i/_search", `{}`, "x-opaque-id", "b")
		y := r.ask("/i/_search", `{}`)
		r.wantCalls(1)
		if field(x, "x-opaque-id") != "b" || x.Response.Header.Count("x-opaque-id") != 1 || y.Response.Header.Has("x-opaque-id") {
			t.Errorf("X-Opaque-Id of the caller is not what came back: %v", x.Response.Header.Fields())
		}
		for _, name := range []string{"traceparent", "date", "access-control-allow-origin"} {
			if y.Response.Header.Has(name) {
				t.Errorf("%s was kept", name)
			}
		}
		if y.Response.Header.Count("cache-status") != 1 || !y.Response.Header.Has("warning") || !y.Response.Header.Has("x-opensearch-version") {
			t.Errorf("fields of a hit: %v", y.Response.Header.Fields())
		}
	})
}

func TestIncompleteAnswersAreNotKept(t *testing.T) {
	const head = `{"took":1,"timed_out":false,`
	const fine = `"_shards":{"total":2,"successful":2,"failed":0}`
	f := func(status int, body, why string, fields ...string) {
		t.Helper()
		both(t, func(t *testing.T, r *rig) {
			whole := r.node
			r.node = func(x *flows.Exchange, call int64) error {
				if call > 1 {
					return whole(x, call)
				}
				reply(x, status, body)
				for i := 0; i < len(fields); i += 2 {
					x.Response.Header.Set(fields[i], fields[i+1])
				}
				return nil
			}
			x := r.ask("/i/_search", `{}`)
			wantStatus(t, x, "weir; fwd=miss; detail="+why)
			if x.Response.Status != status || bodyOf(x) != body {
				t.Errorf("the answer itself changed: %d %s", x.Response.Status, bodyOf(x))
			}
			r.ask("/i/_search", `{}`)
			r.wantCalls(2)
			if got := r.count("weir_cache_rejections_total", why); got != 1 {
				t.Errorf("rejections for %s: %v", why, got)
			}
		})
	}
	f(200, `{"took":1,"timed_out":true,`+fine+`}`, "timed-out")
	f(200, head+`"_shards":{"total":2,"successful":1,"failed":1}}`, "shards")
	f(200, head+`"terminated_early":true,`+fine+`}`, "terminated-early")
	f(200, head+fine+`,"_clusters":{"total":2,"successful":1,"skipped":1}}`, "clusters")
	f(200, head+fine+`,"hits":{`, "malformed")
	f(200, `{"error":{"type":"x"},"status":404}`, "error")
	f(200, head+fine+`,"_scroll_id":"x"}`, "cursor")
	f(200, head+fine+`}`, "content-type", "Content-Type", "text/html")
	f(200, head+fine+`}`, "content-encoding", "Content-Encoding", "gzip")
	f(200, head+fine+`}`, "set-cookie", "Set-Cookie", "a=b")
	f(200, head+fine+`}`, "cache-control", "Cache-Control", "private")
	f(206, head+fine+`}`, "status")
	f(404, `{"error":{},"status":404}`, "status")
	f(429, `{"error":{},"status":429}`, "status")
	f(503, `<html>`, "status")
}

func TestBypasses(t *testing.T) {
	f := func(why, method, target, body string, fields ...string) {
		t.Helper()
		r := newRig(t, classic)
		for range 2 {
			x := request(target, body, fields...)
			x.Request.Method = []byte(method)
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			wantStatus(t, x, "weir; fwd=bypass; detail="+why)
		}
		r.wantCalls(2)
		if r.count("weir_cache_entries", "otter") != 0 {
			t.Errorf("%s: the answer was stored", why)
		}
		if got := r.count("weir_cache_bypasses_total", why); got != 2 {
			t.Errorf("%s: counted %v, want 2", why, got)
		}
	}
	f("api", "POST", "/_mget", "{}")
	f("api", "PUT", "/i/_doc/1", "{}")
	f("api", "GET", "/_cat/indices", "")
	f("api", "POST", "/_search/scroll", `{"scroll_id":"x"}`)
	f("api", "DELETE", "/_async_search/x", "")
	f("api", "GET", "/_async_search/status/x", "")
	f("async-id", "GET", "/_async_search/x", "")
	f("async-kept", "POST", "/i/_async_search?keep_on_completion=true", `{}`)
	f("scroll", "POST", "/i/_search?scroll=1m", `{}`)
	f("scroll", "POST", "/i/_search?a=1;scroll=1m", `{}`)
	f("path", "POST", "//i/_search", `{}`)
	f("path", "POST", "/i/%5Fsearch", `{}`)
	f("method", "HEAD", "/i/_search", "")
	f("no-cache-argument", "POST", "/i/_search?no_cache=true", `{}`)
	f("request-cache", "POST", "/i/_search?request_cache=false", `{}`)
	f("repeated-argument", "POST", "/i/_search?size=1&size=2", `{}`)
	f("no-store", "POST", "/i/_search", `{}`, "Cache-Control", "no-store")
	f("origin", "POST", "/i/_search", `{}`, "Origin", "http://a")
	f("pit", "POST", "/_search", `{"pit":{"id":"x"}}`)
	f("script", "POST", "/i/_search", `{"query":{"script":{"script":"1"}}}`)
	f("duplicate-key", "POST", "/i/_search", `{"size":1,"size":2}`)
	f("body", "POST", "/i/_search", `{"size":1`)
	f("body-size", "POST", "/i/_search", `{"a":"`+strings.Repeat("x", 1<<20)+`"}`)
	f("accept-encoding", "POST", "/i/_search", `{}`, "Accept-Encoding", "gzip, identity;q=0")
}

// A path that nodes may read differently is never answered from the cache, whatever the API.
func TestPathsThatNodesReadDifferently(t *testing.T) {
	for _, filters := range []string{
		`{get_cache: {also: ALSO}}, {node: {}}, {set_cache: {}}`, `{cache: {also: ALSO, async_ids: not_needed}}, {node: {}}`,
	} {
		also := "[" + strings.Join(query.Others(), ", ") + "]"
		r := newRig(t, "[{name: main, filter: ["+strings.ReplaceAll(filters, "ALSO", also)+"]}]")
		for _, target := range []string{
			"/i/_search", "/_search", "/i/_count", "/i/_msearch", "/i/_async_search", "/_async_search/x",
			"/_plugins/_asynchronous_search?index=i", "/_plugins/_asynchronous_search/x", "/i/_field_caps?fields=a", "/i/_mapping",
			"/i/_search/template", "/_sql", "/_plugins/_sql", "/_query", "/_plugins/_ppl",
		} {
			for _, odd := range []string{
				"/" + target, strings.Replace(target, "/_", "//_", 1), strings.Replace(target, "/_", "/%5F", 1), strings.Replace(target, "/_", "/%5f", 1),
			} {
				for _, method := range []string{"GET", "POST"} {
					x := request(odd, "{}")
					x.Request.Method = []byte(method)
					if err := r.serve("main", x); err != nil {
						t.Fatal(err)
					}
					if why := field(x, "cache-status"); why != "weir; fwd=bypass; detail=path" && why != "weir; fwd=bypass; detail=api" {
						t.Errorf("%s %s: %s", method, odd, why)
					}
				}
			}
		}
		if got := r.count("weir_cache_bypasses_total", "path"); got < 80 {
			t.Errorf("%v for their path: most are no calls of these APIs", got)
		}
	}
}

func TestPassPatterns(t *testing.T) {
	const text = `[{name: main, filter: [{get_cache: {pass_patterns: [_count, logs, preference], hash_factor: {must_cache: {method: [GET], path: [_search]}}}}, {node: {}}, {set_cache: {}}]}]`
	f := func(method, target string, passes bool) {
		t.Helper()
		r := newRig(t, text)
		x := request(target, "{}")
		x.Request.Method = []byte(method)
		if err := r.serve("main", x); err != nil {
			t.Fatal(err)
		}
		if got := field(x, "cache-status") == "weir; fwd=bypass; detail=pass-pattern"; got != passes {
			t.Errorf("%s %s: %s", method, target, field(x, "cache-status"))
		}
	}
	f("POST", "/i/_count", true)
	f("GET", "/i/_count", true) // must_cache names another segment
	f("POST", "/logs/_search", true)
	f("POST", "/lo%67s/_search", true)
	f("POST", "/logs-1/_search", false)
	f("POST", "/i_count/_search", false)
	f("POST", "/i/_search?preference=a", true)
	f("POST", "/i/_search?q=a&%70reference=a", true)
	f("POST", "/i/_search?q=a;preference", true)
	f("POST", "/i/_search?q=preference", false)
	f("GET", "/logs/_search", false)
	f("GET", "/i/_search?preference=a", false)
}

func TestMustCacheDoesNotOpenTheGate(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{get_cache: {pass_patterns: [i], hash_factor: {must_cache: {path: [_search]}}}}, {node: {}}, {set_cache: {}}]}]`)
	r.node = func(x *flows.Exchange, _ int64) error { reply(x, 200, `{"timed_out":true}`); return nil }
	r.ask("/i/_search", `{}`)
	r.ask("/i/_search", `{}`)
	r.wantCalls(2)
	if x := r.ask("/i/_search?scroll=1m", `{}`); field(x, "cache-status") != "weir; fwd=bypass; detail=scroll" {
		t.Errorf("a scroll was cached: %s", field(x, "cache-status"))
	}
}

func TestHashFactorAddsToTheKey(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{get_cache: {hash_factor: {header: ["*"], query_args: [timeout]}}}, {node: {}}, {set_cache: {}}]}]`)
	r.ask("/i/_search?timeout=1s", `{}`)
	r.ask("/i/_search?timeout=2s", `{}`)
	r.ask("/i/_search?timeout=2s", `{}`, "X-Team", "a")
	r.wantCalls(3)
	r.ask("/i/_search?timeout=2s", `{}`, "X-Team", "a", "traceparent", "00-1", "X-Opaque-Id", "b", "User-Agent", "c")
	r.wantCalls(3)
}

func TestTimeToLive(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		r.ask("/i/_search", `{}`)
		<-time.After(8900 * time.Millisecond)
		x := r.ask("/i/_search", `{}`)
		if field(x, "age") != "8" || !strings.HasPrefix(field(x, "cache-status"), "weir; hit; ttl=") {
			t.Errorf("Age %s, %s", field(x, "age"), field(x, "cache-status"))
		}
		<-time.After(2200 * time.Millisecond)
		wantStatus(t, r.ask("/i/_search", `{}`), "weir; fwd=stale; stored")
		r.wantCalls(2)
	})
}

func TestJitter(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, classic)
		lives := map[time.Duration]bool{}
		for i := range 200 {
			x := r.ask(fmt.Sprintf("/i%d/_search", i), `{}`)
			_, e := r.shared().find(&ticketOf.Get(x).key)
			life := e.left(time.Now())
			if life < 9*time.Second || life > 11*time.Second {
				t.Fatalf("an answer lives %s, want 10s within a tenth", life)
			}
			lives[life] = true
		}
		if len(lives) < 100 {
			t.Errorf("only %d different lives among 200", len(lives))
		}
	})
}

func TestNowLivesShorter(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{cache: {ttl: 1h, now_ttl: 2s}}, {node: {}}]}]`)
		const moving = `{"query":{"range":{"t":{"gte":"now-15m"}}}}`
		r.ask("/i/_search", moving)
		r.ask("/i/_search", `{}`)
		<-time.After(3 * time.Second)
		r.ask("/i/_search", `{}`)
		r.wantCalls(2)
		r.ask("/i/_search", moving)
		r.wantCalls(3)
	})
}

func TestCacheControl(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		x := request("/i/_search", `{}`, "Cache-Control", "only-if-cached")
		var ee *elastic.Error
		if err := r.serve("main", x); !errors.As(err, &ee) || ee.Status != 504 {
			t.Errorf("only-if-cached without an entry: %v", err)
		}
		if x.Response.Answered() || x.Response.Header.Len() > 0 || string(x.Trace.Cache) != "weir; fwd=miss" {
			t.Errorf("an error comes with %d %v, and %s", x.Response.Status, x.Response.Header.Fields(), x.Trace.Cache)
		}
		r.wantCalls(0)
		r.ask("/i/_search", `{}`)
		r.ask("/i/_search", `{}`, "Cache-Control", "only-if-cached")
		r.wantCalls(1)
		<-time.After(3 * time.Second)
		r.ask("/i/_search", `{}`, "Cache-Control", "max-age=3")
		r.wantCalls(1)
		wantStatus(t, r.ask("/i/_search", `{}`, "Cache-Control", "max-age=2"), "weir; fwd=request; stored")
		r.wantCalls(2)
		wantStatus(t, r.ask("/i/_search", `{}`, "Cache-Control", "no-cache"), "weir; fwd=request; stored")
		r.wantCalls(3)
		if x := r.ask("/i/_search", `{}`); !strings.Contains(bodyOf(x), `"took":3`) || field(x, "age") != "0" {
			t.Errorf("no-cache did not refresh: %s", bodyOf(x))
		}
	})
}

// An answer that was asked for before a refresh must not replace the refreshed one, however late it comes.
func TestOvertakenAnswerIsNotKept(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		slow := make(chan struct{})
		r.node = func(x *flows.Exchange, call int64) error {
			if call == 1 {
				<-slow
			}
			reply(x, 200, complete(x, call))
			return nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { r.ask("/i/_search", `{}`) })
		synctest.Wait()
		<-time.After(time.Second)
		r.ask("/i/_search", `{}`, "Cache-Control", "no-cache")
		close(slow)
		wg.Wait()
		if x := r.ask("/i/_search", `{}`); !strings.Contains(bodyOf(x), `"took":2`) {
			t.Errorf("the older answer replaced the newer one: %s", bodyOf(x))
		}
	})
}

func TestAcceptEncodingStaysHere(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			coded := x.Request.Header.Has("accept-encoding")
			err := whole(x, call)
			if coded {
				x.Response.Header.AddString("Content-Encoding", "gzip")
			}
			return err
		}
		for _, accept := range []string{"gzip", "gzip;q=1, *;q=0.5", "identity", "br"} {
			x := r.ask("/i/_search", `{}`, "Accept-Encoding", accept)
			if x.Response.Header.Has("content-encoding") {
				t.Errorf("Accept-Encoding: %s was answered with a coding", accept)
			}
		}
		r.wantCalls(1)
		if x := r.ask("/i/_search", `{}`, "Accept-Encoding", "gzip, *;q=0"); !x.Response.Header.Has("content-encoding") {
			t.Error("a caller who refuses plain answers got one")
		}
	})
}

func TestFlowsDoNotShare(t *testing.T) {
	r := newRig(t, `[
		{name: one, filter: [{get_cache: {}}, {node: {}}, {set_cache: {}}]},
		{name: two, filter: [{get_cache: {}}, {node: {}}, {set_cache: {}}]},
		{name: main, filter: [{node: {}}]}]`)
	f := func(flow, routed string, want int64) {
		t.Helper()
		x := request("/i/_search", `{}`)
		x.Trace.Flow = routed
		if err := r.serve(flow, x); err != nil {
			t.Fatal(err)
		}
		r.wantCalls(want)
	}
	f("one", "one", 1)
	f("two", "two", 2) // perhaps another cluster
	f("one", "outer", 3)
	f("one", "one", 3)
	f("two", "two", 3)
	f("one", "outer", 3)
	f("two", "outer", 4)
}

func TestInnerCacheLeavesItToTheOuter(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{cache: {}}, {get_cache: {}}, {cache: {}}, {node: {}}, {set_cache: {}}]}]`)
	x := r.ask("/i/_search", `{}`)
	wantStatus(t, x, "weir; fwd=miss; stored")
	if n := x.Response.Header.Count("cache-status"); n != 1 {
		t.Errorf("%d fields Cache-Status", n)
	}
	r.ask("/i/_search", `{}`)
	r.wantCalls(1)
}

func TestFirstSetCacheWins(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {}}, {set_cache: {max_cached_size: 10mb}}]}]`)
	r.ask("/i/_search", `{}`)
	if n := r.count("weir_cache_entries", "otter"); n != 1 {
		t.Errorf("%v entries, want 1", n)
	}
}

func TestGetCacheWithoutSetCache(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, `[{name: main, filter: [{get_cache: {}}, {node: {}}]}]`)
		wantStatus(t, r.ask("/i/_search", `{}`), "weir; fwd=miss; detail=no-set-cache")
		// Waiting for each other would be for nothing.
		running := make(chan struct{})
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error { <-running; return whole(x, call) }
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { r.ask("/i/_search", `{}`) })
		}
		synctest.Wait()
		r.wantCalls(11)
		close(running)
		wg.Wait()
	})
}

func TestTracingFlowPasses(t *testing.T) {
	r := newRig(t, classic)
	x := request("/i/_search", `{}`)
	x.Tracing = true
	if err := r.serve("main", x); err != nil {
		t.Fatal(err)
	}
	if x.Response.Header.Has("cache-status") {
		t.Error("a snapshot went through the cache")
	}
}

func TestReloadKeepsAnswers(t *testing.T) {
	r := newRig(t, classic)
	r.ask("/i/_search", `{}`)
	r.load(classic)
	if x := r.ask("/i/_search", `{}`); x.Trace.Outcome != flows.Hit {
		t.Errorf("after a reload: %s", field(x, "cache-status"))
	}
	// Another size is another store; the old one goes.
	r.load(`[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {max_cached_size: 10mb}}]}]`)
	r.ask("/i/_search", `{}`)
	r.ask("/i/_search", `{}`)
	r.wantCalls(2)
	if n := len(*r.shared().stores.Load()); n != 1 {
		t.Errorf("%d stores after reloads, want 1", n)
	}
}

// An answer that was stored while callers were taken for one by mistake is not given when that is corrected.
func TestReloadThatChangesWhoIsAlike(t *testing.T) {
	of := func(settings string) string {
		return `[{name: main, filter: [{cache: {` + settings + `}}, {node: {}}]}]`
	}
	for _, settings := range []string{
		"harmless_headers: [x-team]", "identity: shared", "by_address: true", "preference: drop", "rounded_now: still", "key_headers: [accept-language]",
		"key_args: [timeout]",
	} {
		r := newRig(t, of(settings))
		r.ask("/i/_search", `{}`, "X-Team", "alice")
		r.load(of(settings + ", ttl: 1m"))
		if x := r.ask("/i/_search", `{}`, "X-Team", "alice"); x.Trace.Outcome != flows.Hit {
			t.Errorf("%s: after a reload that changes the time to live: %s", settings, field(x, "cache-status"))
		}
		r.load(of(""))
		for _, team := range []string{"", "alice"} {
			x := request("/i/_search", `{}`)
			if team != "" {
				x.Request.Header.AddString("X-Team", team)
			}
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
			if x.Trace.Outcome != flows.Upstream {
				t.Errorf("%s, corrected: team %q: %s", settings, team, field(x, "cache-status"))
			}
		}
	}
}

func TestSizes(t *testing.T) {
	f := func(set string, length int, streamed bool, want string) {
		t.Helper()
		r := newRig(t, `[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {`+set+`}}]}]`)
		r.node = func(x *flows.Exchange, call int64) error {
			body := complete(x, call)
			body = body[:len(body)-1] + `,"x":"` + strings.Repeat("x", length-len(body)-len(`,"x":""`)) + `"}`
			reply(x, 200, body)
			if streamed {
				x.Response.Body.ReplaceStream(strings.NewReader(body), int64(len(body)))
			}
			return nil
		}
		x := r.ask("/i/_search", `{}`)
		wantStatus(t, x, want)
		if n := len(bodyOf(x)); n != length {
			t.Errorf("the answer has %d bytes, want %d", n, length)
		}
	}
	f("", 1000, false, "weir; fwd=miss; stored")
	f("", 100_000, true, "weir; fwd=miss; stored")
	f("max_response_size: 1kb", 1024, true, "weir; fwd=miss; stored")
	f("max_response_size: 1kb", 1025, false, "weir; fwd=miss; detail=too-large")
	f("max_response_size: 1kb", 1025, true, "weir; fwd=miss; detail=too-large")
	f("max_response_size: -1, max_cached_size: 1mb", 1<<18+1, true, "weir; fwd=miss; detail=too-large")
	f("min_response_size: 2kb", 2047, false, "weir; fwd=miss; detail=too-small")
	f("min_response_size: 2kb", 2048, false, "weir; fwd=miss; stored")
}

func TestSizesOfGetCacheCountToo(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{get_cache: {max_response_size: 10}}, {node: {}}, {set_cache: {}}]}]`)
	wantStatus(t, r.ask("/i/_search", `{}`), "weir; fwd=miss; detail=too-large")
}

func TestAnswerOfUnknownLength(t *testing.T) {
	f := func(set string, used int64, want string) {
		t.Helper()
		r := newRig(t, `[{name: main, filter: [{get_cache: {}}, {node: {}}, {set_cache: {`+set+`}}]}]`)
		r.node = func(x *flows.Exchange, call int64) error {
			body := complete(x, call)
			reply(x, 200, "")
			x.Response.Body.ReplaceStream(strings.NewReader(body), -1)
			return nil
		}
		r.rt.Budget.Acquire(used)
		defer r.rt.Budget.Release(used)
		x := r.ask("/i/_search", `{}`)
		wantStatus(t, x, want)
		if bodyOf(x) != complete(x, 1) {
			t.Errorf("the answer changed: %q", bodyOf(x))
		}
	}
	f("", 0, "weir; fwd=miss; stored")
	f("max_response_size: 20", 0, "weir; fwd=miss; detail=too-large")
	f("", 60<<20, "weir; fwd=miss; detail=memory")
}

func TestAnswerThatBreaksOff(t *testing.T) {
	r := newRig(t, classic)
	whole := r.node
	r.node = func(x *flows.Exchange, call int64) error {
		if call > 1 {
			return whole(x, call)
		}
		reply(x, 200, "")
		x.Response.Body.ReplaceStream(io.MultiReader(strings.NewReader(`{"took":1,`), &broken{}), 1000)
		return nil
	}
	var ee *elastic.Error
	if err := r.serve("main", request("/i/_search", `{}`)); !errors.As(err, &ee) || ee.Status != 502 {
		t.Errorf("got %v, want a 502", err)
	}
	r.ask("/i/_search", `{}`)
	r.wantCalls(2)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// chunked makes body a request body of unknown length.
func chunked(x *flows.Exchange, body string) {
	x.Request.Body.ReplaceStream(strings.NewReader(body), -1)
}

func TestChunkedRequests(t *testing.T) {
	r := newRig(t, classic)
	var got []byte
	r.node = func(x *flows.Exchange, call int64) error {
		var err error
		got, err = io.ReadAll(x.Request.Body.Reader())
		reply(x, 200, complete(x, call))
		return err
	}
	f := func(body, status string) {
		t.Helper()
		x := request("/i/_search", "")
		chunked(x, body)
		if err := r.serve("main", x); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, x, status)
		if string(got) != body {
			t.Errorf("%d bytes reached the node of %d", len(got), len(body))
		}
	}
	f(`{"size":1}`, "weir; fwd=miss; stored")
	x := r.ask("/i/_search", `{"size":1}`)
	if x.Trace.Outcome != flows.Hit {
		t.Error("chunks are part of the key")
	}
	f(`{"a":"`+strings.Repeat("x", 1<<20)+`"}`, "weir; fwd=bypass; detail=body-size")
}

// planted is a store that fails.
type planted struct{ Store }

func (planted) Get(query.Key) *Entry  { panic("planted") }
func (planted) Set(query.Key, *Entry) { panic("planted") }

func TestFaultOfTheCacheFailsOpen(t *testing.T) {
	both(t, func(t *testing.T, r *rig) {
		for _, st := range *r.shared().stores.Load() {
			st.Store = planted{st.Store}
		}
		wantStatus(t, r.ask("/i/_search", `{}`), "weir; fwd=miss; detail=fault")
		if r.count("weir_cache_faults_total") == 0 {
			t.Error("the fault was not counted")
		}
	})
}

func TestHitDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops pooled memory at random")
	}
	f := func(text string) {
		t.Helper()
		r := newRig(t, text)
		const body = `{"query":{"term":{"a":1}},"size":3}`
		r.ask("/i/_search?preference=abc", body)
		x := request("/i/_search?preference=abc", body, "X-Opaque-Id", "a", "Authorization", "Basic YTpi", "Accept-Encoding", "gzip")
		flow := r.flows["main"]
		for range 3 {
			if err := flow.Serve(x); err != nil {
				t.Fatal(err)
			}
		}
		if x.Trace.Outcome != flows.Hit {
			t.Fatalf("not a hit: %s", x.Trace.Cache)
		}
		if n := testing.AllocsPerRun(200, func() {
			if err := flow.Serve(x); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("a hit of %s makes %v allocations", text, n)
		}
	}
	f(classic)
	f(short)
	f(`[{name: main, filter: [{get_cache: {cache_type: ristretto, pass_patterns: [_count, scroll], hash_factor: {header: ["*"]}, by_address: true}}, {node: {}}, {set_cache: {}}]}]`)
}

func BenchmarkHit(b *testing.B) {
	t := &testing.T{}
	r := newRig(t, classic)
	body := `{"query":{"bool":{"filter":[{"range":{"@timestamp":{"gte":1,"lte":2,"format":"epoch_millis"}}},{"term":{"a":"b"}}]}},"size":0}`
	x := request("/i/_search", body)
	flow := r.flows["main"]
	b.ReportAllocs()
	for b.Loop() {
		if err := flow.Serve(x); err != nil {
			b.Fatal(err)
		}
	}
}
