package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/elastic/query"
	"weir/flows"
	"weir/internal/simtime"
)

// pages serves the pages of the rig's cache.
func (r *rig) pages() *http.ServeMux {
	mux := http.NewServeMux()
	Publish(mux, r.keeper, func(entry string, x *flows.Exchange) ([]*flows.Flow, error) {
		if entry != "" {
			return nil, fmt.Errorf("no entry called %q", entry)
		}
		x.Trace.Flow = "main"
		return []*flows.Flow{r.flows["main"]}, nil
	})
	return mux
}

// call asks a page, and reads its answer into v.
func (r *rig) call(method, path, body string, status int, v any) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.pages().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	if w.Code != status || w.Header().Get("Content-Type") != "application/json" {
		r.t.Fatalf("%s %s %s: %d %s", method, path, body, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), v); err != nil {
		r.t.Fatalf("%s: %v", w.Body, err)
	}
}

// in runs ask as the flow main routed it.
func (r *rig) routed(target, body string, fields ...string) *flows.Exchange {
	r.t.Helper()
	x := request(target, body, fields...)
	x.Trace.Flow = "main"
	if err := r.serve("main", x); err != nil {
		r.t.Fatal(err)
	}
	return x
}

func TestOverview(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{cache: {pool: dashboards, tags: [team-a]}}, {limit: {}}, {node: {}}]}]`)
	for n, target := range []string{"/a/_search", "/b/_search?token=secret&size=0", "/c/_count"} {
		for range n + 1 {
			r.routed(target, `{"query":{"term":{"k":1}}}`, "Authorization", "Basic c2VjcmV0")
		}
	}
	r.routed("/a/_search?scroll=1m", `{}`)
	r.routed("/a/_search?no_cache", `{}`)
	r.routed("/b/_search?no_cache", `{}`)
	whole := r.node
	r.node = func(x *flows.Exchange, _ int64) error { reply(x, 200, `{"timed_out":true}`); return nil }
	r.routed("/d/_search", `{}`)
	r.node = whole

	var got overview
	r.call("GET", "/_weir/cache", "", 200, &got)
	if len(got.Stores) != 1 || got.Stores[0].Pool != "dashboards" || got.Stores[0].Entries != 3 || got.Stores[0].Bytes == 0 || got.Stores[0].MaxBytes != defaultMaxBytes {
		t.Errorf("stores %+v", got.Stores)
	}
	if diff := cmp.Diff([]reasonCount{{query.ReasonNoCache, 2}, {query.ReasonScroll, 1}}, got.Bypassed); diff != "" {
		t.Errorf("bypassed: -want +got\n%s", diff)
	}
	if diff := cmp.Diff([]reasonCount{{query.ReasonTimedOut, 1}}, got.Unstored); diff != "" {
		t.Errorf("not stored: -want +got\n%s", diff)
	}
	// An answer that was never given again is in nobody's demand.
	if len(got.Top) != 2 || got.Top[0].Hits != 2 || got.Top[1].Hits != 1 {
		t.Fatalf("top %+v", got.Top)
	}
	first, second := got.Top[0], got.Top[1]
	if first.API != "count" || first.Index != "c" || first.Request != "POST /c/_count" || first.Body != `{"query":{"term":{"k":1}}}` ||
		first.Tags[0] != "team-a" || first.Bytes < entryOverhead || first.TTL <= 0 || first.Saved <= 0 {
		t.Errorf("got %+v", first)
	}
	text, err := json.Marshal(got)
	if err != nil || strings.Contains(string(text), "ecret") || strings.Contains(string(text), "c2Vj") || second.Request != "POST /b/_search?token=***&size=0" {
		t.Errorf("secrets are shown, or the target is not: %s %v", text, err)
	}
}

func TestTopIsTheMostAskedFor(t *testing.T) {
	s, err := limits{kind: "otter", maxBytes: 16 << 20, maxItems: 1000}.open(func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range uint64(100) {
		e := entryOf(10, byte(i))
		e.hits.Store(int64(i * 7 % 100))
		s.Set(keyOf(i), e)
	}
	top := (&store{Store: s}).top(nil)
	if len(top) != topKeys {
		t.Fatalf("%d listed", len(top))
	}
	for i, f := range top {
		if f.hits != int64(99-i) {
			t.Errorf("place %d has %d hits", i, f.hits)
		}
	}
}

func TestPurge(t *testing.T) {
	const text = `[{name: main, filter: [{get_cache: {}}, {limit: {}}, {node: {}}, {set_cache: {tags: [a, b], cache_type: %s}}]}]`
	targets := []string{"/logs-1/_search", "/logs-*,-logs-9/_search", "/other/_search", "/_search", "/%3Clogs-%7Bnow%2Fd%7D%3E/_search", "/remote:logs-1/_search"}
	for _, kind := range storeKinds {
		f := func(selection string, gone ...int) {
			t.Helper()
			r := newRig(t, fmt.Sprintf(text, kind))
			settle := func() {
				for _, st := range *r.shared().stores.Load() {
					if s, ok := st.Store.(*ristrettoStore); ok {
						s.cache.Wait()
					}
				}
			}
			keys := make([]query.Key, len(targets))
			for i, target := range targets {
				keys[i] = ticketOf.Get(r.routed(target, `{}`)).key
			}
			settle()
			selection = strings.ReplaceAll(selection, "KEY2", fmt.Sprintf("%x", keys[2]))
			var got struct{ Purged int }
			r.call("POST", "/_weir/cache/purge", selection, 200, &got)
			if got.Purged != len(gone) || r.count("weir_cache_purged_total") != float64(len(gone)) {
				t.Errorf("%s %s: %d purged, want %d", kind, selection, got.Purged, len(gone))
			}
			for i := range targets {
				want := true
				for _, g := range gone {
					want = want && g != i
				}
				if _, e := r.shared().find(&keys[i]); (e != nil) != want {
					t.Errorf("%s %s: %s is kept: %v", kind, selection, targets[i], e != nil)
				}
			}
		}
		f(`{"all":true}`, 0, 1, 2, 3, 4, 5)
		f(`{"index":"logs-1"}`, 0, 1, 3, 4)
		f(`{"index":"other"}`, 2, 3)
		f(`{"index":"oth*"}`, 2, 3)
		f(`{"index":"remote:logs-1"}`, 3, 5)
		f(`{"index":"other,remote:logs-1"}`, 2, 3, 5)
		f(`{"key":"KEY2"}`, 2)
		f(`{"tag":"b"}`, 0, 1, 2, 3, 4, 5)
		f(`{"tag":"c"}`)
	}
	r := newRig(t, classic)
	for _, bad := range []string{``, `{}`, `{"all":false}`, `{"all":true,"tag":"a"}`, `{"key":"zz"}`, `{"index":"a,"}`, `{"index":"a*,-a1"}`, `{"key":"00"}`, `{"everything":true}`, `{"all":true} {}`, `[]`} {
		var got struct{ Status int }
		r.call("POST", "/_weir/cache/purge", bad, 400, &got)
		if got.Status != 400 {
			t.Errorf("%s: %+v", bad, got)
		}
	}
}

// A search over documents of an index that its path does not name goes with that index too.
func TestPurgeKnowsWhatIsLookedUpElsewhere(t *testing.T) {
	r := newRig(t, classic)
	r.routed("/i/_search", `{"query":{"terms":{"user":{"index":"users","id":"1","path":"ids"}}}}`)
	var got struct{ Purged int }
	r.call("POST", "/_weir/cache/purge", `{"index":"users"}`, 200, &got)
	if got.Purged != 1 {
		t.Errorf("%d purged", got.Purged)
	}
}

// What was asked for before a purge comes too late to be kept, and nobody who comes after it waits for it.
func TestPurgeReachesWhatIsOnItsWay(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		whole := r.node
		leader, c, release := stampede(r, 5, plain, plain, whole)
		var got struct{ Purged int }
		r.call("POST", "/_weir/cache/purge", `{"all":true}`, 200, &got)
		x := r.ask("/i/_search", `{}`)
		wantStatus(t, x, "weir; fwd=miss; stored")
		close(release)
		c.wg.Wait()
		wantStatus(t, leader, "weir; fwd=miss; detail=purged")
		r.wantCalls(2)
		if y := r.ask("/i/_search", `{}`); bodyOf(y) != bodyOf(x) {
			t.Errorf("the answer of before the purge is kept: %s", bodyOf(y))
		}
	})
}

func TestPoolsAreBudgetsOfTheirOwn(t *testing.T) {
	r := newRig(t, `[
		{name: main, filter: [{cache: {pool: a, max_bytes: 1mb}}, {node: {}}]},
		{name: other, filter: [{cache: {pool: b, max_bytes: 1mb}}, {node: {}}]},
		{name: third, filter: [{cache: {pool: b, max_bytes: 1mb}}, {node: {}}]}]`)
	r.long(100_000)
	r.ask("/i/_search", `{}`)
	for i := range 50 {
		if err := r.serve("other", request(fmt.Sprintf("/i%d/_search", i), `{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if x := r.ask("/i/_search", `{}`); x.Trace.Outcome != flows.Hit {
		t.Errorf("pushed out by another pool: %s", field(x, "cache-status"))
	}
	if a, b := r.count("weir_cache_entries", "otter", "a"), r.count("weir_cache_entries", "otter", "b"); a != 1 || b < 2 || b > 10 {
		t.Errorf("%v and %v entries", a, b)
	}
	if r.count("weir_cache_evictions_total", "otter", "b") == 0 || r.count("weir_cache_evictions_total", "otter", "a") != 0 {
		t.Error("evictions are not counted by pool")
	}
	if n := len(*r.shared().stores.Load()); n != 2 {
		t.Errorf("%d stores for two pools", n)
	}
}

func TestExplainPage(t *testing.T) {
	r := newRig(t, short)
	ask := func(question string) (e Explanation) {
		t.Helper()
		r.call("POST", "/_weir/cache/explain", question, 200, &e)
		return e
	}
	const question = `{"method":"GET","path":"/i/_search?timeout=1s","header":{"Authorization":"Basic YTpi"},"body":{"size":0,"from":0}}`
	before := ask(question)
	x := r.routed("/i/_search", `{"from":0,"size":0}`, "Authorization", "Basic YTpi")
	after := ask(question)
	key := ticketOf.Get(x).key
	if before.Entry != nil || after.Entry == nil || after.Key != fmt.Sprintf("%x", key) || after.Entry.Key != after.Key || before.Key != after.Key {
		t.Errorf("key %x, explained %+v and %+v", key, before, after)
	}
	after.Entry, after.Key = nil, ""
	want := Explanation{
		Flow: "main", Filter: "cache", API: "search", Cacheable: true, Because: "it has a key, and a complete answer is kept",
		Body: `{"from":0,"size":0}`, Dropped: []string{"timeout=1s"}, Identity: []string{"authorization"},
		SharedBy: "callers with the same credentials", TTL: "10s",
	}
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if e := ask(`{"path":"/i/_search","body":"{\"size\":1,\"size\":2}"}`); e.Cacheable || e.Reason != "duplicate-key" || e.Because == "" {
		t.Errorf("got %+v", e)
	}
	r.wantCalls(1)
	if n := r.count("weir_cache_requests_total", "main", "bypass"); n != 0 {
		t.Errorf("explanations are counted: %v", n)
	}
	for _, bad := range []string{`{}`, `{"path":"i"}`, `{"path":"/","client":"x"}`, `{"path":"/","entry":"none"}`, `{"paht":"/"}`} {
		var got struct{ Status int }
		r.call("POST", "/_weir/cache/explain", bad, 400, &got)
	}
}

func TestExplainPageBounds(t *testing.T) {
	h := page(func(r *http.Request) (any, error) { return explainPage(r, nil) })
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/_weir/cache/explain", strings.NewReader(`{"body":"`+strings.Repeat("x", 100)+`"}`))
	r.Body = http.MaxBytesReader(w, r.Body, 100)
	h.ServeHTTP(w, r)
	if got := w.Body.String(); w.Code != 413 || !strings.Contains(got, "weir cache explain takes larger ones") {
		t.Errorf("%d %s", w.Code, got)
	}
}

func TestNoCacheOnTheWay(t *testing.T) {
	r := newRig(t, `[{name: main, filter: [{limit: {}}, {node: {}}]}]`)
	q := Question{Path: "/i/_search"}
	_, err := q.Ask(func(string, *flows.Exchange) ([]*flows.Flow, error) { return []*flows.Flow{r.flows["main"]}, nil })
	if !errors.Is(err, ErrNoCache) {
		t.Errorf("got %v", err)
	}
}

func TestEveryBypassHasASentence(t *testing.T) {
	for _, why := range bypassReasons {
		if sentences[why] == "" {
			t.Errorf("none for %s", why)
		}
	}
	if len(sentences) != len(bypassReasons) {
		t.Errorf("%d sentences for %d reasons", len(sentences), len(bypassReasons))
	}
}

func TestWhatTheCacheSpares(t *testing.T) {
	simtime.Test(t, func(t *testing.T) {
		r := newRig(t, short)
		whole := r.node
		r.node = func(x *flows.Exchange, call int64) error {
			<-time.After(2 * time.Second)
			return whole(x, call)
		}
		r.ask("/i/_search", `{}`)
		<-time.After(3 * time.Second)
		n := 0
		for range 5 {
			n += len(bodyOf(r.ask("/i/_search", `{}`)))
		}
		if got := r.count("weir_cache_saved_upstream_seconds_total", "main"); got != 10 {
			t.Errorf("%v s saved by 5 hits of an answer that took 2 s", got)
		}
		if got := r.count("weir_cache_given_bytes_total", "main"); got != float64(n) {
			t.Errorf("%v bytes given, want %d", got, n)
		}
	})
}

// The searches of a _msearch are explained, listed and purged like those that come alone.
func TestSearchesOfMultiAreKnown(t *testing.T) {
	bubbles(t, func(t *testing.T, r *rig) {
		r.node = func(x *flows.Exchange, _ int64) error {
			const one = `{"took":1,"timed_out":false,"_shards":{"total":1,"successful":1,"failed":0},"hits":{"hits":[]},"status":200}`
			reply(x, 200, `{"took":1,"responses":[`+one+`,`+one+`]}`)
			return nil
		}
		const lines = "{\"index\":\"a\"}\n{\"size\": 1}\n{\"index\":\"b\"}\n{\"size\":2}\n"
		multi := func() {
			x := flows.Explaining("POST", "/_msearch", "Content-Type", "application/x-ndjson")
			x.Request.Body.Replace([]byte(lines))
			x.Trace.Flow = "main"
			if err := r.serve("main", x); err != nil {
				t.Fatal(err)
			}
		}
		multi()
		multi()
		r.wantCalls(1)
		text, err := json.Marshal(lines)
		if err != nil {
			t.Fatal(err)
		}
		var e Explanation
		r.call("POST", "/_weir/cache/explain", `{"path":"/_msearch","header":{"Content-Type":"application/x-ndjson"},"body":`+string(text)+`}`, 200, &e)
		if !e.Cacheable || len(e.Searches) != 2 || e.Searches[0].Body != `{"size":1}` || e.Searches[1].Entry == nil || e.Searches[1].Entry.Hits != 1 ||
			e.Searches[1].Entry.Index != "b" || e.Searches[1].Entry.Body != `{"size":2}` {
			t.Errorf("got %+v", e)
		}
		var got struct{ Purged int }
		r.call("POST", "/_weir/cache/purge", `{"index":"b"}`, 200, &got)
		if got.Purged != 1 {
			t.Errorf("%d purged", got.Purged)
		}
		if n := r.count("weir_cache_given_bytes_total", "main"); n == 0 {
			t.Error("what was given is not counted")
		}
	})
}
